#include "ops/cpu/layout.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <mutex>

#include "base/error.h"
#include "base/math.h"
#include "ops/cpu/backend.h"
#include "ops/cpu/int8_layout.h"
#include "ops/cpu/place.h"

namespace eyrie::ops::cpu {
namespace {

struct Geometry {
  int step;             // k a step
  int lines = 1;        // of words, of a step
  int block = 0;        // k that share a scale; 0: none in the panel
  int scale_bytes = 0;  // of a block, all 32 columns
  bool row_scales = false;
};

constexpr Geometry geometry(Encoding encoding) {
  switch (encoding) {
    case Encoding::kF32:
      return {.step = 1, .lines = 2};
    case Encoding::kBf16:
    case Encoding::kF16:
      break;
    case Encoding::kBf16Pairs:
      return {.step = 2, .lines = 2};
    case Encoding::kFp8:
      return {.step = 2, .row_scales = true};
    case Encoding::kFp8Block:
      return {.step = 2, .block = 128, .scale_bytes = kPanel * 4};
    case Encoding::kMxfp4:
      return {.step = 4, .block = 32, .scale_bytes = kPanel};
    case Encoding::kNvfp4:
      return {.step = 4, .block = 16, .scale_bytes = kPanel, .row_scales = true};
    case Encoding::kInt4:
      return {.step = 4, .block = 32, .scale_bytes = kPanel * 2};
    case Encoding::kMxfp4Int8:
    case Encoding::kNvfp4Int8:
    case Encoding::kInt4Int8:
      return {.step = kLineColumns, .row_scales = int8_geometry(encoding).row_scales};
  }
  return {.step = 1};
}

// Geometry of a matrix; panels and row_scales are still empty.
PanelMatrix shape_of(const formats::WeightFormat& format, formats::ActivationRounding activation,
                     int64_t out, int64_t in) {
  const Encoding encoding = encoding_of(format, activation);
  const int columns = meets_int8(encoding) ? kInt8Panel : kPanel;
  PanelMatrix m{.encoding = encoding,
                .out = out,
                .in = in,
                .padded_in = in,
                .num_panels = div_ceil(out, columns),
                .panel_columns = columns,
                .panel_bytes = 0,
                .panels = nullptr,
                .row_scales = nullptr};
  CHECK(format.fits(in), "{} weight [{}, {}]: columns are cut in blocks of {}", format.name, out,
        in, format.block_in);
  if (meets_int8(encoding)) {
    m.panel_bytes = int8_panel_bytes(encoding, in);
    return m;
  }
  const Geometry g = geometry(encoding);
  m.padded_in = align_up(in, g.step);
  const int64_t blocks = g.block == 0 ? 0 : div_ceil(in, g.block);
  m.panel_bytes = align_up(element_bytes(m) + blocks * g.scale_bytes, 64);
  return m;
}

int64_t storage_bytes(const PanelMatrix& m) {
  const bool scales = geometry(m.encoding).row_scales;
  return m.num_panels * (m.panel_bytes + (scales ? m.panel_columns * int64_t{sizeof(float)} : 0));
}

// Panel `index` of the rows one after the other.
void place_panel_of(const PanelMatrix& m, std::span<const formats::Weight> rows_concatenated,
                    int64_t index, std::byte* panel, float* row_scales) {
  WeightRow rows[kPanel];
  size_t count = 0;
  int64_t row = index * m.panel_columns;  // in the weight that is looked at
  const auto columns = static_cast<size_t>(m.panel_columns);
  for (const formats::Weight& weight : rows_concatenated) {
    for (; row < weight.out && count < columns; ++row) rows[count++] = {&weight, row};
    row -= weight.out;
  }
  place_panel(m, {rows, count}, panel, row_scales);
}

// fn(panel) over the pool, panel by panel, as they are long and the next weight waits for the last.
// fn may throw: the error of the lowest panel leaves on this thread.
template <typename Fn>
void for_panels(const Ctx& ctx, const PanelMatrix& m, const Fn& fn) {
  std::mutex mutex;
  std::exception_ptr error;
  int64_t error_panel = m.num_panels;
  ctx.pool->run(m.num_panels, [&](int64_t panel, int) {
    try {
      fn(panel);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (panel < error_panel) error = std::current_exception();
      error_panel = std::min(error_panel, panel);
    }
  });
  if (error) std::rethrow_exception(error);
}

}  // namespace

int64_t element_bytes(const PanelMatrix& m) {
  const Geometry g = geometry(m.encoding);
  return m.padded_in / g.step * g.lines * kLineBytes;
}

int block_scale_bytes(Encoding encoding) { return geometry(encoding).scale_bytes; }

void reject(const formats::Weight& weight, int64_t row, const char* what) {
  fail("an {} weight holds a {} in row {}", weight.format->name, what, row);
}

uint8_t nvfp4_scale_byte(uint8_t magnitude) {
  int exponent = 0;
  const float fraction = std::frexp(formats::decode_fp8_e4m3(magnitude), &exponent);  // [1/2, 1)
  const int mantissa = static_cast<int>(fraction * 16.0f) - 8;
  return static_cast<uint8_t>((exponent - 1 + kNvfp4ScaleBias) * 8 + mantissa);
}

Encoding encoding_of(const formats::WeightFormat& format, formats::ActivationRounding activation) {
  if (activation == formats::ActivationRounding::kInt8) {
    if (&format == &formats::kMxfp4) return Encoding::kMxfp4Int8;
    if (&format == &formats::kNvfp4) return Encoding::kNvfp4Int8;
    if (&format == &formats::kInt4G32) return Encoding::kInt4Int8;
  }
  if (activation == formats::ActivationRounding::kBf16) return Encoding::kBf16Pairs;
  static constexpr std::pair<const formats::WeightFormat*, Encoding> kOwn[] = {
      {&formats::kBF16, Encoding::kBf16},   {&formats::kF16, Encoding::kF16},
      {&formats::kFp8, Encoding::kFp8},     {&formats::kFp8Block, Encoding::kFp8Block},
      {&formats::kMxfp4, Encoding::kMxfp4}, {&formats::kNvfp4, Encoding::kNvfp4},
      {&formats::kInt4G32, Encoding::kInt4}};
  for (const auto& [known, encoding] : kOwn) {
    if (known == &format) return encoding;
  }
  return Encoding::kF32;
}

PanelMatrix panel_matrix(const PreparedWeight& weight) {
  PanelMatrix m = shape_of(*weight.format, weight.activation, weight.out, weight.in);
  m.panels = weight.storage.data();
  if (geometry(m.encoding).row_scales) {
    m.row_scales = reinterpret_cast<const float*>(m.panels + m.num_panels * m.panel_bytes);
  }
  return m;
}

PreparedWeight prepare(const Ctx& ctx, std::span<const formats::Weight> rows_concatenated,
                       ActivationQuantization activation) {
  PreparedWeight prepared;
  prepared.in = rows_concatenated.front().in;
  prepared.format = rows_concatenated.front().format;
  for (const formats::Weight& weight : rows_concatenated) {
    if (weight.format != prepared.format) prepared.format = &formats::kF32;
  }
  prepared.activation = activation_rounding(*prepared.format, activation);
  for (const formats::Weight& weight : rows_concatenated) prepared.out += weight.out;

  const PanelMatrix m = shape_of(*prepared.format, prepared.activation, prepared.out, prepared.in);
  prepared.storage = Buffer::for_weights(static_cast<size_t>(storage_bytes(m)));
  std::byte* panels = prepared.storage.data();
  auto* scales = reinterpret_cast<float*>(panels + m.num_panels * m.panel_bytes);
  for_panels(ctx, m, [&](int64_t i) {
    place_panel_of(m, rows_concatenated, i, panels + i * m.panel_bytes,
                   scales + i * m.panel_columns);
  });
  return prepared;
}

}  // namespace eyrie::ops::cpu
