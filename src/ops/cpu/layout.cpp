#include "ops/cpu/layout.h"

#include <cstring>

#include "base/error.h"
#include "base/math.h"

namespace eyrie::ops::cpu {
namespace {

constexpr int kWords = kPanel / 2;  // 32-bit words of one kernel step
constexpr int kStepBytes = kWords * 4;
constexpr int kMxBlock = 32;

// Geometry of a matrix; panels and row_scales are still empty.
PanelMatrix shape_of(const formats::WeightFormat* format, int64_t out, int64_t in) {
  PanelMatrix m{.encoding = encoding_of(*format),
                .out = out,
                .in = in,
                .padded_in = in,
                .num_panels = div_ceil(out, kPanel),
                .panel_bytes = 0,
                .panels = nullptr,
                .row_scales = nullptr};
  switch (m.encoding) {
    case Encoding::kF32:
      m.panel_bytes = in * 2 * kStepBytes;
      break;
    case Encoding::kBf16:
      m.panel_bytes = in * kStepBytes;
      break;
    case Encoding::kFp8:
      m.padded_in = align_up(in, 2);
      m.panel_bytes = m.padded_in / 2 * kStepBytes;
      break;
    case Encoding::kMxfp4:
      CHECK(in % kMxBlock == 0, "mxfp4 weight [{}, {}]: columns are cut in blocks of 32", out, in);
      m.panel_bytes = align_up(in / 4 * kStepBytes + in / kMxBlock * kPanel, 64);
      break;
  }
  return m;
}

int64_t storage_bytes(const PanelMatrix& m) {
  const int64_t scales =
      m.encoding == Encoding::kFp8 ? m.num_panels * kPanel * int64_t{sizeof(float)} : 0;
  return m.num_panels * m.panel_bytes + scales;
}

// Puts row `row` of `weight` into column `c` of a zeroed panel.
void place_row(const PanelMatrix& m, const formats::Weight& weight, int64_t row, int c,
               std::byte* panel, float* row_scale) {
  const int word = c % kWords, half = c / kWords;
  switch (m.encoding) {
    case Encoding::kF32: {
      std::vector<float> values(static_cast<size_t>(m.in));
      weight.format->decode_row(weight, row, values);
      auto* out = reinterpret_cast<float*>(panel);
      for (int64_t k = 0; k < m.in; ++k) out[k * kPanel + c] = values[static_cast<size_t>(k)];
      return;
    }
    case Encoding::kBf16: {
      const auto* source = formats::row_of<uint16_t>(weight.data, row);
      auto* out = reinterpret_cast<uint16_t*>(panel) + 2 * word + half;
      for (int64_t k = 0; k < m.in; ++k) out[k * kPanel] = source[k];
      return;
    }
    case Encoding::kFp8: {
      const auto* source = formats::row_of<uint8_t>(weight.data, row);
      auto* out = reinterpret_cast<uint8_t*>(panel) + 4 * word + half;
      for (int64_t k = 0; k < m.in; ++k) {
        if ((source[k] & 0x7f) == 0x7f) fail("an fp8 weight holds a NaN in row {}", row);
        out[k / 2 * kStepBytes + k % 2 * 2] = source[k];
      }
      *row_scale = *formats::row_of<float>(weight.scales, row);
      return;
    }
    case Encoding::kMxfp4: {
      const auto* source = formats::row_of<uint8_t>(weight.data, row);
      auto* out = reinterpret_cast<uint8_t*>(panel) + 4 * word;
      for (int64_t k = 0; k < m.in; ++k) {
        const int nibble = (source[k / 2] >> (k % 2 * 4)) & 15;
        out[k / 4 * kStepBytes + k % 4] |= static_cast<uint8_t>(nibble << (half * 4));
      }
      const auto* scales = formats::row_of<uint8_t>(weight.scales, row);
      auto* scale_out = reinterpret_cast<uint8_t*>(panel) + m.in / 4 * kStepBytes + 2 * word + half;
      for (int64_t block = 0; block < m.in / kMxBlock; ++block) {
        if (scales[block] == 255) fail("an mxfp4 weight holds a NaN scale in row {}", row);
        scale_out[block * kPanel] = scales[block];
      }
      return;
    }
  }
}

}  // namespace

Encoding encoding_of(const formats::WeightFormat& format) {
  if (&format == &formats::kBF16) return Encoding::kBf16;
  if (&format == &formats::kFp8) return Encoding::kFp8;
  if (&format == &formats::kMxfp4) return Encoding::kMxfp4;
  return Encoding::kF32;
}

PanelMatrix panel_matrix(const PreparedWeight& weight) {
  PanelMatrix m = shape_of(weight.format, weight.out, weight.in);
  m.panels = weight.storage.data();
  if (m.encoding == Encoding::kFp8) {
    m.row_scales = reinterpret_cast<const float*>(m.panels + m.num_panels * m.panel_bytes);
  }
  return m;
}

PreparedWeight prepare(const Ctx&, std::span<const formats::Weight> rows_concatenated,
                       ActivationQuantization activation) {
  PreparedWeight prepared;
  prepared.in = rows_concatenated.front().in;
  prepared.format = rows_concatenated.front().format;
  for (const formats::Weight& weight : rows_concatenated) {
    if (weight.format != prepared.format) prepared.format = &formats::kF32;
  }
  if (activation == ActivationQuantization::kEmulate) {
    prepared.activation = prepared.format->activation;
  }
  for (const formats::Weight& weight : rows_concatenated) prepared.out += weight.out;

  const PanelMatrix m = shape_of(prepared.format, prepared.out, prepared.in);
  prepared.storage = Buffer(static_cast<size_t>(storage_bytes(m)));
  std::memset(prepared.storage.data(), 0, prepared.storage.bytes());
  auto* scales = reinterpret_cast<float*>(prepared.storage.data() + m.num_panels * m.panel_bytes);
  int64_t o = 0;
  for (const formats::Weight& weight : rows_concatenated) {
    for (int64_t row = 0; row < weight.out; ++row, ++o) {
      place_row(m, weight, row, static_cast<int>(o % kPanel),
                prepared.storage.data() + o / kPanel * m.panel_bytes, scales + o);
    }
  }
  return prepared;
}

}  // namespace eyrie::ops::cpu
