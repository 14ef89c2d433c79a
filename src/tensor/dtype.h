// Element types as they lie in files and memory, and the 16-bit float type of this program.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace eyrie {

enum class DType : uint8_t { kF32, kBF16, kF16, kF8E4M3, kU8, kI8, kI32, kI64, kBool, kF64 };

constexpr size_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::kI64:
    case DType::kF64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
      return 2;
    case DType::kF8E4M3:
    case DType::kU8:
    case DType::kI8:
    case DType::kBool:
      return 1;
  }
  return 0;
}

// safetensors' spelling: "F32", "BF16", "F8_E4M3", "U8" …
std::string_view dtype_name(DType dtype);
std::optional<DType> dtype_from_name(std::string_view name);

// bfloat16: the upper half of a float32.
struct bf16 {
  uint16_t bits = 0;
};

inline float to_float(bf16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }

// Round to nearest even; NaN stays NaN (quietened).
inline bf16 to_bf16(float x) {
  // Both ways and a choice, so that loops of it can be vectorised.
  const auto u = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const uint32_t quiet_nan = (u >> 16) | 0x40u;
  return {static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded)};
}

template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOf<bf16> {
  static constexpr DType value = DType::kBF16;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::kU8;
};
template <>
struct DTypeOf<int8_t> {
  static constexpr DType value = DType::kI8;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::kF64;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::kI64;
};

}  // namespace eyrie
