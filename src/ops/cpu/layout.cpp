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

namespace eyrie::ops::cpu {
namespace {

constexpr int kWords = kPanel / 2;  // 32-bit words of one kernel step
constexpr int kStepBytes = kWords * 4;

struct Geometry {
  int step;             // k a step
  int block = 0;        // k that share a scale; 0: none in the panel
  int scale_bytes = 0;  // of a block, all 32 columns
  bool row_scales = false;
};

constexpr Geometry geometry(Encoding encoding) {
  switch (encoding) {
    case Encoding::kF32:
    case Encoding::kBf16:
    case Encoding::kF16:
      break;
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

// Bytes of a panel's elements: what lies before its scales.
int64_t element_bytes(const PanelMatrix& m) {
  const int64_t steps = m.padded_in / geometry(m.encoding).step;
  return steps * kStepBytes * (m.encoding == Encoding::kF32 ? 2 : 1);
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

// One row's place in a zeroed panel: column c is word c % 16, its lower or upper half.
struct Column {
  std::byte* elements;
  std::byte* scales;  // of the panel's first block
  int word, half;
};

void place_floats(const formats::Weight& weight, int64_t row, const Column& column) {
  std::vector<float> values(static_cast<size_t>(weight.in));
  weight.format->decode_row(weight, row, values);
  auto* out = reinterpret_cast<float*>(column.elements) + column.word + column.half * kWords;
  for (const float value : values) {
    *out = value;
    out += kPanel;
  }
}

void place_halves(const formats::Weight& weight, int64_t row, const Column& column) {
  const auto* source = formats::row_of<uint16_t>(weight.data, row);
  auto* out = reinterpret_cast<uint16_t*>(column.elements) + 2 * column.word + column.half;
  for (int64_t k = 0; k < weight.in; ++k) out[k * kPanel] = source[k];
}

// The kernel's decoding has no room for float16's infinities and NaN.
void place_f16(const formats::Weight& weight, int64_t row, const Column& column) {
  const auto* source = formats::row_of<uint16_t>(weight.data, row);
  const bool finite = std::all_of(source, source + weight.in,
                                  [](uint16_t bits) { return (bits & 0x7c00) != 0x7c00; });
  if (!finite) reject(weight, row, "number that is not finite");
  place_halves(weight, row, column);
}

void place_fp8(const formats::Weight& weight, int64_t row, const Column& column) {
  const auto* source = formats::row_of<uint8_t>(weight.data, row);
  auto* out = reinterpret_cast<uint8_t*>(column.elements) + 4 * column.word + column.half;
  for (int64_t k = 0; k < weight.in; ++k) {
    if ((source[k] & 0x7f) == 0x7f) reject(weight, row, "NaN");
    out[k / 2 * kStepBytes + k % 2 * 2] = source[k];
  }
}

void place_fp8_scales(const formats::Weight& weight, int64_t row, const Column& column) {
  const int64_t block_row = (weight.first_row + row) / weight.format->block_out;
  const auto* source = formats::row_of<float>(weight.scales, block_row);
  auto* out = reinterpret_cast<float*>(column.scales) + column.word + column.half * kWords;
  for (int64_t b = 0; b < weight.format->scale_columns(weight.in); ++b) {
    const float scale = source[b] * kFp8OutputScale;
    if (!std::isfinite(scale)) reject(weight, row, "scale that is NaN or beyond 2^72");
    out[b * kPanel] = scale;
  }
}

// masks(b) → {and, xor} of the nibbles of block b.
struct NibbleMasks {
  uint8_t keep = 15, flip = 0;
};

template <typename MasksOf>
void place_nibbles(const formats::Weight& weight, int64_t row, const Column& column,
                   const MasksOf& masks) {
  const auto* source = static_cast<const uint8_t*>(weight.data.raw()) + row * (weight.in / 2);
  auto* out = reinterpret_cast<uint8_t*>(column.elements) + 4 * column.word;
  const int64_t block = weight.format->block_in;
  for (int64_t begin = 0; begin < weight.in; begin += block) {
    const NibbleMasks mask = masks(begin / block);
    for (int64_t k = begin; k < begin + block; ++k) {
      const int nibble = ((source[k / 2] >> (k % 2 * 4)) & mask.keep) ^ mask.flip;
      out[k / 4 * kStepBytes + k % 4] |= static_cast<uint8_t>(nibble << (column.half * 4));
    }
  }
}

void place_mxfp4(const formats::Weight& weight, int64_t row, const Column& column) {
  place_nibbles(weight, row, column, [](int64_t) { return NibbleMasks{}; });
  const auto* source = formats::row_of<uint8_t>(weight.scales, row);
  auto* out = reinterpret_cast<uint8_t*>(column.scales) + 2 * column.word + column.half;
  for (int64_t b = 0; b < weight.format->scale_columns(weight.in); ++b) {
    if (source[b] == 255) reject(weight, row, "NaN scale");
    out[b * kPanel] = source[b];
  }
}

void place_nvfp4(const formats::Weight& weight, int64_t row, const Column& column) {
  const auto* source = formats::row_of<uint8_t>(weight.scales, row);
  constexpr uint8_t kSign = 8;  // of a nibble
  place_nibbles(weight, row, column, [&](int64_t b) {
    const bool zero = (source[b] & 0x7f) == 0;
    return NibbleMasks{.keep = zero ? uint8_t{0} : uint8_t{15},
                       .flip = !zero && source[b] >= 0x80 ? kSign : uint8_t{0}};
  });
  auto* out = reinterpret_cast<uint8_t*>(column.scales) + 2 * column.word + column.half;
  for (int64_t b = 0; b < weight.format->scale_columns(weight.in); ++b) {
    const uint8_t magnitude = source[b] & 0x7f;
    if (magnitude == 0x7f) reject(weight, row, "NaN scale");
    if (magnitude != 0) out[b * kPanel] = nvfp4_scale_byte(magnitude);
  }
}

void place_int4(const formats::Weight& weight, int64_t row, const Column& column) {
  place_nibbles(weight, row, column, [](int64_t) { return NibbleMasks{}; });
  const auto* source = formats::row_of<bf16>(weight.scales, row);
  auto* out = reinterpret_cast<bf16*>(column.scales) + 2 * column.word + column.half;
  for (int64_t b = 0; b < weight.format->scale_columns(weight.in); ++b) {
    if (!std::isfinite(to_float(source[b]))) reject(weight, row, "scale that is not finite");
    out[b * kPanel] = source[b];
  }
}

// Puts row `row` of `weight` into column c of a zeroed panel.
void place_row(const PanelMatrix& m, const formats::Weight& weight, int64_t row, std::byte* panel,
               int c, float* row_scale) {
  const Column column{.elements = panel,
                      .scales = panel + element_bytes(m),
                      .word = c % kWords,
                      .half = c / kWords};
  switch (m.encoding) {
    case Encoding::kF32:
      return place_floats(weight, row, column);
    case Encoding::kBf16:
      return place_halves(weight, row, column);
    case Encoding::kF16:
      return place_f16(weight, row, column);
    case Encoding::kFp8:
      *row_scale = *formats::row_of<float>(weight.scales, row);
      return place_fp8(weight, row, column);
    case Encoding::kFp8Block:
      place_fp8_scales(weight, row, column);
      return place_fp8(weight, row, column);
    case Encoding::kMxfp4:
      return place_mxfp4(weight, row, column);
    case Encoding::kNvfp4:
      *row_scale = weight.global_scale;
      return place_nvfp4(weight, row, column);
    case Encoding::kInt4:
      return place_int4(weight, row, column);
    case Encoding::kNvfp4Int8:
      *row_scale = weight.global_scale;
      [[fallthrough]];
    case Encoding::kMxfp4Int8:
    case Encoding::kInt4Int8:
      return place_int8_row(m.encoding, weight, row, panel, c);
  }
}

// Panel `index` of the rows one after the other.
void place_panel(const PanelMatrix& m, std::span<const formats::Weight> rows_concatenated,
                 int64_t index, std::byte* panel, float* row_scales) {
  int64_t row = index * m.panel_columns;  // in the weight that is looked at
  int column = 0;
  for (const formats::Weight& weight : rows_concatenated) {
    for (; row < weight.out && column < m.panel_columns; ++row, ++column) {
      place_row(m, weight, row, panel, column, row_scales + column);
    }
    row -= weight.out;
  }
}

// for_rows() for a function that may throw: the error of the lowest row leaves on this thread.
template <typename Fn>
void for_rows_or_throw(const Ctx& ctx, int64_t num_rows, double ns_per_row, const Fn& fn) {
  std::mutex mutex;
  std::exception_ptr error;
  int64_t error_row = num_rows;
  for_rows(ctx, num_rows, ns_per_row, [&](int64_t row) {
    try {
      fn(row);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (row < error_row) error = std::current_exception();
      error_row = std::min(error_row, row);
    }
  });
  if (error) std::rethrow_exception(error);
}

}  // namespace

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
  constexpr double kNsPerByte = 1;
  for_rows_or_throw(ctx, m.num_panels, static_cast<double>(m.panel_bytes) * kNsPerByte,
                    [&](int64_t i) {
                      place_panel(m, rows_concatenated, i, panels + i * m.panel_bytes,
                                  scales + i * m.panel_columns);
                    });
  return prepared;
}

}  // namespace eyrie::ops::cpu
