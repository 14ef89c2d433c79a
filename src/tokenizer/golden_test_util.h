// The small vocabulary and the vectors that tools/text_golden made with tiktoken and Python.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tokenizer/tokenizer.h"

namespace eyrie {

inline const char* const kGoldenDir = "tests/golden/text";

inline const Tokenizer& golden_tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::load(kGoldenDir);
  return tokenizer;
}

inline nlohmann::ordered_json read_golden(const std::string& file) {
  return nlohmann::ordered_json::parse(std::ifstream(std::string(kGoldenDir) + "/" + file));
}

}  // namespace eyrie
