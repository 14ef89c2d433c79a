// A request's body at one of the endpoints, through the whole API but for the socket: it is refused
// with a 4xx that is valid JSON, or it runs. What runs is answered from a tape (the input's second
// part), and the answer, streamed or whole, is valid JSON too.
#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "base/check.h"
#include "engine/tape_runner.h"
#include "server/api.h"
#include "tests/fuzz/fuzz_input.h"

namespace eyrie::fuzz {
namespace {

using server::Json;

constexpr std::array kPaths = {"/v1/completions",
                               "/v1/chat/completions",
                               "/v1/responses",
                               "/v1/messages",
                               "/v1/messages/count_tokens",
                               "/tokenize",
                               "/detokenize",
                               "/invocations"};

constexpr int32_t kMaxModelLen = 2048;

struct Rig {
  Rig() {
    config.served_model_names = {"nano"};
    config.max_model_len = kMaxModelLen;
    config.vocab_size = tokenizer.vocab_size();
  }
  server::ServerConfig config;
  Tokenizer tokenizer = engine::make_byte_tokenizer();
  std::unique_ptr<chat::ChatTemplate> chat_template = chat::make_kimi_template();
  // Never started: it only says how it is.
  engine::Engine engine{{.scheduler = {.max_num_seqs = 1,
                                       .max_num_batched_tokens = kMaxModelLen,
                                       .max_model_len = kMaxModelLen,
                                       .block_size = 16,
                                       .num_blocks = 256},
                         .draft_sizer = {}},
                        std::make_unique<engine::TapeRunner>(engine::TapeRunner::Tape()),
                        tokenizer};
};

void check_json(const std::string& text) { CHECK(Json::accept(text), "not JSON: {}", text); }

// Server-sent events: "event:" lines where there are any, "data:" with JSON or [DONE].
void check_events(std::string_view events) {
  while (!events.empty()) {
    const size_t end = events.find("\n\n");
    CHECK(end != std::string_view::npos, "an event without an end: {}", events);
    std::string_view event = events.substr(0, end);
    events.remove_prefix(end + 2);
    if (event.starts_with("event: ")) event.remove_prefix(event.find('\n') + 1);
    CHECK(event.starts_with("data: "), "not an event: {}", event);
    event.remove_prefix(6);
    if (event != "[DONE]") check_json(std::string(event));
  }
}

runtime::Logprobs logprobs_of(TokenId token, int32_t num_top) {
  runtime::Logprobs logprobs;
  logprobs.token = {token, -0.5F, 1};
  for (int32_t i = 0; i < num_top && i < 20; ++i) {
    logprobs.top.push_back({(token + i) % 256, -0.5F - static_cast<float>(i), i + 1});
  }
  return logprobs;
}

// Plays the tape to one choice as the engine would, a few tokens a chunk.
void play(const engine::GenerateRequest& request, int32_t choice_idx,
          const std::vector<TokenId>& tape, const Tokenizer& tokenizer, Cuts& cuts,
          server::Answer& answer, std::string& events) {
  const runtime::SamplingParams& params = request.params;
  TextStream stream(tokenizer, request.text, request.prompt);
  engine::OutputChunk chunk;
  chunk.choice_idx = choice_idx;
  if (params.prompt_logprobs) {
    for (size_t i = 1; i < request.prompt.size(); ++i) {
      chunk.prompt_logprobs.push_back(logprobs_of(request.prompt[i], *params.prompt_logprobs));
    }
  }
  const auto add_logprobs = [&] {
    if (!params.logprobs) return;
    for (size_t i = chunk.logprobs.size(); i < chunk.pieces.size(); ++i) {
      chunk.logprobs.push_back(logprobs_of(chunk.pieces[i].token, *params.logprobs));
    }
  };
  CHECK(params.max_tokens >= 1);
  size_t room = cuts.next(5);
  for (int32_t i = 0; chunk.finish == engine::FinishReason::kNone; ++i) {
    const TokenId token = static_cast<size_t>(i) < tape.size() ? tape[static_cast<size_t>(i)]
                                                               : *tokenizer.id_of("<|im_end|>");
    const bool may_stop = i + 1 >= params.min_tokens;
    if (stream.push(token, chunk.pieces, may_stop)) {
      chunk.finish = engine::FinishReason::kStop;
      chunk.stop_string = *stream.matched_stop();
    } else if (may_stop && !params.ignore_eos && token == tokenizer.id_of("<|im_end|>")) {
      chunk.finish = engine::FinishReason::kStop;
    } else if (i + 1 >= params.max_tokens || i >= kMaxModelLen) {
      chunk.finish = engine::FinishReason::kLength;
    }
    if (chunk.finish != engine::FinishReason::kNone) {
      if (stream.matched_stop() == nullptr) stream.finish(chunk.pieces);
      add_logprobs();
      answer.take(std::move(chunk), events);
      return;
    }
    if (chunk.pieces.size() >= room) {
      add_logprobs();
      answer.take(std::exchange(chunk, {}), events);
      chunk.choice_idx = choice_idx;
      room = cuts.next(5);
    }
  }
}

void run(server::GenerationWork& work, const std::vector<TokenId>& tape, const Rig& rig,
         Cuts& cuts) {
  constexpr int32_t kMaxPlayed = 3;  // the other choices end at once
  std::string events;
  int32_t num_played = 0;
  CHECK(!work.requests.empty());
  for (const engine::GenerateRequest& request : work.requests) {
    CHECK(!request.prompt.empty() && request.prompt.size() < size_t{kMaxModelLen});
    CHECK(request.prompt.size() + static_cast<size_t>(request.params.max_tokens) <=
          size_t{kMaxModelLen});
    for (const TokenId id : request.prompt) CHECK(id >= 0 && id < rig.tokenizer.vocab_size());
    for (int32_t i = 0; i < request.n; ++i) {
      static const std::vector<TokenId> kNothing;
      const bool is_played = num_played++ < kMaxPlayed;
      play(request, request.first_choice_idx + i, is_played ? tape : kNothing, rig.tokenizer, cuts,
           *work.answer, events);
    }
  }
  if (const Failure* failure = work.answer->failure()) {
    check_json(server::failure_reply(*work.answer, *failure).body);
    return;
  }
  CHECK(work.answer->finished());
  if (work.stream) {
    work.answer->end_stream(events);
    check_events(events);
    return;
  }
  CHECK(events.empty());
  check_json(work.answer->whole().dump());  // throws for text that is not UTF-8
}

}  // namespace
}  // namespace eyrie::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace eyrie;
  using namespace eyrie::fuzz;
  if (size > 8192) return -1;
  static Rig rig;
  Input input(data, size);
  const unsigned path = input.option();
  const unsigned bits = input.option();
  Cuts cuts(bits);
  rig.config.parse_tools = (bits & 1) == 0;
  rig.config.parse_reasoning = (bits & 2) == 0;
  rig.config.enable_prompt_tokens_details = (bits & 4) != 0;
  rig.config.return_tokens_as_token_ids = (bits & 8) != 0;
  rig.config.exclude_tools_when_tool_choice_none = (bits & 16) != 0;

  server::HttpRequest request;
  request.method = "POST";
  request.path = kPaths[path % kPaths.size()];
  request.content_type = "application/json";
  request.body = std::string(input.part());
  const std::vector<TokenId> tape = rig.tokenizer.encode(input.part(), AllowSpecial::kAll);

  // Stored responses must not reach from one input into the next.
  server::Api api(rig.config, rig.engine, rig.tokenizer, *rig.chat_template);
  auto outcome = api.handle(request);
  if (const auto* reply = std::get_if<server::HttpReply>(&outcome)) {
    CHECK(reply->status == 200 || (reply->status >= 400 && reply->status < 500), "status {}: {}",
          reply->status, reply->body);
    check_json(reply->body);
    return 0;
  }
  run(std::get<server::GenerationWork>(outcome), tape, rig, cuts);
  return 0;
}
