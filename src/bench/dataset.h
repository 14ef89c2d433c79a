// The requests of a run: what is asked and how long an answer is wanted. Two sources: `random`
// (vLLM's and InferenceX's sampling, number for number) and `custom` (a JSONL file). Lengths are
// tokens. Everything is a pure function of the options, the seed and the tokenizer.
//
// --random-range-ratio r means two things in the field. vLLM: lengths uniform in
// [floor(L(1-r)), ceil(L(1+r))], r in [0,1), 0 = fixed. InferenceX (and SGLang, and vLLM before
// April 2025): uniform in [int(L*r), L], 1 = fixed. --use-chat-template exists only in InferenceX's
// client, so it selects that meaning unless --random-range-ratio-mode says otherwise.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/numpy_random.h"
#include "bench/text_codec.h"

namespace eyrie::bench {

enum class RangeMode { kVllm, kInferenceX };

struct DatasetOptions {
  std::string name = "random";  // random, custom
  std::string path;             // of custom
  int64_t num_prompts = 1000;
  uint64_t seed = 0;

  // random
  int64_t input_len = 1024;
  int64_t output_len = 128;
  int64_t prefix_len = 0;
  std::optional<double> input_range_ratio;  // unset = fixed lengths in either meaning
  std::optional<double> output_range_ratio;
  std::optional<RangeMode> range_mode;
  bool use_chat_template = false;

  // custom
  std::optional<int64_t> custom_output_len;  // -1: from the file; unset: from the file, else 256
  bool skip_chat_template = false;
  bool disable_shuffle = false;
  bool no_oversample = false;

  RangeMode effective_mode() const {
    return range_mode.value_or(use_chat_template ? RangeMode::kInferenceX : RangeMode::kVllm);
  }
};

struct BenchPrompt {
  std::string text;
  int64_t prompt_len = 0;  // tokens by the client's tokenizer; 0 = not counted
  int64_t output_len = 0;
};

struct Dataset {
  std::vector<BenchPrompt> prompts;
  std::vector<std::string> notes;  // lines for the reader: intervals, mismatches, repeats
  int64_t num_repeated = 0;        // prompts whose text occurred before in this dataset
};

// Inclusive bounds.
struct LengthRange {
  int64_t low = 0;
  int64_t high = 0;
  bool operator==(const LengthRange&) const = default;
};

LengthRange vllm_input_range(int64_t length, double ratio);
LengthRange vllm_output_range(int64_t length, double ratio);
LengthRange inferencex_range(int64_t length, double ratio);

struct RandomPlan {
  LengthRange input_range, output_range;
  std::vector<int64_t> input_lens, output_lens, offsets;
};

// The draws of vLLM's RandomDataset; rng goes on to the prefix and to padding.
RandomPlan plan_vllm(const DatasetOptions& options, int64_t vocab_size, NumpyGenerator& rng);
// The draws of InferenceX's client; template_tokens is what the chat template adds to a prompt.
RandomPlan plan_inferencex(const DatasetOptions& options, int64_t vocab_size,
                           int64_t template_tokens, MersenneTwister& rng,
                           std::vector<int32_t>& prefix);

// codec may be null where the dataset does not need one (custom without a chat template).
// wrap_on_client: prompts go to a completions endpoint as text, so a template is applied here;
// false for a chat endpoint, where the server applies it.
Dataset make_dataset(const DatasetOptions& options, const TextCodec* codec, bool wrap_on_client);

}  // namespace eyrie::bench
