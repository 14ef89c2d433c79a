#include "apps/eyrie/bench_flags.h"

#include <fmt/format.h>

#include <cstdlib>

#include "base/error.h"

namespace eyrie::apps {
namespace {

using bench::RangeMode;
using bench::ServeOptions;
using K = FlagKind;

// name, kind, alias, help, explained (accepted, not acted on)
constexpr FlagSpec kClientFlags[] = {
    {"backend", K::kString, "", "vllm, openai (completions) or openai-chat [openai]", ""},
    {"base-url", K::kString, "", "server, e.g. http://127.0.0.1:8000; overrides host and port", ""},
    {"host", K::kString, "", "server's host [127.0.0.1]", ""},
    {"port", K::kInt, "", "server's port [8000]", ""},
    {"endpoint", K::kString, "", "path of requests [the backend's own]", ""},
    {"model", K::kString, "", "name in requests, and where the tokenizer is [server's first]", ""},
    {"served-model-name", K::kString, "", "name in requests, when it differs from --model", ""},
    {"tokenizer", K::kString, "", "directory or hub id [the model's]", ""},
    {"skip-tokenizer-init", K::kSwitch, "", "load no tokenizer", ""},
    {"seed", K::kInt, "", "of prompts, lengths and arrivals [0]", ""},
    {"num-prompts", K::kInt, "", "requests in the run [1000]", ""},
    {"dataset-name", K::kString, "", "random or custom [random]", ""},
    {"dataset-path", K::kString, "", "JSONL of custom: \"prompt\", optional \"output_tokens\"", ""},
    {"no-oversample", K::kSwitch, "", "custom: do not repeat prompts to reach --num-prompts", ""},
    {"skip-chat-template", K::kSwitch, "", "custom: send prompts as they stand in the file", ""},
    {"disable-shuffle", K::kSwitch, "", "custom: keep the file's order", ""},
    {"input-len", K::kInt, "", "the dataset's input length", ""},
    {"output-len", K::kInt, "", "the dataset's output length", ""},
    {"random-input-len", K::kInt, "", "tokens of a prompt [1024]", ""},
    {"random-output-len", K::kInt, "", "tokens of an answer [128]", ""},
    {"random-prefix-len", K::kInt, "", "tokens that begin every prompt [0]", ""},
    {"random-range-ratio", K::kString, "",
     "spread of lengths: a number or {\"input\":…,\"output\":…}", ""},
    {"random-range-ratio-mode", K::kString, "",
     "vllm: L(1-r)…L(1+r); inferencex: L*r…L [vllm; inferencex with --use-chat-template]", ""},
    {"use-chat-template", K::kSwitch, "",
     "InferenceX's client: wrap random prompts in the model's template, greedy decoding", ""},
    {"custom-output-len", K::kInt, "", "tokens of an answer; -1 = from the file [file, else 256]",
     ""},
    {"request-rate", K::kFloat, "", "requests a second [inf: all at once]", ""},
    {"burstiness", K::kFloat, "", "gamma shape of the gaps; 1 = Poisson [1]", ""},
    {"max-concurrency", K::kInt, "", "requests in flight at most", ""},
    {"ramp-up-strategy", K::kString, "", "linear or exponential, instead of --request-rate", ""},
    {"ramp-up-start-rps", K::kFloat, "", "rate at the first request", ""},
    {"ramp-up-end-rps", K::kFloat, "", "rate at the last request", ""},
    {"num-warmups", K::kInt, "", "copies of the first request sent before the run [0]", ""},
    {"ready-check-timeout-sec", K::kFloat, "", "wait so long for the server to work [0: no check]",
     ""},
    {"ignore-eos", K::kSwitch, "", "answers go on to the length asked for (random: always)", ""},
    {"temperature", K::kFloat, "", "sampling, sent when given", ""},
    {"top-p", K::kFloat, "", "sampling, sent when given", ""},
    {"top-k", K::kInt, "", "sampling, sent when given", ""},
    {"min-p", K::kFloat, "", "sampling, sent when given", ""},
    {"frequency-penalty", K::kFloat, "", "sampling, sent when given", ""},
    {"presence-penalty", K::kFloat, "", "sampling, sent when given", ""},
    {"repetition-penalty", K::kFloat, "", "sampling, sent when given", ""},
    {"extra-body", K::kJson, "", "merged into every request, wins over all else", ""},
    {"chat-template-kwargs", K::kJson, "", "for the chat template, e.g. {\"thinking\": false}", ""},
    {"header", K::kList, "", "KEY=VALUE …: more request headers", ""},
    {"logprobs", K::kInt, "", "log-probabilities asked for", ""},
    {"percentile-metrics", K::kString, "",
     "of ttft,tpot,itl,e2el, what is reported [ttft,tpot,itl]", ""},
    {"metric-percentiles", K::kString, "", "which percentiles [99]", ""},
    {"goodput", K::kList, "", "ttft:MS tpot:MS e2el:MS: count requests within all of these", ""},
    {"save-result", K::kSwitch, "", "write the result as JSON", ""},
    {"save-detailed", K::kSwitch, "", "with every request's figures and text", ""},
    {"append-result", K::kSwitch, "", "append to the result file", ""},
    {"result-dir", K::kString, "", "folder of the result file", ""},
    {"result-filename", K::kString, "", "name of the result file", ""},
    {"metadata", K::kList, "", "KEY=VALUE …: written into the result", ""},
    {"label", K::kString, "", "stands in the result and in its file name", ""},
    {"disable-tqdm", K::kSwitch, "", "no progress line", ""},
    {"request-id-prefix", K::kString, "", "of the x-request-id header [bench-<8 hex>-]", ""},
    {"insecure", K::kSwitch, "", "do not check the server's certificate", ""},
    {"profile", K::kSwitch, "", "POST /start_profile and /stop_profile around the run", ""},
    {"trust-remote-code", K::kSwitch, "", "", "no code of a checkpoint is ever run"},
    {"tokenizer-mode", K::kString, "", "", "there is one tokenizer implementation"},
    {"use-beam-search", K::kSwitch, "", "", "vLLM's client parses it and does nothing either"},
    {"lora-modules", K::kList, "", "", "adapters are not served"},
    {"lora-assignment", K::kString, "", "", "adapters are not served"},
    {"random-batch-size", K::kInt, "", "", "for embedding models, which are not served"},
    {"plot-timeline", K::kSwitch, "", "", "plots come with bench sweep's report"},
    {"timeline-itl-thresholds", K::kString, "", "", "plots come with bench sweep's report"},
    {"plot-dataset-stats", K::kSwitch, "", "", "plots come with bench sweep's report"},
    {"no-stream", K::kSwitch, "", "", "timelines need streamed answers"},
};

std::vector<std::string> split_commas(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t pos = 0; pos <= text.size();) {
    const size_t end = std::min(text.find(',', pos), text.size());
    if (end > pos) parts.push_back(text.substr(pos, end - pos));
    pos = end + 1;
  }
  return parts;
}

double parse_number(const std::string& flag, const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0') fail("{} takes numbers, not '{}'", flag, text);
  return value;
}

std::pair<std::string, std::string> split_pair(const std::string& flag, const std::string& text,
                                               char mark) {
  const size_t at = text.find(mark);
  if (at == std::string::npos || at == 0) fail("{} takes KEY{}VALUE, not '{}'", flag, mark, text);
  return {text.substr(0, at), text.substr(at + 1)};
}

void read_range_ratio(const ParsedFlags& flags, bench::DatasetOptions& dataset) {
  if (!flags.has("random-range-ratio")) return;
  const std::string text = flags.string("random-range-ratio");
  if (text.starts_with('{')) {
    const auto sides = nlohmann::json::parse(text, nullptr, false);
    const auto side = [&](const char* key) {
      if (!sides.is_object() || !sides.contains(key) || !sides[key].is_number()) {
        fail("--random-range-ratio {}: an object needs numbers \"input\" and \"output\"", text);
      }
      return sides[key].get<double>();
    };
    dataset.input_range_ratio = side("input");
    dataset.output_range_ratio = side("output");
  } else {
    dataset.input_range_ratio = dataset.output_range_ratio =
        parse_number("--random-range-ratio", text);
  }
}

nlohmann::json sampling_fields(const ParsedFlags& flags) {
  nlohmann::json fields = nlohmann::json::object();
  const auto number = [&](const char* flag, const char* field) {
    if (flags.has(flag)) fields[field] = flags.number(flag, 0.0);
  };
  number("temperature", "temperature");
  number("top-p", "top_p");
  number("min-p", "min_p");
  number("frequency-penalty", "frequency_penalty");
  number("presence-penalty", "presence_penalty");
  number("repetition-penalty", "repetition_penalty");
  if (flags.has("top-k")) fields["top_k"] = flags.integer("top-k", 0);
  return fields;
}

bench::GoodputLimits goodput_limits(const ParsedFlags& flags) {
  bench::GoodputLimits limits;
  for (const auto& item : flags.list("goodput")) {
    const auto [key, text] = split_pair("--goodput", item, ':');
    const double ms = parse_number("--goodput", text);
    if (ms < 0.0) fail("--goodput {}: a limit in milliseconds cannot be negative", item);
    if (key == "ttft") {
      limits.ttft_ms = ms;
    } else if (key == "tpot") {
      limits.tpot_ms = ms;
    } else if (key == "e2el") {
      limits.e2el_ms = ms;
    } else {
      fail("--goodput {}: limits exist for ttft, tpot and e2el", item);
    }
  }
  return limits;
}

}  // namespace

std::span<const FlagSpec> bench_client_flags() { return kClientFlags; }

bench::DatasetOptions dataset_options(const ParsedFlags& flags) {
  bench::DatasetOptions dataset;
  dataset.name = flags.string("dataset-name", dataset.name);
  dataset.path = flags.string("dataset-path");
  dataset.num_prompts = flags.integer("num-prompts", dataset.num_prompts);
  const int64_t seed = flags.integer("seed", 0);
  if (seed < 0) fail("--seed {}: must be at least 0", seed);
  dataset.seed = static_cast<uint64_t>(seed);
  const int64_t input_len = flags.integer("input-len", dataset.input_len);
  const int64_t output_len = flags.integer("output-len", dataset.output_len);
  dataset.input_len = flags.integer("random-input-len", input_len);
  dataset.output_len = flags.integer("random-output-len", output_len);
  dataset.prefix_len = flags.integer("random-prefix-len", 0);
  if (dataset.input_len < 0 || dataset.output_len < 1 || dataset.prefix_len < 0) {
    fail("random lengths {} in, {} out, {} prefix: input and prefix must be at least 0, output 1",
         dataset.input_len, dataset.output_len, dataset.prefix_len);
  }
  read_range_ratio(flags, dataset);
  if (flags.has("random-range-ratio-mode")) {
    const std::string mode = flags.string("random-range-ratio-mode");
    if (mode != "vllm" && mode != "inferencex" && mode != "sglang") {
      fail("--random-range-ratio-mode {}: vllm or inferencex (sglang means the same as the latter)",
           mode);
    }
    dataset.range_mode = mode == "vllm" ? RangeMode::kVllm : RangeMode::kInferenceX;
  }
  dataset.use_chat_template = flags.boolean("use-chat-template", false);
  if (flags.has("custom-output-len") || flags.has("output-len")) {
    dataset.custom_output_len = flags.integer("custom-output-len", output_len);
  }
  dataset.skip_chat_template = flags.boolean("skip-chat-template", false);
  dataset.disable_shuffle = flags.boolean("disable-shuffle", false);
  dataset.no_oversample = flags.boolean("no-oversample", false);
  return dataset;
}

bool is_help_flag(const std::string& arg) {
  return arg == "--help" || arg == "-h" || arg.starts_with("--help=");
}

bench::ServeOptions serve_options_from(const ParsedFlags& flags) {
  ServeOptions options;
  options.backend = flags.string("backend", options.backend);
  options.base_url = flags.string("base-url");
  options.host = flags.string("host", options.host);
  options.port = flags.integer("port", options.port);
  options.port_given = flags.has("port");
  options.endpoint = flags.string("endpoint");
  options.model = flags.string("model");
  options.served_model_name = flags.string("served-model-name");
  options.tokenizer = flags.string("tokenizer");
  options.skip_tokenizer_init = flags.boolean("skip-tokenizer-init", false);
  options.dataset = dataset_options(flags);
  options.arrivals.request_rate = flags.number("request-rate", options.arrivals.request_rate);
  options.arrivals.burstiness = flags.number("burstiness", 1.0);
  options.arrivals.ramp_up = flags.string("ramp-up-strategy");
  options.arrivals.ramp_start = flags.number("ramp-up-start-rps", 0.0);
  options.arrivals.ramp_end = flags.number("ramp-up-end-rps", 0.0);
  if (flags.has("max-concurrency")) options.max_concurrency = flags.integer("max-concurrency", 0);
  options.num_warmups = flags.integer("num-warmups", 0);
  options.ready_check_timeout_s = flags.number("ready-check-timeout-sec", 0.0);
  options.ignore_eos = flags.boolean("ignore-eos", false);
  options.sampling = sampling_fields(flags);
  if (flags.has("chat-template-kwargs")) {
    options.chat_template_kwargs = flags.json("chat-template-kwargs");
  }
  if (flags.has("extra-body")) options.extra_body = flags.json("extra-body");
  if (flags.has("logprobs")) options.logprobs = flags.integer("logprobs", 0);
  for (const auto& item : flags.list("header")) {
    const auto [key, value] = split_pair("--header", item, '=');
    options.headers.push_back(fmt::format("{}: {}", key, value));
  }
  options.insecure = flags.boolean("insecure", false);
  options.profile = flags.boolean("profile", false);
  options.request_id_prefix = flags.string("request-id-prefix");
  if (flags.has("percentile-metrics")) {
    options.percentile_metrics = split_commas(flags.string("percentile-metrics"));
  }
  if (flags.has("metric-percentiles")) {
    options.percentiles.clear();
    for (const auto& q : split_commas(flags.string("metric-percentiles"))) {
      options.percentiles.push_back(parse_number("--metric-percentiles", q));
    }
  }
  options.goodput = goodput_limits(flags);
  options.save_result = flags.boolean("save-result", false);
  options.save_detailed = flags.boolean("save-detailed", false);
  options.append_result = flags.boolean("append-result", false);
  options.result_dir = flags.string("result-dir");
  options.result_filename = flags.string("result-filename");
  options.label = flags.string("label");
  for (const auto& item : flags.list("metadata")) {
    options.metadata.push_back(split_pair("--metadata", item, '='));
  }
  options.disable_progress = flags.boolean("disable-tqdm", false);
  return options;
}

std::vector<std::string> arguments_after(int argc, char** argv, int skip) {
  std::vector<std::string> args;
  for (int i = skip; i < argc; ++i) args.emplace_back(argv[i]);
  return args;
}

}  // namespace eyrie::apps
