// Executes StepPlans with a target model and, optionally, an EAGLE-3 draft or look-up in the text,
// on one device: the CPU, or a GPU (device_target.h, device_drafter.h), where tokens that need more
// than a plain draw are still sampled here, from a copy of their logits.
//
//   plan → batch rows → target forward → logits of the rows that need them → sample and verify
//        → draft catch-up over the newly known positions → chain of K-1 single-token draft steps
//
// Verification: row j of a sequence gives the target's own sample for the position after its j-th
// token, drawn with noise keyed by (seed, position) as if there were no draft. Draft d_j is
// accepted when it equals that sample; the first unequal sample is emitted and ends the run. So the
// text with drafts is, token for token, the text without, greedy or sampled, and its distribution
// is exactly the target's: drafts can only make it arrive sooner.
//
// Rejected positions need no clean-up: their KV slots lie past the known tokens and are overwritten
// before anything reads them. The draft's KV of accepted positions is rewritten from true features
// by the next catch-up.
//
// Engine thread only. After warm-up execute() allocates nothing but the logprobs asked for.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/threads.h"
#include "model/eagle3.h"
#include "model/kimi_k25.h"
#include "runtime/device_drafter.h"
#include "runtime/device_target.h"
#include "runtime/draft_backlog.h"
#include "runtime/drafter.h"
#include "runtime/kv_storage.h"
#include "runtime/model_runner.h"
#include "runtime/ngram.h"

namespace eyrie::runtime {

enum class DeviceKind { kCpu, kGpu };

struct RunnerConfig {
  std::string model;                 // a folder
  std::string draft;                 // a folder; empty: no draft model
  std::optional<NgramConfig> ngram;  // drafts looked up in the text, instead of a draft model
  // For measuring without a trained draft: draft j is accepted with this chance, whatever the
  // target says, and becomes the text (which is then nonsense). Cumulative; empty: the truth.
  std::vector<double> synthetic_acceptance;
  nlohmann::json hf_overrides;  // merged into the target's config.json
  bool load_dummy = false;      // made-up weights; the folders need only config.json
  model::AuxLayerIds aux_layer_ids = model::AuxLayerIds::kGuess;
  bool fp8_draft_head = false;  // model::Eagle3::load
  ops::ActivationQuantization activation = ops::ActivationQuantization::kAuto;  // on a CPU
  KvCacheDType kv_cache_dtype = KvCacheDType::kAuto;
  int num_threads = 0;  // 0: all cores this process may use
  // On a CPU, rows of a step that go through the target at once, whose intermediate values take
  // memory; 0: as many as the model's experts want. Results do not depend on it.
  int64_t rows_per_pass = 0;
  // For the features of positions that the draft takes in later; 0: a sixteenth of the KV cache.
  int64_t max_backlog_bytes = 0;
  bool use_reference_ops = false;  // the readable float32 oracle instead of the fast kernels
  DeviceKind device = DeviceKind::kCpu;
  int device_index = 0;
  bool deterministic = false;  // on a GPU: a row's result does not depend on its batch
  bool enforce_eager = false;  // on a GPU: no step is recorded
  // On a GPU scratch is sized for steps of this many rows and sequences, with so many drafts.
  int32_t max_num_batched_tokens = 2048;
  int32_t max_num_seqs = 256;
  int32_t num_speculative_tokens = 0;
};

struct LoadReport {
  size_t target_bytes = 0;  // weights one pass reads
  size_t draft_bytes = 0;
  double target_seconds = 0;
  double draft_seconds = 0;
};

class Runner final : public ModelRunner {
 public:
  // Loads everything but the KV cache; Error when files do not fit each other.
  explicit Runner(const RunnerConfig& config);
  ~Runner() override;

  const model::ModelConfig& model_config() const { return target_->config(); }
  const model::Eagle3Config* draft_config() const {
    return draft_.has_value() ? &draft_->config() : nullptr;
  }
  const model::KimiK25& target() const { return *target_; }
  const model::Eagle3* draft() const { return draft_.has_value() ? &*draft_ : nullptr; }
  const LoadReport& load_report() const { return load_report_; }
  const KvLayout& kv_layout() const { return kv_layout_; }
  int64_t kv_bytes_per_token() const { return kv_layout_.bytes_per_token(); }
  int num_threads() const { return pool_.size(); }
  const ops::gpu::GpuDevice* gpu() const { return gpu_.get(); }  // nullptr on the CPU
  // On a GPU, before allocate_kv(): runs the largest step once, so that its scratch exists and what
  // the device has left is what the cache can have.
  void warm_up_device();
  void warm_up_target();
  void warm_up_drafter();

  // Once, before the first execute(). block_size is a multiple of ops::kAttentionTile.
  void allocate_kv(int64_t num_blocks, int32_t block_size);
  KvStorage& kv() { return *kv_; }

  void add_sequence(sched::SequenceId seq_id, std::span<const TokenId> prompt,
                    const SamplingParams& params) override;
  void remove_sequence(sched::SequenceId seq_id) override;
  // A row whose logits hold NaN or infinity has extras.numeric_fault and samples nothing: the
  // engine aborts that sequence before it calls Scheduler::update().
  const StepOutput& execute(const sched::StepPlan& plan) override;
  // On a GPU the target runs between them.
  bool runs_ahead() const override { return gpu_ != nullptr; }
  void launch(const sched::StepPlan& plan) override;
  const StepOutput& finish() override;

  int64_t num_steps() const { return num_steps_; }  // since the start
  int64_t num_lost_features() const { return backlog_ ? backlog_->num_lost() : 0; }  // likewise
  const Arena& arena() const { return *arena_; }
  // Named intermediates of every forward, for golden tests; null turns it off.
  void set_tap_sink(const model::TapSink* sink) { tap_sink_ = sink; }

 private:
  struct Sequence;
  // The rows of the step in hand, as the model wants them.
  struct Batch {
    std::vector<int32_t> ids;
    std::vector<int32_t> positions;
    std::vector<ops::SequenceRows> sequences;     // one per plan row
    std::vector<ops::SequenceRows> of_pass;       // their parts in rows that go through at once
    std::vector<int32_t> first_rows;              // of each plan row, in the batch
    std::vector<Sequence*> owners;                // of each plan row
    std::vector<const SamplingParams*> params;    // of each plan row
    std::vector<std::span<const TokenId>> texts;  // of each plan row, after sampling
    std::vector<int32_t> logit_rows;              // batch rows that are sampled
    std::vector<int32_t> scored_rows;             // batch rows whose next prompt token is scored
    std::vector<ops::SampleRow> samples;          // of the logit rows, for a device
    std::vector<int32_t> table_sizes;             // of each plan row
  };

  void open_device(const RunnerConfig& config);
  void load(const RunnerConfig& config);
  void make_device_steps(bool enforce_eager);
  void begin_step(const sched::StepPlan& plan);
  void start_on_device(const sched::StepPlan& plan);
  bool is_sampled_on_device(const Sequence& sequence) const;
  int64_t num_aux_values() const;
  void build_batch(const sched::StepPlan& plan);
  model::Step target_step();
  Tensor run_target(Tensor aux);
  void sample_rows(const sched::StepPlan& plan, Tensor hidden);
  void sample_row(const sched::StepRow& row, Sequence& sequence, int64_t first_logit,
                  sched::RowResult& result, RowExtras& extras);
  TokenId sample_at(int64_t logit_idx, const Sequence& sequence, int64_t position, Logprobs* out);
  bool accepts(const Sequence& sequence, TokenId draft, TokenId& sample, int32_t draft_idx) const;
  void propose(const sched::StepPlan& plan, Tensor aux);
  void score_prompt(const sched::StepRow& row, size_t row_idx, Tensor hidden);

  ThreadPool pool_;
  std::unique_ptr<ops::gpu::GpuDevice> gpu_;  // outlives all that lies in its memory
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Arena> draft_arena_;  // on a GPU: both parts of a step are recorded by themselves
  ops::Ctx ctx_;
  DeviceLimits device_limits_;
  std::optional<checkpoint::Checkpoint> target_files_;  // mapped weights are read where they lie
  std::optional<checkpoint::Checkpoint> draft_files_;
  std::optional<model::KimiK25> target_;
  std::optional<model::Eagle3> draft_;
  KvLayout kv_layout_;
  std::optional<KvStorage> kv_;
  std::optional<DraftBacklog> backlog_;
  std::optional<DeviceTarget> device_target_;
  std::optional<DeviceDrafter> device_drafter_;
  Tensor logits_;  // of the step's logit rows; a device keeps its own
  std::optional<Sampler> sampler_;
  std::optional<Drafter> drafter_;
  std::optional<NgramProposer> ngram_;
  std::vector<double> synthetic_acceptance_;
  std::unordered_map<sched::SequenceId, std::unique_ptr<Sequence>> sequences_;
  Batch batch_;
  int64_t rows_per_pass_ = 0;
  StepOutput output_;
  StepOutput spare_;  // entries that the last plans did not need; their memory is reused
  LoadReport load_report_;
  int64_t num_steps_ = 0;
  const sched::StepPlan* launched_ = nullptr;
  std::chrono::steady_clock::time_point launched_at_;
  int64_t max_backlog_bytes_ = 0;
  bool is_warm_ = false;
  const model::TapSink* tap_sink_ = nullptr;
};

}  // namespace eyrie::runtime
