#include "apps/eyrie/serve_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <string_view>

#include "apps/eyrie/serve_service.h"
#include "base/error.h"
#include "base/mapped_file.h"
#include "base/version.h"
#include "checkpoint/checkpoint.h"
#include "ops/gpu/device.h"
#include "ops/ops.h"

namespace eyrie::apps {
namespace {

template <size_t N>
void check_one_of(std::string_view flag, const std::string& value,
                  const std::array<std::string_view, N>& known) {
  if (std::find(known.begin(), known.end(), value) != known.end()) return;
  fail("--{} is '{}'; it takes one of {}", flag, value, fmt::join(known, ", "));
}

int64_t integer_in(const ParsedFlags& flags, std::string_view name, int64_t absent, int64_t low,
                   int64_t high) {
  const int64_t value = flags.integer(name, absent);
  if (value < low || value > high) fail("--{} is {}; it takes {} to {}", name, value, low, high);
  return value;
}

constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();

// Keys of vLLM's speculative config that change nothing here.
constexpr std::array<std::string_view, 11> kIgnoredSpeculativeKeys = {
    "quantization",
    "revision",
    "code_revision",
    "max_model_len",
    "draft_load_config",
    "moe_backend",
    "attention_backend",
    "enforce_eager",
    "disable_padded_drafter_batch",
    "use_local_argmax_reduction",
    "disable_by_batch_size"};

bool looks_like_eagle3(const std::string& model) {
  std::string lower = model;
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  return lower.find("eagle3") != std::string::npos || lower.find("eagle-3") != std::string::npos;
}

std::string string_key(const nlohmann::json& json, const char* key) {
  const auto it = json.find(key);
  if (it == json.end() || it->is_null()) return "";
  if (!it->is_string()) fail("--speculative-config: {} is {}; it takes a string", key, it->dump());
  return it->get<std::string>();
}

void take_model(const ParsedFlags& flags, ServeConfig& config) {
  if (flags.positionals().size() > 1) {
    fail("one model is taken; '{}' is left over", flags.positionals()[1]);
  }
  config.model = flags.positionals().empty() ? flags.string("model") : flags.positionals()[0];
  if (config.model.empty()) fail("a model is needed: its folder or id, first or with --model");
  config.model_path = checkpoint::resolve_model_path(config.model);
  config.tokenizer_path = flags.has("tokenizer")
                              ? checkpoint::resolve_model_path(flags.string("tokenizer"))
                              : config.model_path;
}

void take_device(const ParsedFlags& flags, ServeConfig& config) {
  const std::string device = flags.string("device", "auto");
  check_one_of("device", device, std::array<std::string_view, 4>{"auto", "cpu", "cuda", "gpu"});
  if (device != "cpu") {
    const ops::gpu::FoundDevice found = ops::gpu::find_device();
    if (found.info.has_value()) {
      config.runner.device = runtime::DeviceKind::kGpu;
    } else if (device != "auto") {
      fail("--device is {} and there is none: {}; it takes auto, cpu, cuda", device, found.reason);
    }
  }
  config.runner.enforce_eager = flags.boolean("enforce-eager", false);
  config.runner.deterministic = flags.boolean("deterministic", false);
  const int64_t ranks = integer_in(flags, "tensor-parallel-size", 1, 1, 1024);
  if (ranks != 1) {
    fail(
        "--tensor-parallel-size is {} and one device (a GPU, or the CPU as one rank) is what can "
        "be "
        "used; it takes 1",
        ranks);
  }
  for (const char* name :
       {"pipeline-parallel-size", "data-parallel-size", "decode-context-parallel-size"}) {
    const int64_t count = flags.integer(name, 1);
    if (count != 1) fail("--{} is {}; only 1 is supported", name, count);
  }
  config.runner.num_threads = static_cast<int>(integer_in(flags, "cpu-threads", 0, 0, 1024));
}

void take_draft(const SpeculativeConfig& speculative, runtime::RunnerConfig& runner) {
  if (!speculative.model.empty()) {
    runner.draft = checkpoint::resolve_model_path(speculative.model);
  }
  runner.ngram = speculative.ngram;
  // A CPU's decoding is bound by arithmetic: half of the bytes would bring nothing there.
  runner.fp8_draft_head =
      speculative.draft_lm_head == "fp8" ||
      (speculative.draft_lm_head != "checkpoint" && runner.device == runtime::DeviceKind::kGpu);
  runner.synthetic_acceptance = speculative.synthetic_acceptance;
  if (!speculative.synthetic_acceptance.empty() && !runner.load_dummy) {
    fail(
        "--speculative-config: rejection_sample_method is 'synthetic', which makes the text up; it "
        "is for measuring with --load-format dummy only");
  }
}

void take_weights(const ParsedFlags& flags, ServeConfig& config) {
  const std::string format = flags.string("load-format", "auto");
  check_one_of("load-format", format,
               std::array<std::string_view, 3>{"auto", "safetensors", "dummy"});
  config.runner.load_dummy = format == "dummy";
  config.runner.model = config.model_path;
  config.runner.hf_overrides = flags.json("hf-overrides");
  const std::string activation = flags.string("activation-quantization", "auto");
  check_one_of("activation-quantization", activation,
               std::array<std::string_view, 3>{"auto", "emulate", "off"});
  const bool on_gpu = config.runner.device == runtime::DeviceKind::kGpu;
  if (on_gpu && activation == "emulate") {
    fail(
        "--activation-quantization is emulate, which the CPU backend does; with a GPU it takes "
        "auto "
        "or off");
  }
  config.runner.activation = on_gpu                    ? ops::ActivationQuantization::kOff
                             : activation == "emulate" ? ops::ActivationQuantization::kEmulate
                             : activation == "off"     ? ops::ActivationQuantization::kOff
                                                       : ops::ActivationQuantization::kAuto;
  config.speculative = parse_speculative_config(flags.json("speculative-config"));
  if (config.speculative) {
    config.runner.num_speculative_tokens = config.speculative->num_speculative_tokens;
  }
  if (config.speculative) take_draft(*config.speculative, config.runner);
  const std::string dtype = flags.string("dtype", "auto");
  check_one_of(
      "dtype", dtype,
      std::array<std::string_view, 6>{"auto", "bfloat16", "half", "float16", "float", "float32"});
  if (dtype != "auto") {
    config.notes.push_back(fmt::format(
        "--dtype {}: weights keep the checkpoint's types, activations are float32 on the CPU and "
        "bfloat16 on a GPU",
        dtype));
  }
}

void take_cache(const ParsedFlags& flags, ServeConfig& config) {
  KvDemand& kv = config.kv;
  kv.utilization = flags.number("gpu-memory-utilization", kv.utilization);
  if (flags.has("kv-cache-memory-bytes"))
    kv.kv_bytes =
        integer_in(flags, "kv-cache-memory-bytes", 0, 1, std::numeric_limits<int64_t>::max());
  if (flags.has("num-gpu-blocks-override"))
    kv.num_blocks = integer_in(flags, "num-gpu-blocks-override", 0, 1, kMaxInt);
  kv.max_model_len = flags.has("max-model-len") ? flags.integer("max-model-len", 0) : 0;
  if (flags.has("max-model-len") && kv.max_model_len == 0)
    fail("--max-model-len is 0; it takes a length or auto");
  kv.block_size = integer_in(flags, "block-size", 16, 1, 1 << 16);
  if (kv.block_size % ops::kAttentionTile != 0) {
    fail("--block-size is {}; it takes a multiple of {}", kv.block_size, ops::kAttentionTile);
  }
  const std::string dtype = flags.string("kv-cache-dtype", "auto");
  check_one_of("kv-cache-dtype", dtype,
               std::array<std::string_view, 5>{"auto", "bf16", "bfloat16", "fp8", "fp8_e4m3"});
  config.runner.kv_cache_dtype = dtype == "auto"            ? runtime::KvCacheDType::kAuto
                                 : dtype.starts_with("fp8") ? runtime::KvCacheDType::kFp8
                                                            : runtime::KvCacheDType::kBf16;
  config.enable_prefix_caching = flags.boolean("enable-prefix-caching", true);
}

void take_scheduler(const ParsedFlags& flags, ServeConfig& config) {
  config.max_num_seqs = static_cast<int32_t>(integer_in(flags, "max-num-seqs", 256, 1, 1 << 16));
  config.max_num_batched_tokens =
      static_cast<int32_t>(integer_in(flags, "max-num-batched-tokens", 2048, 1, 1 << 20));
  config.kv.max_num_seqs = config.max_num_seqs;
  config.runner.max_num_seqs = config.max_num_seqs;
  config.runner.max_num_batched_tokens = config.max_num_batched_tokens;
  config.seed = static_cast<uint64_t>(flags.integer("seed", 0));
  config.log_stats = !flags.has("disable-log-stats");
  config.shutdown_seconds = static_cast<int>(integer_in(flags, "shutdown-timeout", 30, 0, 86400));
}

// "kimi_k2" or absent: on, since the model family has one format. "none": off.
bool take_parser(const ParsedFlags& flags, const char* name) {
  const std::string parser = flags.string(name, "kimi_k2");
  if (parser.empty()) return true;
  check_one_of(name, parser, std::array<std::string_view, 2>{"kimi_k2", "none"});
  return parser != "none";
}

chat::ContentFormat take_content_format(const ParsedFlags& flags) {
  const std::string format = flags.string("chat-template-content-format", "auto");
  check_one_of("chat-template-content-format", format,
               std::array<std::string_view, 3>{"auto", "string", "openai"});
  if (format == "auto") return chat::ContentFormat::kAuto;
  return format == "string" ? chat::ContentFormat::kString : chat::ContentFormat::kParts;
}

void take_server(const ParsedFlags& flags, ServeConfig& config) {
  server::ServerConfig& out = config.server;
  config.host = flags.string("host", "0.0.0.0");
  config.port = static_cast<int>(integer_in(flags, "port", 8000, 0, 65535));
  out.served_model_names = flags.list("served-model-name");
  if (out.served_model_names.empty()) out.served_model_names = {config.model};
  out.model_root = config.model;
  out.version = std::string(kVersion);
  out.system_fingerprint = fmt::format("eyrie-{}", kVersion);
  out.api_keys = flags.list("api-key");
  if (const char* key = std::getenv("VLLM_API_KEY");
      out.api_keys.empty() && key != nullptr && *key != '\0') {
    out.api_keys = {key};
  }
  out.max_logprobs = static_cast<int32_t>(integer_in(flags, "max-logprobs", 20, -1, kMaxInt));
  if (flags.has("default-chat-template-kwargs"))
    out.default_chat_template_kwargs = flags.json("default-chat-template-kwargs");
  config.chat_template = {.tokenizer_dir = config.tokenizer_path,
                          .model_dir = config.model_path,
                          .given = flags.string("chat-template"),
                          .content_format = take_content_format(flags)};
  out.trust_request_chat_template = flags.boolean("trust-request-chat-template", false);
  out.exclude_tools_when_tool_choice_none =
      flags.boolean("exclude-tools-when-tool-choice-none", false);
  out.response_role = flags.string("response-role", "assistant");
  out.parse_tools = take_parser(flags, "tool-call-parser");
  out.parse_reasoning = take_parser(flags, "reasoning-parser");
  out.return_tokens_as_token_ids = flags.boolean("return-tokens-as-token-ids", false);
  out.enable_prompt_tokens_details = flags.boolean("enable-prompt-tokens-details", false);
  out.force_include_usage = flags.boolean("enable-force-include-usage", false);
  out.track_server_load = flags.boolean("enable-server-load-tracking", false);
  config.tokenizer_info = flags.boolean("enable-tokenizer-info-endpoint", false);
  out.log_requests = flags.boolean("enable-log-requests", false);
  out.engine_metrics = config.log_stats;
  config.generation_config = flags.string("generation-config", "auto");
  config.override_generation_config = flags.json("override-generation-config");
}

int32_t count_key(const nlohmann::json& json, const char* key, int32_t absent) {
  const auto it = json.find(key);
  if (it == json.end() || it->is_null()) return absent;
  if (!it->is_number_integer() || it->get<int64_t>() < 1 || it->get<int64_t>() > 1024) {
    fail("--speculative-config: {} is {}; it takes a whole number from 1 to 1024", key, it->dump());
  }
  return it->get<int32_t>();
}

// Both 5 when neither is given, else the missing one equals the other, as in vLLM.
runtime::NgramConfig ngram_config(const nlohmann::json& json) {
  const int32_t most = count_key(json, "prompt_lookup_max", 0);
  const int32_t least = count_key(json, "prompt_lookup_min", 0);
  runtime::NgramConfig config;
  if (most > 0 || least > 0) {
    config.max_length = most > 0 ? most : least;
    config.min_length = least > 0 ? least : most;
  }
  if (config.min_length > config.max_length) {
    fail("--speculative-config: prompt_lookup_min is {}; it takes at most prompt_lookup_max, {}",
         config.min_length, config.max_length);
  }
  return config;
}

// The chances themselves, or those of equally good drafts that give a mean acceptance length.
std::vector<double> synthetic_rates(const nlohmann::json& json, int32_t num_drafts) {
  const auto rates = json.find("synthetic_acceptance_rates");
  const auto length = json.find("synthetic_acceptance_length");
  if ((rates == json.end()) == (length == json.end())) {
    fail(
        "--speculative-config: rejection_sample_method synthetic needs one of "
        "synthetic_acceptance_rates and synthetic_acceptance_length");
  }
  std::vector<double> out;
  if (rates != json.end()) {
    double before = 1;
    bool good = rates->is_array() && static_cast<int32_t>(rates->size()) == num_drafts;
    for (size_t j = 0; good && j < rates->size(); ++j) {
      good = (*rates)[j].is_number();
      if (good) out.push_back((*rates)[j].get<double>());
      good = good && out.back() >= 0 && out.back() <= before;
      if (good) before = out.back();
    }
    if (!good) {
      fail(
          "--speculative-config: synthetic_acceptance_rates is {}; it takes {} chances from 1 to 0 "
          "that never rise",
          rates->dump(), num_drafts);
    }
    return out;
  }
  if (!length->is_number() || length->get<double>() < 1 || length->get<double>() > num_drafts + 1) {
    fail("--speculative-config: synthetic_acceptance_length is {}; it takes 1 to {}",
         length->dump(), num_drafts + 1);
  }
  const double wanted = length->get<double>();
  const auto mean_length = [&](double chance) {
    double total = 1, survival = 1;
    for (int32_t j = 0; j < num_drafts; ++j) total += survival *= chance;
    return total;
  };
  double low = 0, high = 1;  // grows with the chance
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (mean_length(middle) < wanted ? low : high) = middle;
  }
  double survival = 1;
  for (int32_t j = 0; j < num_drafts; ++j) out.push_back(survival *= high);
  return out;
}

}  // namespace

std::optional<SpeculativeConfig> parse_speculative_config(const nlohmann::json& json) {
  if (json.is_null()) return std::nullopt;
  static constexpr auto kKeys = std::to_array<std::string_view>(
      {"method", "model", "num_speculative_tokens", "adaptive", "prompt_lookup_max",
       "prompt_lookup_min", "draft_tensor_parallel_size", "rejection_sample_method",
       "synthetic_acceptance_rates", "synthetic_acceptance_length", "draft_sample_method",
       "draft_lm_head"});
  for (const auto& [key, value] : json.items()) {
    const bool known = std::find(kKeys.begin(), kKeys.end(), key) != kKeys.end() ||
                       std::find(kIgnoredSpeculativeKeys.begin(), kIgnoredSpeculativeKeys.end(),
                                 key) != kIgnoredSpeculativeKeys.end();
    if (!known)
      fail("--speculative-config: unknown key '{}'; known are {}", key, fmt::join(kKeys, ", "));
  }
  SpeculativeConfig config;
  config.model = string_key(json, "model");
  std::string method = string_key(json, "method");
  if (method.empty() && looks_like_eagle3(config.model)) method = "eagle3";
  if (method != "eagle3" && method != "ngram") {
    fail("--speculative-config: method is '{}'; it takes eagle3 or ngram", method);
  }
  if (method == "ngram") {
    config.ngram = ngram_config(json);
    config.model.clear();
  } else if (config.model.empty()) {
    fail("--speculative-config: method eagle3 needs \"model\", the draft's folder or id");
  }
  const auto count = json.find("num_speculative_tokens");
  if (count == json.end() || !count->is_number_integer() || count->get<int64_t>() < 1 ||
      count->get<int64_t>() > 64) {
    fail("--speculative-config: num_speculative_tokens is {}; it takes a whole number from 1 to 64",
         count == json.end() ? "absent" : count->dump());
  }
  config.num_speculative_tokens = count->get<int32_t>();
  if (const int64_t ranks = json.value("draft_tensor_parallel_size", int64_t{1}); ranks != 1) {
    fail("--speculative-config: draft_tensor_parallel_size is {}; it takes 1 (the target's)",
         ranks);
  }
  const auto adaptive = json.find("adaptive");
  if (adaptive != json.end() && !adaptive->is_boolean()) {
    fail("--speculative-config: adaptive is {}; it takes true or false", adaptive->dump());
  }
  config.adaptive = adaptive == json.end() || adaptive->get<bool>();
  const std::string rejection = string_key(json, "rejection_sample_method");
  if (rejection == "synthetic") {
    config.synthetic_acceptance = synthetic_rates(json, config.num_speculative_tokens);
  } else if (!rejection.empty() && rejection != "standard") {
    fail("--speculative-config: rejection_sample_method is '{}'; it takes standard or synthetic",
         rejection);
  }
  config.draft_lm_head = string_key(json, "draft_lm_head");
  if (const std::string& head = config.draft_lm_head;
      !head.empty() && head != "auto" && head != "fp8" && head != "checkpoint") {
    fail("--speculative-config: draft_lm_head is '{}'; it takes auto, fp8 or checkpoint", head);
  }
  if (const std::string sampling = string_key(json, "draft_sample_method");
      !sampling.empty() && sampling != "greedy") {
    fail("--speculative-config: draft_sample_method is '{}'; it takes greedy", sampling);
  }
  return config;
}

ServeConfig serve_config_from(const ParsedFlags& flags) {
  ServeConfig config;
  config.notes = flags.notes();
  take_model(flags, config);
  take_device(flags, config);
  take_weights(flags, config);
  take_cache(flags, config);
  take_scheduler(flags, config);
  take_server(flags, config);
  take_service(flags, config);
  return config;
}

server::SamplingDefaults sampling_defaults(const ServeConfig& config) {
  nlohmann::json source = nlohmann::json::object();
  const std::string folder =
      config.generation_config == "auto" ? config.model_path : config.generation_config;
  const std::string path = folder + "/generation_config.json";
  if (config.generation_config != "vllm" && std::filesystem::exists(path)) {
    source = nlohmann::json::parse(read_text_file(path), nullptr, /*allow_exceptions=*/false);
    if (!source.is_object()) fail("{} is not a JSON object", path);
  } else if (config.generation_config != "vllm" && config.generation_config != "auto") {
    fail("--generation-config is '{}' and {} does not exist; it takes auto, vllm or a folder",
         config.generation_config, path);
  }
  if (config.override_generation_config.is_object())
    source.merge_patch(config.override_generation_config);

  server::SamplingDefaults defaults;
  const auto number = [&](const char* key, double absent) {
    const auto it = source.find(key);
    if (it == source.end() || it->is_null()) return absent;
    if (!it->is_number()) fail("generation config: {} is {}; it takes a number", key, it->dump());
    return it->get<double>();
  };
  defaults.temperature = number("temperature", defaults.temperature);
  defaults.top_p = number("top_p", defaults.top_p);
  defaults.top_k = static_cast<int32_t>(number("top_k", defaults.top_k));
  defaults.min_p = number("min_p", defaults.min_p);
  defaults.repetition_penalty = number("repetition_penalty", defaults.repetition_penalty);
  if (const double most = number("max_new_tokens", 0); most > 0)
    defaults.max_tokens = static_cast<int32_t>(most);
  return defaults;
}

}  // namespace eyrie::apps
