#include "checkpoint/kv_scales.h"

#include <cmath>
#include <cstring>
#include <initializer_list>

#include "base/error.h"
#include "formats/weight.h"

namespace eyrie::checkpoint {
namespace {

float positive_number(const Checkpoint& files, const std::string& name, const Tensor& tensor) {
  const DType dtype = tensor.dtype();
  const bool is_float = dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
  if (tensor.num_elements() != 1 || !is_float) {
    fail("{}: {} is {}, expected one number (F32, BF16 or F16)", files.path(), name,
         tensor.shape_string());
  }
  float value = 0;
  uint16_t half = 0;
  std::memcpy(&value, tensor.raw(), dtype == DType::kF32 ? sizeof value : 0);
  std::memcpy(&half, tensor.raw(), dtype == DType::kF32 ? 0 : sizeof half);
  if (dtype == DType::kBF16) value = to_float(bf16{half});
  if (dtype == DType::kF16) value = formats::decode_f16(half);
  if (!(value > 0) || !std::isfinite(value)) {
    fail("{}: {} is {}, expected a positive number", files.path(), name, value);
  }
  return value;
}

// The first of the names that is in the files.
std::optional<float> find_scale(const Checkpoint& files, const std::string& attention,
                                std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const std::string full = attention + name;
    const Tensor* tensor = files.find(full);
    if (tensor != nullptr) return positive_number(files, full, *tensor);
  }
  return std::nullopt;
}

}  // namespace

std::optional<KvScales> find_kv_scales(const Checkpoint& files, const std::string& attention) {
  const std::optional<float> k =
      find_scale(files, attention,
                 {".k_scale", ".k_proj.k_scale", ".k_proj.output_scale",
                  ".kv_a_proj_with_mqa.k_scale", ".kv_a_proj_with_mqa.output_scale", ".kv_scale"});
  const std::optional<float> v =
      find_scale(files, attention,
                 {".v_scale", ".v_proj.v_scale", ".v_proj.output_scale", ".kv_b_proj.v_scale",
                  ".kv_b_proj.output_scale", ".kv_scale"});
  if (!k && !v) return std::nullopt;
  return KvScales{.k = k.value_or(v.value_or(1.0f)), .v = v.value_or(k.value_or(1.0f))};
}

}  // namespace eyrie::checkpoint
