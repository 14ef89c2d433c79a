// The oracle: every op as its formula, one value at a time, double accumulators, no threads, no
// layout. Slow on purpose; the other backends are compared with it, and a new reader starts here.
#pragma once

#include <span>

#include "ops/ops.h"

namespace eyrie::ops::reference {

PreparedWeight prepare(const Ctx& ctx, std::span<const formats::Weight> rows_concatenated,
                       ActivationQuantization activation);
void linear(const Ctx& ctx, const LinearArgs& args);
void head_linear(const Ctx& ctx, const HeadLinearArgs& args);
void experts(const Ctx& ctx, const ExpertsArgs& args);

void mla_attention(const Ctx& ctx, const MlaAttentionArgs& args);
void gqa_attention(const Ctx& ctx, const GqaAttentionArgs& args);
void cache_write(const Ctx& ctx, const CacheWriteArgs& args);

void embedding(const Ctx& ctx, const EmbeddingArgs& args);
void rms_norm(const Ctx& ctx, const RmsNormArgs& args);
void add(const Ctx& ctx, const AddArgs& args);
void silu_mul(const Ctx& ctx, const SiluMulArgs& args);
void rope(const Ctx& ctx, const RopeArgs& args);
void route(const Ctx& ctx, const RouteArgs& args);
void argmax(const Ctx& ctx, const ArgmaxArgs& args);

// x as hardware with the format's arithmetic would see it: one scale max|x| / 448 for the row and
// E4M3 elements, or one power of two for each 32 elements and E2M1 elements (the scale rule of
// formats/mxfp4.cpp), or formats::round_activation_….
void round_activation(formats::ActivationRounding rounding, float input_scale,
                      std::span<float> row);

// kInt8: codes of max|x| / 127 for each group of columns, and back (cpu/int8_layout.h has the
// rule).
void round_int8(int group, std::span<float> row);

}  // namespace eyrie::ops::reference
