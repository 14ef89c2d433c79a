// The twin check: 2,000 made-up answers full of markers, half markers, cut characters and stops.
// Put together from its stream as a client does it, each equals the unstreamed answer; drafts,
// right or wrong, change nothing; and the text is what a plain search over the whole says.
#include <gtest/gtest.h>

#include <condition_variable>

#include "engine/engine.h"
#include "engine/tape_runner.h"
#include "server/answer.h"
#include "server/twin_cases.h"

namespace eyrie::server {
namespace {

using twins::Case;
using twins::cases;
using twins::kNumCases;
using twins::play_case;
using twins::tokenizer;

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// What one choice says; of a stream, what its deltas add up to.
struct Said {
  Json content, reasoning;
  Json calls = Json::array();
  Json finish, stop;
  Json token_ids = Json::array();
  Json logprobs;

  Json json() const {
    return {{"content", content},  {"reasoning", reasoning}, {"calls", calls},
            {"finish", finish},    {"stop", stop},           {"token_ids", token_ids},
            {"logprobs", logprobs}};
  }
};

void add_text(const Json& holder, const char* key, Json& total) {
  const auto it = holder.find(key);
  if (it == holder.end() || it->is_null()) return;
  total = (total.is_null() ? "" : total.get<std::string>()) + it->get<std::string>();
}

void add_lists(const Json& lists, Json& total) {
  if (lists.is_null()) return;
  if (total.is_null()) total = Json::object();
  for (const auto& [key, values] : lists.items()) {
    if (!total.contains(key)) total[key] = Json::array();
    for (const Json& value : values) total[key].push_back(value);
  }
}

void add_chunk(const Json& choice, Said& said) {
  EXPECT_TRUE(said.finish.is_null()) << "a chunk after the last: " << choice;
  add_text(choice, "text", said.content);
  const Json delta = choice.value("delta", Json::object());
  add_text(delta, "content", said.content);
  add_text(delta, "reasoning", said.reasoning);
  for (const Json& part : delta.value("tool_calls", Json::array())) {
    const auto index = part["index"].get<size_t>();
    if (index == said.calls.size()) {
      said.calls.push_back({{"id", part["id"]},
                            {"type", part["type"]},
                            {"function", {{"name", part["function"]["name"]}}}});
    }
    add_text(part["function"], "arguments", said.calls.at(index)["function"]["arguments"]);
  }
  for (const Json& id : choice.value("token_ids", Json::array())) said.token_ids.push_back(id);
  add_lists(choice.value("logprobs", Json()), said.logprobs);
  said.finish = choice["finish_reason"];
  said.stop = choice.value("stop_reason", Json());
}

// The events of a stream → as a whole answer would say it.
Json assembled(const std::string& events, size_t num_choices) {
  std::vector<Said> said(num_choices);
  Json usage;
  for (size_t at = 0; at < events.size();) {
    const size_t end = events.find("\n\n", at);
    const std::string data = events.substr(at + 6, end - at - 6);
    at = end + 2;
    if (data == "[DONE]") break;
    const Json chunk = Json::parse(data);
    if (chunk["choices"].empty()) usage = chunk["usage"];
    for (const Json& choice : chunk["choices"]) {
      add_chunk(choice, said.at(choice["index"].get<size_t>()));
    }
  }
  Json out = {{"usage", usage}};
  for (Said& one : said) {
    // A chat's first delta has the content "", which beside a thought or a call says nothing.
    const bool has_other = !one.reasoning.is_null() || !one.calls.empty();
    if (one.content == Json("") && has_other) one.content = nullptr;
    out["choices"].push_back(one.json());
  }
  return out;
}

Json flattened(const Json& body) {
  Json out = {{"usage", body["usage"]}};
  out["usage"].erase("prompt_tokens_details");
  for (const Json& choice : body["choices"]) {
    Said said;
    if (choice.contains("message")) {
      const Json& message = choice["message"];
      said.content = message["content"];
      said.reasoning = message["reasoning"];
      said.calls = message["tool_calls"];
      EXPECT_EQ(message["reasoning"], message["reasoning_content"]);
    } else {
      said.content = choice["text"];
    }
    said.finish = choice["finish_reason"];
    said.stop = choice["stop_reason"];
    said.token_ids = choice["token_ids"];
    said.logprobs = choice["logprobs"];
    out["choices"].push_back(said.json());
  }
  return out;
}

// An engine that plays the cases, and answers made from it as the server makes them.
class Player {
 public:
  explicit Player(int32_t num_drafts)
      : engine_(engine_config(num_drafts),
                std::make_unique<engine::TapeRunner>(
                    play_case, [](int64_t output_idx) { return output_idx * 7 % 11 % 8; }),
                tokenizer()) {
    config_.served_model_names = {"nano"};
    config_.max_model_len = 2048;
    config_.vocab_size = tokenizer().vocab_size();
    engine_.start();
  }

  Json play(const Case& one, bool stream) {
    Json body = one.body;
    body["stream"] = stream;
    if (stream) body["stream_options"] = {{"include_usage", true}};
    const Context context{config_, tokenizer(), *chat_template_};
    return one.is_chat ? run(parse_chat(body, context)) : run(parse_completion(body, context));
  }

 private:
  static engine::EngineConfig engine_config(int32_t num_drafts) {
    engine::EngineConfig config;
    config.scheduler = {.max_num_seqs = 8,
                        .max_num_batched_tokens = 256,
                        .max_model_len = 2048,
                        .block_size = 16,
                        .num_blocks = 512,
                        .num_speculative_tokens = num_drafts};
    config.log_interval = std::chrono::seconds(0);
    return config;
  }

  template <typename Generation>
  Json run(Result<Generation> parsed) {
    if (!parsed.ok()) return {{"refused", parsed.failure().message}};
    Generation& generation = parsed.value();
    const auto num_choices = static_cast<size_t>(generation.num_choices());
    const bool stream = generation.stream;
    const auto answer = make_answer({"id", 0, "fingerprint"}, generation, config_, tokenizer());
    const auto output = std::make_shared<engine::OutputStream>([this] {
      std::lock_guard lock(mutex_);
      ready_.notify_one();
    });
    for (engine::GenerateRequest& request : generation.prompts) {
      EXPECT_TRUE(engine_.submit(std::move(request), output).ok());
    }
    std::string events;
    std::unique_lock lock(mutex_);
    while (!answer->finished() && answer->failure() == nullptr) {
      auto chunks = output->take();
      if (chunks.empty()) ready_.wait_for(lock, std::chrono::milliseconds(1));
      for (engine::OutputChunk& chunk : chunks) answer->take(std::move(chunk), events);
    }
    if (const Failure* failure = answer->failure()) return {{"failed", failure->message}};
    if (!stream) return flattened(answer->whole());
    answer->end_stream(events);
    return assembled(events, num_choices);
  }

  ServerConfig config_;
  const std::unique_ptr<chat::ChatTemplate> chat_template_ = chat::make_kimi_template();
  std::mutex mutex_;
  std::condition_variable ready_;
  engine::Engine engine_;
};

// The text of a completion by a plain search in all of it.
std::string expected_text(const Case& one) {
  const Json& body = one.body;
  std::vector<TokenId> ids = one.ids;
  ids.resize(std::min(ids.size(), body["max_tokens"].get<size_t>()));
  const bool includes_stop = body.value("include_stop_str_in_output", false);
  if (includes_stop && ids.size() == one.ids.size() && ids.size() < body["max_tokens"]) {
    ids.push_back(*tokenizer().id_of("<|im_end|>"));  // shown unless special tokens are hidden
  }
  const std::string text = tokenizer().decode(ids, body.value("skip_special_tokens", true));
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const Json& stop : body.value("stop", Json::array())) {
      const auto& stop_text = stop.get_ref<const std::string&>();
      if (std::string_view(text).substr(0, end).ends_with(stop_text)) {
        longest = std::max(longest, stop_text.size());
      }
    }
    if (longest == 0) continue;
    return text.substr(0, includes_stop ? end : end - longest);
  }
  return text;
}

// Not where min_tokens or stop tokens move the end, nor where a stop string is a broken character,
// which an unfinished last one becomes only at the end.
bool has_expected_text(const Case& one) {
  const Json& body = one.body;
  if (one.is_chat || body.contains("min_tokens") || body.contains("stop_token_ids")) return false;
  return body.value("stop", Json::array()).dump().find(kReplacement) == std::string::npos;
}

TEST(TwinTest, AStreamAddsUpToTheWholeAnswerWithAndWithoutDrafts) {
  Player plain(0);
  Player drafting(7);
  int num_refused = 0;
  int num_searched = 0;
  int num_calls = 0;
  for (int i = 0; i < kNumCases; ++i) {
    const Case& one = cases()[static_cast<size_t>(i)];
    const Json whole = plain.play(one, false);
    const std::string where =
        "case " + std::to_string(i) + ": " + one.body.dump() + " answered " + Json(one.ids).dump();
    ASSERT_EQ(plain.play(one, true), whole) << where;
    ASSERT_EQ(drafting.play(one, false), whole) << where;
    ASSERT_EQ(drafting.play(one, true), whole) << where;
    ASSERT_FALSE(whole.contains("failed")) << whole << where;
    if (whole.contains("refused")) {
      ++num_refused;
      ASSERT_TRUE(one.body.contains("stop")) << whole << where;
      continue;
    }
    for (const Json& choice : whole["choices"]) {
      num_calls += static_cast<int>(choice["calls"].size());
      const auto num_tokens = choice["token_ids"].size();
      ASSERT_GE(num_tokens, one.body.value("min_tokens", size_t{0})) << where;
      ASSERT_LE(num_tokens, one.body["max_tokens"].get<size_t>()) << where;
      if (!has_expected_text(one)) continue;
      ASSERT_EQ(choice["content"], expected_text(one)) << where;
      ++num_searched;
    }
  }
  EXPECT_LT(num_refused, kNumCases / 20);
  EXPECT_GT(num_searched, kNumCases / 8);
  EXPECT_GT(num_calls, kNumCases / 8);
}

}  // namespace
}  // namespace eyrie::server
