// What stands between a ServeConfig with a loaded Runner and an Engine: the size of the KV cache,
// the engine's options, the measured costs that draft lengths start from. `serve` and the
// benchmarks that run the engine in this process share it, so that they measure what is served.
#pragma once

#include "apps/eyrie/serve_config.h"
#include "engine/engine.h"
#include "runtime/runner.h"

namespace eyrie::apps {

// Error when not even one context fits, with what would.
// On a GPU the largest step runs once first: what the device has left then is what there is.
KvPlan plan_cache(const ServeConfig& config, runtime::Runner& runner);

engine::EngineConfig engine_config(const ServeConfig& config, const KvPlan& plan);

// What the sizer starts from: the costs of steps on this machine, measured now (the cache must be
// there).
sched::DraftSizerConfig size_drafts(const SpeculativeConfig& speculative, int32_t max_num_seqs,
                                    runtime::Runner& runner);

}  // namespace eyrie::apps
