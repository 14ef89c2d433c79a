#include "ops/cpu/layout.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/math.h"

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
  }
  return {.step = 1};
}

// Bytes of a panel's elements: what lies before its scales.
int64_t element_bytes(const PanelMatrix& m) {
  const int64_t steps = m.padded_in / geometry(m.encoding).step;
  return steps * kStepBytes * (m.encoding == Encoding::kF32 ? 2 : 1);
}

// Geometry of a matrix; panels and row_scales are still empty.
PanelMatrix shape_of(const formats::WeightFormat& format, int64_t out, int64_t in) {
  PanelMatrix m{.encoding = encoding_of(format),
                .out = out,
                .in = in,
                .padded_in = 0,
                .num_panels = div_ceil(out, kPanel),
                .panel_bytes = 0,
                .panels = nullptr,
                .row_scales = nullptr};
  const Geometry g = geometry(m.encoding);
  CHECK(format.fits(in), "{} weight [{}, {}]: columns are cut in blocks of {}", format.name, out,
        in, format.block_in);
  m.padded_in = align_up(in, g.step);
  const int64_t blocks = g.block == 0 ? 0 : div_ceil(in, g.block);
  m.panel_bytes = align_up(element_bytes(m) + blocks * g.scale_bytes, 64);
  return m;
}

int64_t storage_bytes(const PanelMatrix& m) {
  const bool scales = geometry(m.encoding).row_scales;
  return m.num_panels * (m.panel_bytes + (scales ? kPanel * int64_t{sizeof(float)} : 0));
}

// One row's place in a zeroed panel: column c is word c % 16, its lower or upper half.
struct Column {
  std::byte* elements;
  std::byte* scales;  // of the panel's first block
  int word, half;
};

[[noreturn]] void reject(const formats::Weight& weight, int64_t row, const char* what) {
  fail("an {} weight holds a {} in row {}", weight.format->name, what, row);
}

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

// The byte of an E4M3 magnitude > 0 (kNvfp4ScaleBias): subnormals become normal.
uint8_t nvfp4_scale_byte(uint8_t magnitude) {
  int exponent = 0;
  const float fraction = std::frexp(formats::decode_fp8_e4m3(magnitude), &exponent);  // [1/2, 1)
  const int mantissa = static_cast<int>(fraction * 16.0f) - 8;
  return static_cast<uint8_t>((exponent - 1 + kNvfp4ScaleBias) * 8 + mantissa);
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

// Puts row `row` of `weight` into its column of a zeroed panel.
void place_row(Encoding encoding, const formats::Weight& weight, int64_t row, const Column& column,
               float* row_scale) {
  switch (encoding) {
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
  }
}

}  // namespace

Encoding encoding_of(const formats::WeightFormat& format) {
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
  PanelMatrix m = shape_of(*weight.format, weight.out, weight.in);
  m.panels = weight.storage.data();
  if (geometry(m.encoding).row_scales) {
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

  const PanelMatrix m = shape_of(*prepared.format, prepared.out, prepared.in);
  prepared.storage = Buffer(static_cast<size_t>(storage_bytes(m)));
  std::memset(prepared.storage.data(), 0, prepared.storage.bytes());
  auto* scales = reinterpret_cast<float*>(prepared.storage.data() + m.num_panels * m.panel_bytes);
  int64_t o = 0;
  for (const formats::Weight& weight : rows_concatenated) {
    for (int64_t row = 0; row < weight.out; ++row, ++o) {
      std::byte* panel = prepared.storage.data() + o / kPanel * m.panel_bytes;
      const auto c = static_cast<int>(o % kPanel);
      place_row(m.encoding, weight, row,
                {.elements = panel,
                 .scales = panel + element_bytes(m),
                 .word = c % kWords,
                 .half = c / kWords},
                scales + o);
    }
  }
  return prepared;
}

}  // namespace eyrie::ops::cpu
