#include "runtime/runner.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/math.h"
#include "ops/gpu/backend.h"
#include "ops/gpu/device.h"
#include "runtime/stopwatch.h"

namespace eyrie::runtime {
namespace {

// Logits of a scored prompt are made in slabs, so that a long prompt of a large vocabulary needs no
// more memory than a batch of samples.
constexpr int64_t kScoreSlab = 64;

// Parameters whose made-up values are drawn one by one: seconds of work. Larger models repeat a
// pattern.
constexpr double kMostMadeUp = 2e9;

// Rows that go through a CPU's layers at once: enough for each expert that reading its weights
// anew for the next ones is little beside multiplying with them.
int64_t default_rows_per_pass(const model::ModelConfig& config) {
  constexpr int64_t kFewest = 256, kRowsOfExpert = 32;
  if (config.num_experts_per_tok == 0) return kFewest;
  return std::max(kFewest, kRowsOfExpert * config.n_routed_experts / config.num_experts_per_tok);
}

// Resizes without giving up the memory of elements that are not needed now.
template <typename T>
void resize_keeping(std::vector<T>& items, std::vector<T>& spare, size_t size) {
  while (items.size() > size) {
    spare.push_back(std::move(items.back()));
    items.pop_back();
  }
  while (items.size() < size && !spare.empty()) {
    items.push_back(std::move(spare.back()));
    spare.pop_back();
  }
  items.resize(size);
}

std::span<const float> row_of(Tensor logits, int64_t row) {
  const auto width = static_cast<size_t>(logits.dim(1));
  return {logits.data<float>() + row * logits.stride(0), width};
}

}  // namespace

struct Runner::Sequence {
  Sequence(std::span<const TokenId> prompt, const SamplingParams& sampling, int64_t vocab_size)
      : params(sampling),
        history(prompt, params, vocab_size),
        text(prompt.begin(), prompt.end()),
        num_prompt_tokens(static_cast<int32_t>(prompt.size())) {
    constexpr int32_t kMostReserved = 1 << 16;
    text.reserve(prompt.size() + static_cast<size_t>(std::min(params.max_tokens, kMostReserved)));
  }

  SamplingParams params;
  TokenHistory history;
  std::vector<TokenId> text;  // prompt and output
  int32_t num_prompt_tokens;
};

// ---- loading ------------------------------------------------------------------------------------

Runner::Runner(const RunnerConfig& config) : pool_(config.num_threads) {
  if (config.device == DeviceKind::kGpu) {
    open_device(config);
  } else {
    arena_ = std::make_unique<Arena>();
    ctx_.table = config.use_reference_ops ? &ops::reference_ops() : &ops::cpu_ops();
  }
  ctx_.pool = &pool_;
  ctx_.arena = arena_.get();
  load(config);
  if (gpu_ != nullptr) ops::gpu::release_upload();
  kv_layout_ = choose_kv_layout(config.kv_cache_dtype,
                                {.target_files = *target_files_,
                                 .target = *target_,
                                 .draft_files = draft_files_ ? &*draft_files_ : nullptr,
                                 .draft = draft_ ? &*draft_ : nullptr});
  sampler_.emplace(target_->config().vocab_size);
  if (draft_.has_value()) drafter_.emplace(*draft_);
  if (config.ngram.has_value()) ngram_.emplace(*config.ngram);
  synthetic_acceptance_ = config.synthetic_acceptance;
  max_backlog_bytes_ = config.max_backlog_bytes;
  rows_per_pass_ =
      config.rows_per_pass > 0 ? config.rows_per_pass : default_rows_per_pass(target_->config());
}

Runner::~Runner() = default;

void Runner::open_device(const RunnerConfig& config) {
  constexpr size_t kFirstScratch = size_t{32} << 20;
  gpu_ = std::make_unique<ops::gpu::GpuDevice>(config.device_index);
  arena_ = std::make_unique<Arena>(kFirstScratch, ops::gpu::device_memory());
  draft_arena_ = std::make_unique<Arena>(kFirstScratch, ops::gpu::device_memory());
  ctx_.table = &ops::gpu_ops();
  ctx_.stream = gpu_->stream();
  ctx_.deterministic = config.deterministic;
  device_limits_ = {.max_tokens = config.max_num_batched_tokens,
                    .max_sequences = config.max_num_seqs,
                    .max_rows_each = 1 + config.num_speculative_tokens,
                    .enforce_eager = config.enforce_eager};
}

void Runner::load(const RunnerConfig& config) {
  const auto activation =
      config.device == DeviceKind::kGpu ? ops::ActivationQuantization::kOff : config.activation;
  with_context(fmt::format("model {}", config.model), [&] {
    const Stopwatch watch(load_report_.target_seconds);
    target_files_ =
        checkpoint::Checkpoint::open(config.model, config.hf_overrides, config.load_dummy);
    target_files_->use(pool_);
    const auto model_config = model::ModelConfig::parse(target_files_->config());
    if (model_config.num_parameters() > kMostMadeUp) target_files_->repeat_dummies();
    target_ = model::KimiK25::load(ctx_, *target_files_, model_config, activation);
    load_report_.target_bytes = target_->weight_bytes();
  });
  if (config.draft.empty()) return;
  with_context(fmt::format("draft {}", config.draft), [&] {
    const Stopwatch watch(load_report_.draft_seconds);
    draft_files_ = checkpoint::Checkpoint::open(config.draft, {}, config.load_dummy);
    draft_files_->use(pool_);
    const auto draft_config = model::Eagle3Config::parse(draft_files_->config());
    if (draft_config.num_parameters() > kMostMadeUp) draft_files_->repeat_dummies();
    draft_ = model::Eagle3::load(ctx_, *draft_files_, draft_config, *target_, config.aux_layer_ids,
                                 activation, config.fp8_draft_head);
    load_report_.draft_bytes = draft_->weight_bytes();
  });
}

void Runner::allocate_kv(int64_t num_blocks, int32_t block_size) {
  CHECK(!kv_.has_value(), "the cache is allocated once");
  if (gpu_ != nullptr) {
    warm_up_device();
    const ops::gpu::AllocationPurpose purpose("the KV cache",
                                              "--gpu-memory-utilization or --max-model-len");
    kv_.emplace(kv_layout_, num_blocks, block_size, &ops::gpu::device_memory());
    make_device_steps(/*enforce_eager=*/false);
    return;
  }
  kv_.emplace(kv_layout_, num_blocks, block_size);
  if (draft_.has_value()) {
    constexpr int64_t kShare = 16;
    backlog_.emplace(
        *kv_, num_aux_values(),
        max_backlog_bytes_ > 0 ? max_backlog_bytes_ : static_cast<int64_t>(kv_->bytes()) / kShare);
  }
}

void Runner::make_device_steps(bool enforce_eager) {
  DeviceLimits limits = device_limits_;
  limits.enforce_eager |= enforce_eager;
  const int64_t longest = div_ceil(target_->config().max_position_embeddings, kv_->block_size());
  limits.max_table_size = static_cast<int32_t>(std::min(longest, kv_->num_blocks()));
  const auto aux_layers = draft_.has_value() ? draft_->aux_layers() : std::span<const int64_t>{};
  device_drafter_.reset();
  device_target_.emplace(ctx_, *target_, *kv_, aux_layers, limits);
  if (!draft_.has_value()) return;
  ops::Ctx draft_ctx = ctx_;
  draft_ctx.arena = draft_arena_.get();
  device_drafter_.emplace(draft_ctx, *draft_, *kv_, device_target_->aux(), limits);
}

void Runner::warm_up_device() {
  if (is_warm_) return;
  is_warm_ = true;
  const ops::gpu::AllocationPurpose purpose("the scratch of a step", "--max-num-batched-tokens");
  constexpr int32_t kBlockSize = ops::kAttentionTile;
  const int32_t num_tokens = device_limits_.max_tokens;
  kv_.emplace(kv_layout_, div_ceil(num_tokens, kBlockSize) + device_limits_.max_rows_each,
              kBlockSize, &ops::gpu::device_memory());
  // A recording must not grow the scratch, and growing it is what this is for.
  make_device_steps(/*enforce_eager=*/true);
  warm_up_target();
  if (device_drafter_.has_value()) warm_up_drafter();
  device_drafter_.reset();
  device_target_.reset();
  kv_.reset();
  arena_->fix();
  draft_arena_->fix();
}

// One prompt as long as a step may be, that samples as many rows as a step may.
void Runner::warm_up_target() {
  const int32_t num_tokens = device_limits_.max_tokens;
  const std::vector<TokenId> ids(static_cast<size_t>(num_tokens));
  std::vector<int32_t> positions(static_cast<size_t>(num_tokens)),
      blocks(static_cast<size_t>(kv_->num_blocks()));
  std::iota(positions.begin(), positions.end(), 0);
  std::iota(blocks.begin(), blocks.end(), 0);
  const size_t most_logits =
      std::min(static_cast<size_t>(num_tokens),
               static_cast<size_t>(
                   recorded_rows(device_limits_.max_sequences * device_limits_.max_rows_each)));
  const ops::SequenceRows sequence{.num_rows = num_tokens, .block_table = blocks.data()};
  const auto table_size = static_cast<int32_t>(blocks.size());
  const std::vector<ops::SampleRow> samples(most_logits);
  device_target_->run({.ids = ids,
                       .positions = positions,
                       .sequences = {&sequence, 1},
                       .table_sizes = {&table_size, 1},
                       .logit_rows = std::span(positions).first(most_logits),
                       .samples = samples});
}

// As many prompts as there may be sequences, together as long as a step may be, and all draft.
void Runner::warm_up_drafter() {
  const int32_t num_tokens = device_limits_.max_tokens;
  const int32_t num_chains = std::min(num_tokens, recorded_rows(device_limits_.max_sequences));
  sched::StepPlan plan;
  plan.num_tokens = num_tokens;
  StepOutput output;
  std::vector<int32_t> first_rows;
  for (int32_t i = 0; i < num_chains; ++i) {
    sched::StepRow& row = plan.rows.emplace_back();
    const int64_t end = int64_t{num_tokens} * (i + 1) / num_chains;
    first_rows.push_back(static_cast<int32_t>(int64_t{num_tokens} * i / num_chains));
    row.num_tokens = static_cast<int32_t>(end) - first_rows.back();
    row.samples = true;
    row.num_drafts_to_propose = device_limits_.max_rows_each - 1;
    row.tokens.assign(static_cast<size_t>(row.num_tokens), TokenId{0});
    for (int32_t block = 0; block < kv_->num_blocks(); ++block) row.block_table.push_back(block);
    output.rows.emplace_back().sampled = {0};
  }
  const SamplingParams params;
  const std::vector<const SamplingParams*> of_rows(plan.rows.size(), &params);
  device_drafter_->propose({.plan = plan, .first_rows = first_rows, .params = of_rows}, output);
}

void Runner::add_sequence(sched::SequenceId seq_id, std::span<const TokenId> prompt,
                          const SamplingParams& params) {
  const bool added =
      sequences_
          .emplace(seq_id, std::make_unique<Sequence>(prompt, params, target_->config().vocab_size))
          .second;
  CHECK(added, "sequence {} exists", seq_id);
}

void Runner::remove_sequence(sched::SequenceId seq_id) { sequences_.erase(seq_id); }

// ---- a step -------------------------------------------------------------------------------------

void Runner::build_batch(const sched::StepPlan& plan) {
  batch_.ids.clear();
  batch_.positions.clear();
  batch_.sequences.clear();
  batch_.first_rows.clear();
  batch_.owners.clear();
  batch_.params.clear();
  batch_.texts.clear();
  batch_.logit_rows.clear();
  batch_.samples.clear();
  batch_.table_sizes.clear();
  for (const sched::StepRow& row : plan.rows) {
    const auto found = sequences_.find(row.seq_id);
    CHECK(found != sequences_.end(), "sequence {} is unknown", row.seq_id);
    CHECK_EQ(static_cast<int32_t>(row.tokens.size()), row.num_tokens);
    CHECK_LT(row.num_draft_tokens, row.num_tokens);
    CHECK_GE(static_cast<int64_t>(row.block_table.size()) * kv_->block_size(),
             row.first_position + row.num_tokens);

    const auto first_row = static_cast<int32_t>(batch_.ids.size());
    batch_.first_rows.push_back(first_row);
    batch_.owners.push_back(found->second.get());
    batch_.params.push_back(&found->second->params);
    batch_.sequences.push_back({.first_row = first_row,
                                .num_rows = row.num_tokens,
                                .first_position = row.first_position,
                                .block_table = row.block_table.data()});
    batch_.ids.insert(batch_.ids.end(), row.tokens.begin(), row.tokens.end());
    for (int32_t i = 0; i < row.num_tokens; ++i) {
      batch_.positions.push_back(row.first_position + i);
    }
    batch_.table_sizes.push_back(static_cast<int32_t>(row.block_table.size()));
    if (!row.samples) continue;
    const SamplingParams& params = found->second->params;
    for (int32_t i = row.num_tokens - 1 - row.num_draft_tokens; i < row.num_tokens; ++i) {
      batch_.logit_rows.push_back(first_row + i);
      batch_.samples.push_back(
          {.seed = params.seed,
           .position = row.first_position + i + int64_t{1},
           .temperature = params.greedy() ? 0.0f : static_cast<float>(params.temperature)});
    }
  }
}

// Of one position: what the draft's fc reads.
int64_t Runner::num_aux_values() const {
  return static_cast<int64_t>(draft_->aux_layers().size()) * target_->config().hidden_size;
}

model::Step Runner::target_step() {
  return {.ctx = ctx_,
          .positions = batch_.positions,
          .sequences = batch_.sequences,
          .caches = kv_->target(),
          .tap_sink = tap_sink_};
}

// Hidden states of all rows. A long prompt's intermediate values would take more memory than a
// small model's weights, so its rows go through the layers some hundred at a time, as if they came
// in chunks.
Tensor Runner::run_target(Tensor aux) {
  const auto aux_layers = draft_.has_value() ? draft_->aux_layers() : std::span<const int64_t>{};
  const auto num_rows = static_cast<int64_t>(batch_.ids.size());
  if (num_rows <= rows_per_pass_) {
    return target_->forward(target_step(), batch_.ids, aux_layers, aux);
  }
  const Tensor hidden = arena_->f32({num_rows, target_->config().hidden_size});
  const int64_t num_passes = div_ceil(num_rows, rows_per_pass_);
  for (int64_t pass = 0; pass < num_passes; ++pass) {
    const ArenaScope scratch(*arena_);
    const int64_t begin = num_rows * pass / num_passes;
    const int64_t count = num_rows * (pass + 1) / num_passes - begin;
    batch_.of_pass.clear();
    for (const ops::SequenceRows& all : batch_.sequences) {
      const int64_t first = std::max<int64_t>(all.first_row, begin);
      const int64_t end = std::min<int64_t>(all.first_row + all.num_rows, begin + count);
      if (first >= end) continue;
      ops::SequenceRows& part = batch_.of_pass.emplace_back(all);
      part.first_row = static_cast<int32_t>(first - begin);
      part.num_rows = static_cast<int32_t>(end - first);
      part.first_position += static_cast<int32_t>(first - all.first_row);
    }
    model::Step step = target_step();
    const auto offset = static_cast<size_t>(begin), size = static_cast<size_t>(count);
    step.positions = step.positions.subspan(offset, size);
    step.sequences = batch_.of_pass;
    const Tensor rows = target_->forward(step, std::span(batch_.ids).subspan(offset, size),
                                         aux_layers, aux.empty() ? aux : aux.rows(begin, count));
    ops::copy_rows(ctx_, {.out = hidden.rows(begin, count), .x = rows});
  }
  return hidden;
}

void Runner::begin_step(const sched::StepPlan& plan) {
  CHECK(kv_.has_value(), "allocate_kv() comes first");
  output_.times.clear();
  resize_keeping(output_.rows, spare_.rows, plan.rows.size());
  resize_keeping(output_.extras, spare_.extras, plan.rows.size());
  build_batch(plan);
  if (plan.rows.empty()) return;
  ++num_steps_;
  output_.times.num_rows = plan.num_tokens;
  output_.times.num_sequences = static_cast<int32_t>(
      std::ranges::count_if(plan.rows, [](const sched::StepRow& row) { return row.samples; }));
  output_.times.num_logits = static_cast<int32_t>(batch_.logit_rows.size());
}

const StepOutput& Runner::execute(const sched::StepPlan& plan) {
  launch(plan);
  return finish();
}

// On the CPU all of it happens in finish().
void Runner::launch(const sched::StepPlan& plan) {
  launched_ = &plan;
  launched_at_ = std::chrono::steady_clock::now();
  begin_step(plan);
  if (device_target_.has_value() && !plan.rows.empty()) start_on_device(plan);
}

const StepOutput& Runner::finish() {
  const sched::StepPlan& plan = *launched_;
  if (plan.rows.empty()) return output_;
  Tensor hidden, aux;
  if (device_target_.has_value()) {
    device_target_->wait();
    output_.times.forward_seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - launched_at_).count();
    output_.times.is_typical = device_target_->is_typical();
  } else {
    arena_->reset();
    const Stopwatch watch(output_.times.forward_seconds);
    if (draft_.has_value()) {
      aux = arena_->f32({static_cast<int64_t>(batch_.ids.size()), num_aux_values()});
    }
    hidden = run_target(aux);
  }
  sample_rows(plan, hidden);
  propose(plan, aux);
  return output_;
}

void Runner::propose(const sched::StepPlan& plan, Tensor aux) {
  for (const Sequence* owner : batch_.owners) batch_.texts.emplace_back(owner->text);
  if (device_drafter_.has_value()) {
    device_drafter_->propose(
        {.plan = plan, .first_rows = batch_.first_rows, .params = batch_.params}, output_);
  } else if (drafter_.has_value()) {
    drafter_->propose(ctx_, tap_sink_,
                      {.plan = plan,
                       .first_rows = batch_.first_rows,
                       .params = batch_.params,
                       .texts = batch_.texts,
                       .aux = aux,
                       .kv = *kv_,
                       .backlog = *backlog_},
                      *sampler_, output_);
  } else if (ngram_.has_value()) {
    // So little that it has no curve of its own: part of what a sampled row costs.
    const Stopwatch watch(output_.times.head_seconds);
    for (size_t r = 0; r < plan.rows.size(); ++r) {
      sched::RowResult& result = output_.rows[r];
      const int32_t num_wanted = plan.rows[r].num_drafts_to_propose;
      if (num_wanted > 0 && !result.sampled.empty()) {
        ngram_->propose(batch_.texts[r], num_wanted, result.proposed);
      }
    }
  }
}

void Runner::sample_rows(const sched::StepPlan& plan, Tensor hidden) {
  const auto num_logits = static_cast<int64_t>(batch_.logit_rows.size());
  const Stopwatch watch(output_.times.head_seconds);
  if (!device_target_.has_value()) {
    logits_ = arena_->f32({num_logits, target_->config().vocab_size});
    if (num_logits > 0) target_->logits(target_step(), hidden, batch_.logit_rows, logits_);
  }
  int64_t first_logit = 0;
  for (size_t r = 0; r < plan.rows.size(); ++r) {
    const sched::StepRow& row = plan.rows[r];
    sched::RowResult& result = output_.rows[r];
    RowExtras& extras = output_.extras[r];
    result.seq_id = row.seq_id;
    result.sampled.clear();
    result.proposed.clear();
    extras.numeric_fault = false;
    extras.logprobs.clear();
    extras.prompt_logprobs.clear();
    if (batch_.params[r]->prompt_logprobs.has_value()) score_prompt(row, r, hidden);
    if (!row.samples) continue;
    const int64_t count = row.num_draft_tokens + int64_t{1};
    sample_row(row, *batch_.owners[r], first_logit, result, extras);
    if (extras.numeric_fault) result.sampled.clear();
    first_logit += count;
  }
}

// What a device draws by itself is what the sampler would: no processor, no filter, nothing told.
bool Runner::is_sampled_on_device(const Sequence& sequence) const {
  const SamplingParams& p = sequence.params;
  return device_target_.has_value() && !p.logprobs.has_value() && !p.has_penalties() &&
         p.logit_bias.empty() && p.allowed_token_ids.empty() && p.bad_words.empty() &&
         !p.thinking_budget.has_value() && p.min_tokens <= 0 &&
         (p.greedy() || (p.top_k <= 0 && p.top_p >= 1.0 && p.min_p <= 0.0));
}

TokenId Runner::sample_at(int64_t logit_idx, const Sequence& sequence, int64_t position,
                          Logprobs* out) {
  if (is_sampled_on_device(sequence)) {
    return device_target_->sampled()[static_cast<size_t>(logit_idx)];
  }
  const std::span<const float> row = device_target_.has_value()
                                         ? device_target_->logits_row(logit_idx)
                                         : row_of(logits_, logit_idx);
  return sampler_->sample(row, sequence.params, sequence.history, position, out);
}

void Runner::start_on_device(const sched::StepPlan& plan) {
  gpu_->make_current();
  const bool only_decodes = std::ranges::all_of(plan.rows, [](const sched::StepRow& row) {
    return row.samples && row.num_tokens == 1 + row.num_draft_tokens;
  });
  device_target_->start({.ids = batch_.ids,
                         .positions = batch_.positions,
                         .sequences = batch_.sequences,
                         .table_sizes = batch_.table_sizes,
                         .logit_rows = batch_.logit_rows,
                         .samples = batch_.samples,
                         .only_decodes = only_decodes});
}

void Runner::sample_row(const sched::StepRow& row, Sequence& sequence, int64_t first_logit,
                        sched::RowResult& result, RowExtras& extras) {
  const int32_t num_drafts = row.num_draft_tokens;
  const int32_t num_known = row.first_position + row.num_tokens - num_drafts;
  CHECK_EQ(sequence.history.num_output_tokens() + sequence.num_prompt_tokens, num_known);
  const bool wants_logprobs = sequence.params.logprobs.has_value();
  for (int32_t j = 0; j <= num_drafts; ++j) {
    Logprobs* out = wants_logprobs ? &extras.logprobs.emplace_back() : nullptr;
    TokenId token = sample_at(first_logit + j, sequence, num_known + int64_t{j}, out);
    if (token == Sampler::kNumericFault) {
      extras.logprobs.clear();
      extras.numeric_fault = true;
      return;
    }
    const bool accepted =
        j < num_drafts &&
        accepts(sequence, row.tokens[static_cast<size_t>(row.num_tokens - num_drafts + j)], token,
                j);
    result.sampled.push_back(token);
    sequence.history.push(token);
    sequence.text.push_back(token);
    if (!accepted) return;
  }
}

// Whether a draft is what the target sampled; with synthetic acceptance, whether chance says so,
// and then it is the sample.
bool Runner::accepts(const Sequence& sequence, TokenId draft, TokenId& sample,
                     int32_t draft_idx) const {
  if (synthetic_acceptance_.empty()) return draft == sample;
  const auto j = static_cast<size_t>(draft_idx);
  const double before = j == 0 ? 1.0 : synthetic_acceptance_[j - 1];
  constexpr uint64_t kLane = 0x5ca1ab1e;  // no other noise of the request is drawn from it
  const PhiloxBlock noise = NoiseStream(sequence.params.seed).block(sequence.text.size(), kLane);
  if (uniform_open(noise[0], noise[1]) * before >= synthetic_acceptance_[j]) return false;
  sample = draft;
  return true;
}

void Runner::score_prompt(const sched::StepRow& row, size_t row_idx, Tensor hidden) {
  const Sequence& sequence = *batch_.owners[row_idx];
  RowExtras& extras = output_.extras[row_idx];
  // The logits at position p speak about token p + 1; the prompt's own tokens are scored.
  const int32_t end = std::min(row.num_tokens, sequence.num_prompt_tokens - 1 - row.first_position);
  const ArenaScope scratch(*arena_);
  const Tensor slab = device_target_.has_value()
                          ? Tensor()
                          : arena_->f32({kScoreSlab, target_->config().vocab_size});
  for (int32_t begin = 0; begin < end; begin += static_cast<int32_t>(kScoreSlab)) {
    const auto count = std::min<int32_t>(end - begin, static_cast<int32_t>(kScoreSlab));
    batch_.scored_rows.clear();
    for (int32_t i = 0; i < count; ++i) {
      batch_.scored_rows.push_back(batch_.first_rows[row_idx] + begin + i);
    }
    Tensor logits;
    if (device_target_.has_value()) {
      logits = device_target_->more_logits(batch_.scored_rows);
    } else {
      logits = slab.rows(0, count);
      target_->logits(target_step(), hidden, batch_.scored_rows, logits);
    }
    for (int32_t i = begin; i < begin + count; ++i) {
      const TokenId token =
          i + 1 < row.num_tokens ? row.tokens[static_cast<size_t>(i) + 1] : row.next_token;
      const bool finite =
          sampler_->logprobs_of(row_of(logits, i - begin), token, *sequence.params.prompt_logprobs,
                                &extras.prompt_logprobs.emplace_back());
      extras.numeric_fault |= !finite;
    }
  }
}

}  // namespace eyrie::runtime
