#include "apps/eyrie/engine_setup.h"

#include "runtime/step_calibration.h"

namespace eyrie::apps {
namespace {

// Scratch of the largest step: a generous count of float32 values a token (residual, projections,
// expert slots, captured states).
int64_t workspace_bytes(const model::ModelConfig& model, int64_t tokens) {
  const int64_t values = 24 * model.hidden_size +
                         4 * model.num_attention_heads * model.kv_lora_rank +
                         4 * model.num_experts_per_tok * model.hidden_size;
  return tokens * values * static_cast<int64_t>(sizeof(float));
}

}  // namespace

KvPlan plan_cache(const ServeConfig& config, runtime::Runner& runner) {
  KvDemand demand = config.kv;
  if (runner.gpu() != nullptr) {
    runner.warm_up_device();
    const ops::gpu::MemoryState memory = runner.gpu()->memory();
    demand.memory_bytes = static_cast<int64_t>(memory.total_bytes);
    // Whoever else uses the device is counted with our weights and scratch.
    demand.weights_bytes = static_cast<int64_t>(memory.total_bytes - memory.free_bytes);
  } else {
    demand.memory_bytes = usable_memory_bytes();
    demand.weights_bytes =
        static_cast<int64_t>(runner.load_report().target_bytes + runner.load_report().draft_bytes);
    demand.workspace_bytes = workspace_bytes(runner.model_config(), config.max_num_batched_tokens);
  }
  demand.bytes_per_token = runner.kv_bytes_per_token();
  demand.model_max_len = runner.model_config().max_position_embeddings;
  return plan_kv(demand);
}

engine::EngineConfig engine_config(const ServeConfig& config, const KvPlan& plan) {
  engine::EngineConfig out;
  out.scheduler = {
      .max_num_seqs = config.max_num_seqs,
      .max_num_batched_tokens = config.max_num_batched_tokens,
      .max_model_len = static_cast<int32_t>(plan.max_model_len),
      .block_size = static_cast<int32_t>(plan.block_size),
      .num_blocks = static_cast<int32_t>(plan.num_blocks),
      .enable_prefix_caching = config.enable_prefix_caching,
      .num_speculative_tokens = config.speculative ? config.speculative->num_speculative_tokens : 0,
      .draft_keeps_kv = !config.runner.draft.empty()};
  out.seed = config.seed;
  out.max_sequences = config.max_num_seqs + config.max_queued_requests;
  out.health_deadline = config.step_deadline;
  out.log_interval = config.log_stats ? config.log_interval : std::chrono::seconds(0);
  out.synthetic_acceptance =
      config.speculative && !config.speculative->synthetic_acceptance.empty();
  return out;
}

sched::DraftSizerConfig size_drafts(const SpeculativeConfig& speculative, int32_t max_num_seqs,
                                    runtime::Runner& runner) {
  return {.num_speculative_tokens = speculative.num_speculative_tokens,
          .costs = runtime::calibrate_steps(
              runner, {.num_speculative_tokens = speculative.num_speculative_tokens,
                       .max_num_seqs = max_num_seqs}),
          .draft_always_follows = runner.gpu() != nullptr,
          .keeps_account = !speculative.ngram.has_value()};
}

}  // namespace eyrie::apps
