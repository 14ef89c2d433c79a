// The twin check: 2,000 made-up answers full of markers, half markers, cut characters and stops.
// Put together from its stream as a client does it, each equals the unstreamed answer; drafts,
// right or wrong, change nothing; and the text is what a plain search over the whole says.
#include <gtest/gtest.h>

#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <random>
#include <unordered_map>

#include "engine/engine.h"
#include "engine/tape_runner.h"
#include "server/answer.h"

namespace eyrie::server {
namespace {

constexpr int kNumCases = 2000;
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
const std::vector<std::string> kScraps = {
    "Let me check.",
    " ",
    "\n",
    "functions.f:0",
    "search:1",
    "{\"x\": \"é🦅\"}",
    "</think>",
    "<thi",
    "nk>",
    "<|tool_",
    "call_",
    "<|tool_calls_section_begin|>",
    "call_ab12",
    "老鹰",
    "\xF0\x9F",
    "\xA6\x85",
    "\xFF",
    "STOP",
    "{",
    "}",
    "é",
    "ď🦅ď",
    "<",
    "Done.",
};
const std::vector<std::string> kMarkers = {
    "<think>",
    "</think>",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|im_middle|>",
};

std::string base64(const std::string& bytes) {
  static constexpr char kAlphabet[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t j = i; j < i + 3; ++j) {
      group = group << 8 | (j < bytes.size() ? static_cast<uint8_t>(bytes[j]) : 0U);
    }
    for (size_t j = 0; j < 4; ++j) {
      const uint32_t digit = group >> (18 - 6 * j) & 63;
      out += i + j <= bytes.size() ? kAlphabet[digit] : '=';
    }
  }
  return out;
}

// Every byte, and every part of two to six bytes of the scraps, whatever characters it cuts.
struct Vocabulary {
  Vocabulary() {
    for (int byte = 0; byte < 256; ++byte) add({static_cast<char>(byte)});
    for (const std::string& scrap : kScraps) {
      for (size_t at = 0; at < scrap.size(); ++at) {
        for (size_t size = 2; size <= 6; ++size) add(scrap.substr(at, size));
      }
    }
  }
  void add(const std::string& token) {
    if (ids.emplace(token, static_cast<TokenId>(tokens.size())).second) tokens.push_back(token);
  }
  Tokenizer make_tokenizer() const {
    std::string dir = (std::filesystem::temp_directory_path() / "eyrie-twins-XXXXXX").string();
    EXPECT_NE(mkdtemp(dir.data()), nullptr);
    {
      std::ofstream file(dir + "/tiktoken.model");
      for (size_t i = 0; i < tokens.size(); ++i) file << base64(tokens[i]) << ' ' << i << '\n';
    }
    Tokenizer tokenizer = Tokenizer::load(dir);
    std::filesystem::remove_all(dir);
    return tokenizer;
  }
  std::vector<std::string> tokens;
  std::unordered_map<std::string, TokenId> ids;
};

const Vocabulary& vocabulary() {
  static const Vocabulary vocabulary;
  return vocabulary;
}

const Tokenizer& tokenizer() {
  static const Tokenizer tokenizer = vocabulary().make_tokenizer();
  return tokenizer;
}

struct Case {
  std::vector<TokenId> ids;  // the model's answer; <|im_end|> for ever after
  bool is_chat = false;
  Json body;
};

// Bytes as tokens of random sizes.
void cut_up(std::string_view bytes, std::mt19937& rng, std::vector<TokenId>& ids) {
  while (!bytes.empty()) {
    size_t size = std::min<size_t>(1 + rng() % 6, bytes.size());
    while (!vocabulary().ids.contains(std::string(bytes.substr(0, size)))) --size;
    ids.push_back(vocabulary().ids.at(std::string(bytes.substr(0, size))));
    bytes.remove_prefix(size);
  }
}

std::vector<TokenId> random_answer(std::mt19937& rng) {
  std::vector<TokenId> ids;
  std::string bytes;
  const auto add_marker = [&](const std::string& marker) {
    cut_up(std::exchange(bytes, {}), rng, ids);
    ids.push_back(*tokenizer().id_of(marker));
  };
  for (size_t left = rng() % 16; left > 0; --left) {
    const auto kind = rng() % 6;
    if (kind < 3) {
      bytes += kScraps[rng() % kScraps.size()];
    } else if (kind < 5) {
      add_marker(kMarkers[rng() % kMarkers.size()]);
    } else {
      add_marker("<|tool_call_begin|>");
      bytes += rng() % 2 == 0 ? "functions.f:0" : "search:1";
      add_marker("<|tool_call_argument_begin|>");
      bytes += "{\"x\": \"é🦅\"}";
      if (rng() % 4 > 0) add_marker("<|tool_call_end|>");
    }
  }
  cut_up(bytes, rng, ids);
  return ids;
}

// A part of the answer, at its characters, or something that may stand in none.
std::string random_stop(const std::string& text, std::mt19937& rng) {
  if (text.empty() || rng() % 4 == 0) return kMarkers[rng() % kMarkers.size()].substr(0, 3);
  const auto is_inside = [&](size_t at) {
    return at < text.size() && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80;
  };
  size_t begin = rng() % text.size();
  size_t end = std::min(text.size(), begin + 1 + rng() % 7);
  while (is_inside(begin)) --begin;
  while (is_inside(end)) ++end;
  return text.substr(begin, end - begin);
}

void add_chat_fields(Case& one, int index, std::mt19937& rng) {
  Json& body = one.body;
  body["messages"] = {{{"role", "user"}, {"content", "case=" + std::to_string(index) + ";"}}};
  if (rng() % 3 > 0) {
    for (const char* name : {"f", "search"}) {
      body["tools"].push_back({{"type", "function"}, {"function", {{"name", name}}}});
    }
    if (rng() % 4 == 0) body["tool_choice"] = "none";
    if (rng() % 4 == 0) body["parallel_tool_calls"] = false;
  }
  if (rng() % 3 == 0) body["chat_template_kwargs"] = {{"thinking", false}};
  if (rng() % 5 == 0) body["include_reasoning"] = false;
  if (rng() % 3 == 0) {
    body["logprobs"] = true;
    body["top_logprobs"] = 2;
  }
}

Case make_case(int index) {
  std::mt19937 rng(static_cast<uint32_t>(index));
  Case one;
  one.ids = random_answer(rng);
  one.is_chat = rng() % 3 > 0;
  Json& body = one.body;
  body = {{"temperature", 1}, {"max_tokens", 200}, {"return_token_ids", true}};
  if (rng() % 4 == 0) body["max_tokens"] = 1 + rng() % (one.ids.size() + 2);
  if (rng() % 4 == 0) body["min_tokens"] = rng() % (body["max_tokens"].get<size_t>() + 1) % 12;
  if (rng() % 3 == 0) body["skip_special_tokens"] = false;
  if (rng() % 2 == 0) {
    const std::string text = tokenizer().decode(one.ids, false);
    for (size_t left = 1 + rng() % 3; left > 0; --left) {
      body["stop"].push_back(random_stop(text, rng));
    }
    body["include_stop_str_in_output"] = rng() % 2 == 0;
  }
  if (rng() % 8 == 0) body["n"] = 2;
  if (rng() % 8 == 0) body["stop_token_ids"] = {vocabulary().ids.at("{")};
  if (one.is_chat) {
    add_chat_fields(one, index, rng);
  } else {
    body["prompt"] = "case=" + std::to_string(index) + ";";
    if (rng() % 3 == 0) body["logprobs"] = 2;
  }
  return one;
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = [] {
    std::vector<Case> made;
    for (int i = 0; i < kNumCases; ++i) made.push_back(make_case(i));
    return made;
  }();
  return all;
}

// The prompt says which case is played.
TokenId play_case(std::span<const TokenId> prompt, const runtime::SamplingParams& params,
                  int64_t output_idx) {
  const std::string text = tokenizer().decode(prompt, true);
  const size_t at = text.find("case=") + 5;
  const Case& one = cases().at(std::stoul(text.substr(at)));
  const auto i = static_cast<size_t>(output_idx);
  if (i < one.ids.size()) return one.ids[i];
  return output_idx < params.min_tokens ? TokenId{'~'} : *tokenizer().id_of("<|im_end|>");
}

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
    if (one.content == "" && has_other) one.content = nullptr;
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
