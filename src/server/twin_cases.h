// For twin_test: made-up answers full of markers, half markers, cut characters and stops, and the
// requests that get them. A case depends on its number alone.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/request.h"
#include "server/fields.h"
#include "tokenizer/tokenizer.h"

namespace eyrie::server::twins {

inline constexpr int kNumCases = 2000;
inline const std::vector<std::string> kScraps = {
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
inline const std::vector<std::string> kMarkers = {
    "<think>",
    "</think>",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|im_middle|>",
};

inline std::string base64(const std::string& bytes) {
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

inline const Vocabulary& vocabulary() {
  static const Vocabulary vocabulary;
  return vocabulary;
}

inline const Tokenizer& tokenizer() {
  static const Tokenizer tokenizer = vocabulary().make_tokenizer();
  return tokenizer;
}

struct Case {
  std::vector<TokenId> ids;  // the model's answer; <|im_end|> for ever after
  bool is_chat = false;
  Json body;
};

// Bytes as tokens of random sizes.
inline void cut_up(std::string_view bytes, std::mt19937& rng, std::vector<TokenId>& ids) {
  while (!bytes.empty()) {
    size_t size = std::min<size_t>(1 + rng() % 6, bytes.size());
    while (!vocabulary().ids.contains(std::string(bytes.substr(0, size)))) --size;
    ids.push_back(vocabulary().ids.at(std::string(bytes.substr(0, size))));
    bytes.remove_prefix(size);
  }
}

inline std::vector<TokenId> random_answer(std::mt19937& rng) {
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
inline std::string random_stop(const std::string& text, std::mt19937& rng) {
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

inline void add_chat_fields(Case& one, int index, std::mt19937& rng) {
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

inline Case make_case(int index) {
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

inline const std::vector<Case>& cases() {
  static const std::vector<Case> all = [] {
    std::vector<Case> made;
    for (int i = 0; i < kNumCases; ++i) made.push_back(make_case(i));
    return made;
  }();
  return all;
}

// The prompt says which case is played.
inline TokenId play_case(std::span<const TokenId> prompt, const runtime::SamplingParams& params,
                         int64_t output_idx) {
  const std::string text = tokenizer().decode(prompt, true);
  const size_t at = text.find("case=") + 5;
  const Case& one = cases().at(std::stoul(text.substr(at)));
  const auto i = static_cast<size_t>(output_idx);
  if (i < one.ids.size()) return one.ids[i];
  return output_idx < params.min_tokens ? TokenId{'~'} : *tokenizer().id_of("<|im_end|>");
}

}  // namespace eyrie::server::twins
