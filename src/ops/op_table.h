// A backend: one plain struct of function pointers, filled by name. An empty slot is a bug that the
// front reports by name, but for those in the second half, which the front makes of others where a
// backend has nothing better. No base class, no virtual, no #ifdef in callers.
#pragma once

#include "ops/ops.h"

namespace eyrie::ops {

struct OpTable {
  const char* name;
  // Whether the contents of what ops are given may be read on the host, and what lies between
  // matrix products.
  bool on_host = true;
  DType activation_dtype = DType::kF32;
  PreparedWeight (*prepare)(const Ctx&, std::span<const formats::Weight>, ActivationQuantization);
  void (*embedding)(const Ctx&, const EmbeddingArgs&);
  void (*rms_norm)(const Ctx&, const RmsNormArgs&);
  void (*add)(const Ctx&, const AddArgs&);
  void (*linear)(const Ctx&, const LinearArgs&);
  void (*head_linear)(const Ctx&, const HeadLinearArgs&);
  void (*silu_mul)(const Ctx&, const SiluMulArgs&);
  void (*rope)(const Ctx&, const RopeArgs&);
  void (*cache_write)(const Ctx&, const CacheWriteArgs&);
  void (*mla_attention)(const Ctx&, const MlaAttentionArgs&);
  void (*gqa_attention)(const Ctx&, const GqaAttentionArgs&);
  void (*route)(const Ctx&, const RouteArgs&);
  void (*experts)(const Ctx&, const ExpertsArgs&);
  void (*argmax)(const Ctx&, const ArgmaxArgs&);
  void (*gather_rows)(const Ctx&, const GatherRowsArgs&);
  void (*copy_rows)(const Ctx&, const CopyRowsArgs&);
  void (*scale_rows)(const Ctx&, const ScaleRowsArgs&);

  PlacedTensor (*place)(const Ctx&, const Tensor&) = nullptr;              // nullptr: where it is
  Buffer (*stack)(const Ctx&, std::span<const PreparedWeight>) = nullptr;  // nullptr: no table
  void (*add_rms_norm)(const Ctx&, const AddRmsNormArgs&) = nullptr;
  void (*mla_cache_write)(const Ctx&, const MlaCacheWriteArgs&) = nullptr;
  void (*mla_queries)(const Ctx&, const MlaQueriesArgs&) = nullptr;
  void (*moe)(const Ctx&, const MoeArgs&) = nullptr;
  void (*sample)(const Ctx&, const SampleArgs&) = nullptr;  // nullptr: the host samples
  // Whether `experts` takes shared experts along; otherwise the front adds them.
  bool experts_take_shared = false;
};

}  // namespace eyrie::ops
