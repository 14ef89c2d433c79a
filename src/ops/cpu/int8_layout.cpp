#include "ops/cpu/int8_layout.h"

#include <cmath>
#include <cstring>

#include "base/math.h"

namespace eyrie::ops::cpu {
namespace {

// Nibbles 0…3 of the lower half into the low nibbles of four bytes.
constexpr uint32_t spread(uint32_t half) {
  return (half & 0xf) | (half & 0xf0) << 4 | (half & 0xf00) << 8 | (half & 0xf000) << 12;
}

// Eight nibbles in the order of k as a panel's word.
constexpr uint32_t panel_word(uint32_t nibbles) {
  return spread(nibbles & 0xffff) | spread(nibbles >> 16) << 4;
}
static_assert(panel_word(0x76543210) == 0x73625140);

// What becomes of a group's eight nibbles at a time.
struct NibbleMasks {
  uint32_t keep = 0xffffffff, flip = 0;
};

NibbleMasks place_scale(Encoding encoding, const formats::Weight& weight, int64_t row,
                        int64_t group, std::byte* scales, int column) {
  if (encoding == Encoding::kInt4Int8) {
    const bf16 scale = formats::row_of<bf16>(weight.scales, row)[group];
    if (!std::isfinite(to_float(scale))) reject(weight, row, "scale that is not finite");
    std::memcpy(scales + 2 * column, &scale, sizeof scale);
    return {};
  }
  const uint8_t code = formats::row_of<uint8_t>(weight.scales, row)[group];
  if (encoding == Encoding::kMxfp4Int8) {
    if (code == 255) reject(weight, row, "NaN scale");
    scales[column] = std::byte{code};
    return {};
  }
  constexpr uint32_t kSigns = 0x88888888;
  const uint8_t magnitude = code & 0x7f;
  if (magnitude == 0x7f) reject(weight, row, "NaN scale");
  if (magnitude == 0) return {.keep = 0, .flip = 0};
  scales[column] = std::byte{nvfp4_scale_byte(magnitude)};
  return {.flip = code >= 0x80 ? kSigns : 0};
}

}  // namespace

int64_t int8_panel_bytes(Encoding encoding, int64_t in) {
  const Int8Geometry g = int8_geometry(encoding);
  const int64_t groups = in / g.group;
  return div_ceil(groups, g.groups_per_line()) * kLineBytes + groups * g.group_bytes();
}

void place_int8_row(Encoding encoding, const formats::Weight& weight, int64_t row, std::byte* panel,
                    int column) {
  const Int8Geometry g = int8_geometry(encoding);
  const auto* source = static_cast<const std::byte*>(weight.data.raw()) + row * (weight.in / 2);
  const int64_t groups = weight.in / g.group;
  std::byte* codes = panel;
  std::byte* scales = nullptr;
  for (int64_t group = 0; group < groups; ++group) {
    if (group % g.groups_per_line() == 0) {
      scales = codes;
      codes += kLineBytes;
    }
    const NibbleMasks masks = place_scale(encoding, weight, row, group, scales, column);
    scales += g.scale_bytes;
    for (int k = 0; k < g.group; k += kLineColumns) {
      uint32_t nibbles;
      std::memcpy(&nibbles, source, sizeof nibbles);
      const uint32_t word = panel_word((nibbles & masks.keep) ^ masks.flip);
      std::memcpy(codes + column * 4, &word, sizeof word);
      source += sizeof nibbles;
      codes += kLineBytes;
    }
  }
}

}  // namespace eyrie::ops::cpu
