#include "tensor/dtype.h"

#include <array>
#include <utility>

namespace eyrie {
namespace {

constexpr std::array<std::pair<DType, std::string_view>, 9> kNames = {{
    {DType::kF32, "F32"},
    {DType::kBF16, "BF16"},
    {DType::kF16, "F16"},
    {DType::kF8E4M3, "F8_E4M3"},
    {DType::kU8, "U8"},
    {DType::kI8, "I8"},
    {DType::kI32, "I32"},
    {DType::kI64, "I64"},
    {DType::kBool, "BOOL"},
}};

}  // namespace

std::string_view dtype_name(DType dtype) {
  for (const auto& [value, name] : kNames) {
    if (value == dtype) return name;
  }
  return "?";
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const auto& [value, known] : kNames) {
    if (known == name) return value;
  }
  return std::nullopt;
}

}  // namespace eyrie
