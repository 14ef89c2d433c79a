// For tests: random answers full of markers, and random JSON made of the words an API knows. A seed
// gives the same again.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "chat/message.h"

namespace eyrie::server {

inline std::string random_answer(std::mt19937& dice) {
  static const std::vector<std::string> pieces = {
      "a",
      "b",
      " ",
      "<",
      "🦅",
      "Łódź",
      "\n",
      "</thi",
      "</think>",
      "</think>",
      "<think>",
      "<|tool_calls_section_begin|>",
      "<|tool_calls_section_end|>",
      "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"a\": "
      "\"🦅\"}<|tool_call_end|>",
      "<|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>",
      "<|tool_call_begin|>f<|tool_call_argument_begin|>{}",
      "<|tool_call_end|>",
      "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:2<|tool_call_argument_begin|>{",
  };
  std::string text;
  const size_t count = dice() % 12;
  for (size_t i = 0; i < count; ++i) text += pieces[dice() % pieces.size()];
  return text;
}

inline chat::Json random_json(std::mt19937& dice, const std::vector<std::string>& words,
                              int depth) {
  const auto word = [&] { return words[dice() % words.size()]; };
  switch (dice() % (depth > 0 ? 9 : 5)) {
    case 0:
      return nullptr;
    case 1:
      return dice() % 2 == 0;
    case 2:
      return static_cast<int>(dice() % 100) - 5;
    case 3:
    case 4:
      return word();
    case 5: {
      chat::Json list = chat::Json::array();
      for (size_t i = dice() % 3; i > 0; --i) list.push_back(random_json(dice, words, depth - 1));
      return list;
    }
    default: {
      chat::Json object = chat::Json::object();
      for (size_t i = dice() % 5; i > 0; --i) {
        object[word()] = random_json(dice, words, depth - 1);
      }
      if (dice() % 2 == 0) object["type"] = word();
      return object;
    }
  }
}

}  // namespace eyrie::server
