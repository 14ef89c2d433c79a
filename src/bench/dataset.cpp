#include "bench/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "base/error.h"
#include "bench/custom_dataset.h"

namespace eyrie::bench {
namespace {

int64_t floor_int(double value) { return static_cast<int64_t>(std::floor(value)); }
int64_t ceil_int(double value) { return static_cast<int64_t>(std::ceil(value)); }

void check_ratio(const char* side, double ratio, RangeMode mode) {
  if (mode == RangeMode::kVllm && !(ratio >= 0.0 && ratio < 1.0)) {
    fail("--random-range-ratio {} ({}): in vLLM's meaning it must be in [0, 1)", ratio, side);
  }
  if (mode == RangeMode::kInferenceX && !(ratio > 0.0 && ratio <= 1.0)) {
    fail("--random-range-ratio {} ({}): in InferenceX's meaning it must be in (0, 1]", ratio, side);
  }
}

// How text becomes a prompt of exactly target tokens: decode, encode, cut or pad, up to ten rounds.
// The last text is the prompt even when it still misses (byte tokens rarely survive a round trip).
struct FittedPrompt {
  std::string text;
  int64_t num_tokens = 0;
};

template <typename Pad>
FittedPrompt fit_prompt(const TextCodec& codec, std::vector<int32_t> ids, int64_t target,
                        Pad&& pad) {
  constexpr int kRounds = 10;
  for (int round = 0;; ++round) {
    FittedPrompt fitted;
    fitted.text = codec.decode(ids);
    ids = codec.encode(fitted.text);
    fitted.num_tokens = static_cast<int64_t>(ids.size());
    if (fitted.num_tokens == target || round == kRounds) return fitted;
    if (fitted.num_tokens < target) {
      for (const int64_t id : pad(target - fitted.num_tokens)) {
        ids.push_back(static_cast<int32_t>(id));
      }
    } else {
      ids.resize(static_cast<size_t>(target));
    }
  }
}

std::string range_note(const RandomPlan& plan, RangeMode mode) {
  return fmt::format(
      "Random lengths ({} meaning of --random-range-ratio): input in [{}, {}], output in [{}, {}]",
      mode == RangeMode::kVllm ? "vLLM's" : "InferenceX's", plan.input_range.low,
      plan.input_range.high, plan.output_range.low, plan.output_range.high);
}

void note_mismatch(int64_t mismatch, Dataset& dataset) {
  if (mismatch == 0) return;
  dataset.notes.push_back(fmt::format(
      "All prompts together have {} {} tokens than planned: decoding and re-encoding random tokens "
      "is not exact",
      std::abs(mismatch), mismatch > 0 ? "more" : "fewer"));
}

Dataset random_vllm(const DatasetOptions& options, const TextCodec& codec) {
  NumpyGenerator rng(options.seed);
  const RandomPlan plan = plan_vllm(options, codec.vocab_size(), rng);
  std::vector<int32_t> allowed;
  for (int32_t id = 0; id < codec.vocab_size(); ++id) {
    if (!codec.is_special(id)) allowed.push_back(id);
  }
  const auto num_allowed = static_cast<int64_t>(allowed.size());
  std::vector<int32_t> prefix;
  for (const int64_t idx : rng.integers(0, num_allowed, options.prefix_len)) {
    prefix.push_back(allowed[static_cast<size_t>(idx)]);
  }
  const auto pad = [&](int64_t count) { return rng.integers(0, codec.vocab_size(), count); };

  Dataset dataset;
  dataset.notes.push_back(range_note(plan, RangeMode::kVllm));
  int64_t mismatch = 0;
  for (int64_t i = 0; i < options.num_prompts; ++i) {
    const auto at = static_cast<size_t>(i);
    std::vector<int32_t> ids = prefix;
    for (int64_t j = 0; j < plan.input_lens[at]; ++j) {
      ids.push_back(allowed[static_cast<size_t>((plan.offsets[at] + i + j) % num_allowed)]);
    }
    const int64_t target = options.prefix_len + plan.input_lens[at];
    FittedPrompt fitted = fit_prompt(codec, std::move(ids), target, pad);
    mismatch += fitted.num_tokens - target;
    dataset.prompts.push_back({std::move(fitted.text), fitted.num_tokens, plan.output_lens[at]});
  }
  note_mismatch(mismatch, dataset);
  return dataset;
}

Dataset random_inferencex(const DatasetOptions& options, const TextCodec& codec,
                          bool wrap_on_client) {
  const int64_t vocab = codec.vocab_size();
  int64_t template_tokens = 0;
  if (options.use_chat_template) {
    const auto rendered = codec.encode(codec.render_user_turn("a"));
    template_tokens = static_cast<int64_t>(rendered.size()) - 1;
  }
  auto rng = MersenneTwister::numpy_seed(static_cast<uint32_t>(options.seed));
  std::vector<int32_t> prefix;
  const RandomPlan plan = plan_inferencex(options, vocab, template_tokens, rng, prefix);
  NumpyGenerator side(options.seed);
  const auto pad = [&](int64_t count) { return side.integers(0, vocab, count); };
  const bool wrap = options.use_chat_template && wrap_on_client;

  Dataset dataset;
  dataset.notes.push_back(range_note(plan, RangeMode::kInferenceX));
  if (options.use_chat_template) {
    dataset.notes.push_back(fmt::format(
        "The chat template adds {} tokens; they count as input, so prompts are that much shorter",
        template_tokens));
  }
  int64_t mismatch = 0;
  for (int64_t i = 0; i < options.num_prompts; ++i) {
    const auto at = static_cast<size_t>(i);
    std::vector<int32_t> ids = prefix;
    for (int64_t j = 0; j < plan.input_lens[at]; ++j) {
      ids.push_back(static_cast<int32_t>((plan.offsets[at] + i + j) % vocab));
    }
    const int64_t target = options.prefix_len + plan.input_lens[at];
    FittedPrompt fitted = fit_prompt(codec, std::move(ids), target, pad);
    mismatch += fitted.num_tokens - target;
    dataset.prompts.push_back({wrap ? codec.render_user_turn(fitted.text) : std::move(fitted.text),
                               fitted.num_tokens + template_tokens, plan.output_lens[at]});
  }
  note_mismatch(mismatch, dataset);
  return dataset;
}

}  // namespace

LengthRange vllm_input_range(int64_t length, double ratio) {
  const auto real = static_cast<double>(length);
  return {floor_int(real * (1.0 - ratio)), ceil_int(real * (1.0 + ratio))};
}

LengthRange vllm_output_range(int64_t length, double ratio) {
  const LengthRange range = vllm_input_range(length, ratio);
  return {std::max<int64_t>(range.low, 1), std::max<int64_t>(range.high, 1)};
}

LengthRange inferencex_range(int64_t length, double ratio) {
  return {floor_int(static_cast<double>(length) * ratio), length};
}

RandomPlan plan_vllm(const DatasetOptions& options, int64_t vocab_size, NumpyGenerator& rng) {
  const double input_ratio = options.input_range_ratio.value_or(0.0);
  const double output_ratio = options.output_range_ratio.value_or(0.0);
  check_ratio("input", input_ratio, RangeMode::kVllm);
  check_ratio("output", output_ratio, RangeMode::kVllm);
  RandomPlan plan;
  plan.input_range = vllm_input_range(options.input_len, input_ratio);
  plan.output_range = vllm_output_range(options.output_len, output_ratio);
  if (options.prefix_len + plan.input_range.low < 1) {
    fail(
        "--random-input-len {} with --random-range-ratio {} allows empty prompts: raise the "
        "length or --random-prefix-len",
        options.input_len, input_ratio);
  }
  const int64_t n = options.num_prompts;
  plan.input_lens = rng.integers(plan.input_range.low, plan.input_range.high + 1, n);
  plan.output_lens = rng.integers(plan.output_range.low, plan.output_range.high + 1, n);
  plan.offsets = rng.integers(0, vocab_size, n);
  return plan;
}

RandomPlan plan_inferencex(const DatasetOptions& options, int64_t vocab_size,
                           int64_t template_tokens, MersenneTwister& rng,
                           std::vector<int32_t>& prefix) {
  const double input_ratio = options.input_range_ratio.value_or(1.0);
  const double output_ratio = options.output_range_ratio.value_or(1.0);
  check_ratio("input", input_ratio, RangeMode::kInferenceX);
  check_ratio("output", output_ratio, RangeMode::kInferenceX);
  const int64_t input_len = options.input_len - template_tokens;
  if (options.prefix_len + inferencex_range(input_len, input_ratio).low < 1) {
    fail(
        "--random-input-len {} leaves no room for a prompt beside the {} tokens of the chat "
        "template",
        options.input_len, template_tokens);
  }
  for (const int64_t id : rng.numpy_randints(0, vocab_size, options.prefix_len)) {
    prefix.push_back(static_cast<int32_t>(id));
  }
  RandomPlan plan;
  plan.input_range = inferencex_range(input_len, input_ratio);
  plan.output_range = inferencex_range(options.output_len, output_ratio);
  const int64_t n = options.num_prompts;
  plan.input_lens = rng.numpy_randints(plan.input_range.low, plan.input_range.high + 1, n);
  plan.output_lens = rng.numpy_randints(plan.output_range.low, plan.output_range.high + 1, n);
  plan.offsets = rng.numpy_randints(0, vocab_size, n);
  return plan;
}

Dataset make_dataset(const DatasetOptions& options, const TextCodec* codec, bool wrap_on_client) {
  Dataset dataset;
  if (options.name == "custom") {
    dataset = make_custom_dataset(options, codec, wrap_on_client);
  } else if (options.name == "random") {
    if (!options.path.empty()) {
      fail("--dataset-path does not go with --dataset-name random: its prompts are made, not read");
    }
    if (codec == nullptr) {
      fail("--dataset-name random needs the model's tokenizer: give --tokenizer DIR");
    }
    dataset = options.effective_mode() == RangeMode::kVllm
                  ? random_vllm(options, *codec)
                  : random_inferencex(options, *codec, wrap_on_client);
  } else {
    fail("--dataset-name {}: this client has random and custom", options.name);
  }
  std::unordered_set<std::string_view> seen;
  for (const auto& prompt : dataset.prompts) {
    if (!seen.insert(prompt.text).second) ++dataset.num_repeated;
  }
  return dataset;
}

}  // namespace eyrie::bench
