// eyrie bench throughput MODEL [flags]: vLLM's `bench throughput`, a dataset handed to the engine
// all at once.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "apps/eyrie/bench_flags.h"
#include "apps/eyrie/local_bench.h"
#include "apps/eyrie/local_engine.h"
#include "base/error.h"
#include "bench/dataset.h"
#include "bench/machine.h"

namespace eyrie::apps {
namespace {

constexpr auto kFlags = std::to_array<FlagSpec>({
    {.name = "backend", .kind = FlagKind::kString, .help = "vllm or vllm-chat [vllm]"},
    {.name = "dataset-name", .kind = FlagKind::kString, .help = "random or custom [random]"},
    {.name = "dataset-path",
     .kind = FlagKind::kString,
     .help = "JSONL of custom: \"prompt\", optional \"output_tokens\""},
    {.name = "num-prompts", .kind = FlagKind::kInt, .help = "requests [1000]"},
    {.name = "num-warmups", .kind = FlagKind::kInt, .help = "copies of the first, before [0]"},
    {.name = "input-len", .kind = FlagKind::kInt, .help = "tokens of a random prompt [1024]"},
    {.name = "output-len", .kind = FlagKind::kInt, .help = "tokens of an answer [128]"},
    {.name = "random-input-len", .kind = FlagKind::kInt, .help = "the same as --input-len"},
    {.name = "random-output-len", .kind = FlagKind::kInt, .help = "the same as --output-len"},
    {.name = "random-prefix-len", .kind = FlagKind::kInt, .help = "tokens that begin all prompts"},
    {.name = "random-range-ratio", .kind = FlagKind::kString, .help = "spread of lengths"},
    {.name = "random-range-ratio-mode",
     .kind = FlagKind::kString,
     .help = "vllm: L(1-r)…L(1+r); inferencex: L*r…L [vllm]"},
    {.name = "custom-output-len",
     .kind = FlagKind::kInt,
     .help = "tokens of an answer; -1 = from the file [file, else 256]"},
    {.name = "skip-chat-template",
     .kind = FlagKind::kSwitch,
     .help = "custom: prompts as they are"},
    {.name = "no-oversample", .kind = FlagKind::kSwitch, .help = "custom: repeat no prompt"},
    {.name = "disable-shuffle", .kind = FlagKind::kSwitch, .help = "custom: keep the order"},
    {.name = "n", .kind = FlagKind::kInt, .help = "answers to a prompt [1]"},
    {.name = "temperature", .kind = FlagKind::kFloat, .help = "of sampling [1.0]"},
    {.name = "output-json", .kind = FlagKind::kString, .help = "file for the result"},
    {.name = "async-engine", .kind = FlagKind::kSwitch, .explained = "there is one engine"},
    {.name = "disable-detokenize",
     .kind = FlagKind::kSwitch,
     .explained = "text costs 0.1 us a token here and is made beside the step"},
    {.name = "disable-frontend-multiprocessing",
     .kind = FlagKind::kSwitch,
     .explained = "there is one process"},
    {.name = "profile", .kind = FlagKind::kSwitch, .explained = "use perf or ncu"},
});

std::vector<LocalJob> make_jobs(const ParsedFlags& flags, const ServeConfig& config,
                                const Tokenizer& tokenizer, int32_t n) {
  const std::string backend = flags.string("backend", "vllm");
  if (backend != "vllm" && backend != "vllm-chat") {
    fail("--backend is '{}'; it takes vllm or vllm-chat", backend);
  }
  const auto codec = bench::load_text_codec(config.tokenizer_path, nlohmann::json::object());
  const bench::Dataset dataset =
      bench::make_dataset(dataset_options(flags), codec.get(), /*wrap_on_client=*/true);
  for (const std::string& note : dataset.notes) fmt::print("{}\n", note);
  if (dataset.prompts.empty()) fail("the dataset has no prompts");
  std::vector<LocalJob> jobs;
  for (const bench::BenchPrompt& prompt : dataset.prompts) {
    jobs.push_back({.prompt = tokenizer.encode(prompt.text, AllowSpecial::kAll),
                    .max_tokens = static_cast<int32_t>(prompt.output_len),
                    .n = n});
  }
  return jobs;
}

int measure(const ParsedFlags& flags) {
  const auto n = static_cast<int32_t>(count_from(flags, "n", 1, 1));
  const auto num_warmups = static_cast<size_t>(count_from(flags, "num-warmups", 0, 0));
  const runtime::SamplingParams sampling = bench_sampling(flags);
  const ServeConfig config = serve_config_from(flags);
  say_notes(config);
  Tokenizer tokenizer = Tokenizer::load(config.tokenizer_path);
  const std::vector<LocalJob> jobs = make_jobs(flags, config, tokenizer, n);
  LocalEngine engine(config, std::move(tokenizer), static_cast<int32_t>(jobs.size()) * n);
  fmt::print("{} · {}\n{}\n", config.model, bench::describe_machine(), engine.summary());
  if (num_warmups > 0) {
    (void)engine.run(std::vector<LocalJob>(num_warmups, jobs.front()), sampling);
  }
  const LocalRun run = engine.run(jobs, sampling);

  const auto num_requests = static_cast<double>(jobs.size());
  const int64_t num_tokens = run.num_prompt_tokens + run.num_output_tokens;
  fmt::print(
      "Throughput: {:.2f} requests/s, {:.2f} total tokens/s, {:.2f} output tokens/s\n"
      "Total num prompt tokens:  {}\nTotal num output tokens:  {}\n",
      num_requests / run.seconds, static_cast<double>(num_tokens) / run.seconds,
      static_cast<double>(run.num_output_tokens) / run.seconds, run.num_prompt_tokens,
      run.num_output_tokens);
  write_json(
      flags.string("output-json"),
      {{"elapsed_time", run.seconds},
       {"num_requests", jobs.size()},
       {"total_num_tokens", num_tokens},
       {"requests_per_second", num_requests / run.seconds},
       {"tokens_per_second", static_cast<double>(num_tokens) / run.seconds},
       {"eyrie",
        {{"num_prompt_tokens", run.num_prompt_tokens},
         {"num_output_tokens", run.num_output_tokens},
         {"output_tokens_per_second", static_cast<double>(run.num_output_tokens) / run.seconds},
         {"num_draft_tokens", run.num_draft_tokens},
         {"num_accepted_tokens", run.num_accepted_tokens},
         {"model", config.model},
         {"machine", bench::describe_machine()},
         {"flags", flags.given()},
         {"load", engine.summary()}}}});
  return 0;
}

}  // namespace

int run_bench_throughput(const std::vector<std::string>& args) {
  if (std::any_of(args.begin(), args.end(), is_help_flag)) {
    fmt::print("eyrie bench throughput MODEL [flags, and those of serve]\n\n{}",
               flags_help(kFlags));
    return 0;
  }
  return measure(parse_flags(with_engine_flags(kFlags), args));
}

}  // namespace eyrie::apps
