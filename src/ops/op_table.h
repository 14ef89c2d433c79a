// A backend: one plain struct of function pointers, filled by name. An empty slot is a bug that the
// front reports by name. No base class, no virtual, no #ifdef in callers.
#pragma once

#include "ops/ops.h"

namespace eyrie::ops {

struct OpTable {
  const char* name;
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
};

}  // namespace eyrie::ops
