// Private to this room: the encoders the recipes are made of, each beside its format.
#pragma once

#include "formats/recipe.h"

namespace eyrie::formats {

// A value as the source's own arithmetic keeps it: rounded to its dtype after every operation.
inline float rounded_to(DType source, float value) {
  if (source == DType::kBF16) return to_float(to_bf16(value));
  if (source == DType::kF16) return decode_f16(encode_f16(value));
  return value;
}

// The dtype's spacing at 1, which torch-based producers put in place of a scale of zero.
inline float epsilon_of(DType source) {
  return source == DType::kBF16 ? 0x1.0p-7f : source == DType::kF16 ? 0x1.0p-10f : 0x1.0p-23f;
}

void encode_fp8(const EncodeArgs& args);
void encode_fp8_quark(const EncodeArgs& args);
void encode_fp8_compressed_tensors(const EncodeArgs& args);
void encode_fp8_block(const EncodeArgs& args);
void encode_fp8_block_transformers(const EncodeArgs& args);
void encode_mxfp4(const EncodeArgs& args);
void encode_mxfp4_signed(const EncodeArgs& args);
void encode_nvfp4_modelopt(const EncodeArgs& args);
void encode_nvfp4_quark(const EncodeArgs& args);
void encode_nvfp4_compressed_tensors(const EncodeArgs& args);
void encode_int4_compressed_tensors(const EncodeArgs& args);

float nvfp4_global_multiplier(float amax, DType source);
float nvfp4_global_quark(float amax, DType source);
float nvfp4_global_divisor(float amax, DType source);

}  // namespace eyrie::formats
