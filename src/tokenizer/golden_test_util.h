// The small vocabulary and the vectors that tools/text_golden made with tiktoken and Python.
#pragma once

#include <cstdlib>
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

// Another folder with a vocabulary and texts, made by tools/text_golden/fuzz_tokenizer.py.
inline std::string tokenizer_dir() {
  const char* dir = std::getenv("EYRIE_TOKENIZER_DIR");
  return dir == nullptr ? kGoldenDir : dir;
}

inline nlohmann::ordered_json read_golden(const std::string& file,
                                          const std::string& dir = kGoldenDir) {
  return nlohmann::ordered_json::parse(std::ifstream(dir + "/" + file));
}

}  // namespace eyrie
