#include "server/common_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>

namespace eyrie::server {
namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();
constexpr int64_t kMaxPattern = 4096;  // tokens, and repetitions, of repetition_detection
constexpr double kMaxDouble = std::numeric_limits<double>::max();

void read_logit_bias(Fields& fields, const Context& context, runtime::SamplingParams& params) {
  const Json* bias = fields.object("logit_bias");
  if (bias == nullptr) return;
  for (const auto& [key, value] : bias->items()) {
    int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    const bool is_id = error == std::errc{} && end == key.data() + key.size() && id >= 0 &&
                       id < context.config.vocab_size;
    if (!is_id || !value.is_number()) {
      fields.fail("logit_bias",
                  fmt::format("logit_bias maps token ids from 0 to {} to numbers, got \"{}\": {}",
                              context.config.vocab_size - 1, key, shown(value)));
      return;
    }
    params.logit_bias.emplace_back(
        id, static_cast<float>(std::clamp(value.get<double>(), -100.0, 100.0)));
  }
}

// Each word as it is encoded at the start of a text and after a space.
void read_bad_words(Fields& fields, const Context& context, runtime::SamplingParams& params) {
  for (const std::string& word : fields.strings("bad_words")) {
    const auto first = word.find_first_not_of(' ');
    if (first == std::string::npos) {
      fields.fail("bad_words", "bad_words must not hold empty words");
      return;
    }
    const std::string bare = word.substr(first);
    for (const std::string& spelling : {bare, " " + bare}) {
      auto ids = context.tokenizer.encode(spelling, AllowSpecial::kNone);
      auto& words = params.bad_words;
      if (std::find(words.begin(), words.end(), ids) == words.end()) {
        words.push_back(std::move(ids));
      }
    }
  }
}

void read_repetition_detection(Fields& fields, runtime::SamplingParams& params) {
  const Json* given = fields.object("repetition_detection");
  if (given == nullptr) return;
  Fields reader(*given, "repetition_detection.");
  const auto size = [&](const char* name) {
    return static_cast<int32_t>(reader.integer(name, 0, kMaxPattern).value_or(0));
  };
  const sched::RepetitionLimit limit = {.max_pattern_size = size("max_pattern_size"),
                                        .min_pattern_size = std::max(size("min_pattern_size"), 1),
                                        .min_count = size("min_count")};
  if (reader.failed()) {
    fields.fail("repetition_detection", reader.failure().message);
  } else if (limit.max_pattern_size == 0) {
    return;  // off
  } else if (limit.min_count < 2) {
    fields.fail(
        "repetition_detection",
        fmt::format("repetition_detection.min_count must be at least 2, got {}", limit.min_count));
  } else if (limit.min_pattern_size > limit.max_pattern_size) {
    fields.fail("repetition_detection",
                fmt::format("repetition_detection.min_pattern_size ({}) must not be above "
                            "max_pattern_size ({})",
                            limit.min_pattern_size, limit.max_pattern_size));
  }
  params.repetition = limit;
}

void read_thinking_budget(Fields& fields, const Context& context, runtime::SamplingParams& params) {
  const auto budget = fields.integer("thinking_token_budget", 0, kMaxInt32);
  if (!budget) return;
  const auto id_of = [&](const char* token) { return context.tokenizer.id_of(token).value_or(-1); };
  params.thinking_budget = {.max_tokens = static_cast<int32_t>(*budget),
                            .begin = id_of("<think>"),
                            .end = id_of("</think>"),
                            .other_end = id_of("<|tool_calls_section_begin|>")};
  if (params.thinking_budget->begin < 0 || params.thinking_budget->end < 0) {
    fields.fail("thinking_token_budget",
                "thinking_token_budget needs a model with tokens <think> and </think>");
  }
}

void read_sampling(Fields& fields, const Context& context, engine::GenerateRequest& request) {
  const SamplingDefaults& defaults = context.config.defaults;
  runtime::SamplingParams& params = request.params;
  params.temperature = fields.number("temperature", 0, kMaxDouble).value_or(defaults.temperature);
  params.top_p = fields.number("top_p", 0, 1).value_or(defaults.top_p);
  if (params.top_p == 0.0) fields.fail("top_p", "top_p must be above 0 and at most 1, got 0");
  params.top_k =
      static_cast<int32_t>(fields.integer("top_k", -1, kMaxInt32).value_or(defaults.top_k));
  params.min_p = fields.number("min_p", 0, 1).value_or(defaults.min_p);
  params.repetition_penalty =
      fields.number("repetition_penalty", 0, kMaxDouble).value_or(defaults.repetition_penalty);
  if (params.repetition_penalty == 0.0) {
    fields.fail("repetition_penalty", "repetition_penalty must be above 0, got 0");
  }
  params.presence_penalty = fields.number("presence_penalty", -2, 2).value_or(0);
  params.frequency_penalty = fields.number("frequency_penalty", -2, 2).value_or(0);
  const int64_t seed =
      fields.integer("seed", std::numeric_limits<int64_t>::min(), kMaxInt64).value_or(-1);
  request.has_seed = seed != -1;
  params.seed = static_cast<uint64_t>(seed);
  params.ignore_eos = fields.boolean("ignore_eos").value_or(false);
  params.min_tokens = static_cast<int32_t>(fields.integer("min_tokens", 0, kMaxInt32).value_or(0));
  params.stop_token_ids = fields.token_ids("stop_token_ids", context.config.vocab_size);
  if (fields.find("allowed_token_ids") != nullptr) {
    params.allowed_token_ids = fields.token_ids("allowed_token_ids", context.config.vocab_size);
    if (params.allowed_token_ids.empty()) {
      fields.fail("allowed_token_ids", "allowed_token_ids must not be empty");
    }
  }
  read_logit_bias(fields, context, params);
  read_bad_words(fields, context, params);
  read_repetition_detection(fields, params);
  read_thinking_budget(fields, context, params);

  request.text.stop = fields.strings("stop");
  if (std::find(request.text.stop.begin(), request.text.stop.end(), "") !=
      request.text.stop.end()) {
    fields.fail("stop", "stop must not hold an empty string");
  }
  request.text.include_stop = fields.boolean("include_stop_str_in_output").value_or(false);
  request.text.skip_special = fields.boolean("skip_special_tokens").value_or(true);
  request.priority = static_cast<int32_t>(
      fields.integer("priority", std::numeric_limits<int32_t>::min(), kMaxInt32).value_or(0));
  if (const auto salt = fields.string("cache_salt")) {
    if (salt->empty()) fields.fail("cache_salt", "cache_salt must not be an empty string");
    request.cache_salt = *salt;
  }
}

// Fields that ask for something this server cannot do: ignoring them would answer another question.
void refuse_unsupported(Fields& fields) {
  if (fields.find("structured_outputs") != nullptr) {
    fields.fail("structured_outputs",
                "structured_outputs is not supported: this server has no constrained decoding yet");
  }
  for (const char* name : {"suffix", "prompt_embeds"}) {
    if (fields.find(name) != nullptr) {
      fields.fail(name, fmt::format("{} is not supported by this server", name));
    }
  }
  if (fields.boolean("use_beam_search").value_or(false)) {
    fields.fail("use_beam_search", "use_beam_search is not supported by this server");
  }
  if (const Json* format = fields.object("response_format")) {
    const std::string type = Fields(*format).string("type").value_or("");
    if (type != "text") {
      fields.fail("response_format",
                  fmt::format("response_format.type \"{}\" is not supported: this server has no "
                              "constrained decoding yet, only \"text\"",
                              type));
    }
  }
}

void read_streaming(Fields& fields, const Context& context, Generation& generation) {
  generation.stream = fields.boolean("stream").value_or(false);
  if (const Json* options = fields.object("stream_options")) {
    if (!generation.stream) {
      fields.fail("stream_options", "stream_options needs stream to be true");
      return;
    }
    Fields reader(*options, "stream_options.");
    generation.include_usage = reader.boolean("include_usage").value_or(false);
    generation.continuous_usage =
        reader.boolean("continuous_usage_stats").value_or(false) && generation.include_usage;
    if (reader.failed()) fields.fail("stream_options", reader.failure().message);
  }
  if (context.config.force_include_usage && generation.stream) {
    generation.include_usage = generation.continuous_usage = true;
  }
}

int32_t logprobs_cap(const Context& context) {
  const int32_t cap = context.config.max_logprobs;
  return cap < 0 ? context.config.vocab_size : cap;
}

}  // namespace

void read_common(Fields& fields, const Context& context, Generation& generation,
                 engine::GenerateRequest& request) {
  read_sampling(fields, context, request);
  read_streaming(fields, context, generation);
  refuse_unsupported(fields);
  generation.request_id = fields.string("request_id").value_or("");
  generation.n =
      static_cast<int32_t>(fields.integer("n", 1, context.config.max_choices).value_or(1));
  if (generation.n > 1 && request.params.greedy()) {
    fields.fail("n", "n must be 1 when temperature is 0: every choice would be the same");
  }
  generation.return_token_ids = fields.boolean("return_token_ids").value_or(false);
  generation.tokens_as_ids = fields.boolean("return_tokens_as_token_ids")
                                 .value_or(context.config.return_tokens_as_token_ids);
  generation.echo = fields.boolean("echo").value_or(false);
}

std::optional<int32_t> read_num_logprobs(Fields& fields, const char* name, const Context& context,
                                         int64_t min) {
  const auto value = fields.integer(name, min, kMaxInt32);
  if (!value) return std::nullopt;
  if (*value > logprobs_cap(context) || (*value < 0 && context.config.max_logprobs >= 0)) {
    fields.fail(name, fmt::format("{} must be at most {} (--max-logprobs), got {}", name,
                                  logprobs_cap(context), *value));
    return std::nullopt;
  }
  return static_cast<int32_t>(*value);
}

void read_prompt_logprobs(Fields& fields, const Context& context, const Generation& generation,
                          runtime::SamplingParams& params) {
  params.prompt_logprobs = read_num_logprobs(fields, "prompt_logprobs", context, -1);
  if (params.prompt_logprobs.value_or(0) != 0 && generation.stream) {
    fields.fail("prompt_logprobs", "prompt_logprobs cannot be streamed");
  }
}

}  // namespace eyrie::server
