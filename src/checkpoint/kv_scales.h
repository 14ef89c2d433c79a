// Scales of an FP8 KV cache, stored beside an attention module under its producer's names:
//
//   compressed-tensors   self_attn.k_scale, self_attn.v_scale; once self_attn.kv_scale for both
//   ModelOpt             self_attn.k_proj.k_scale, self_attn.v_proj.v_scale
//   Quark                self_attn.k_proj.output_scale, self_attn.v_proj.output_scale; in latent
//                        attention kv_a_proj_with_mqa's (keys) and kv_b_proj's (values)
//
// One of the two stands for both.
#pragma once

#include <optional>
#include <string>

#include "checkpoint/checkpoint.h"

namespace eyrie::checkpoint {

struct KvScales {
  float k = 1.0f, v = 1.0f;
};

// What `files` hold for the attention module ("model.layers.3.self_attn"), nothing when there is
// none. Error naming the tensor when it is not one positive number.
std::optional<KvScales> find_kv_scales(const Checkpoint& files, const std::string& attention);

}  // namespace eyrie::checkpoint
