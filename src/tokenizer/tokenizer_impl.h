// The parts of a Tokenizer, shared by loading (tokenizer_load.cpp) and use (tokenizer.cpp).
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "tokenizer/bpe.h"
#include "tokenizer/tokenizer.h"

namespace eyrie {

struct ControlToken {
  std::string text;
  bool special = false;
};

struct Tokenizer::Impl {
  Impl(const std::vector<std::string>& base_tokens, std::vector<ControlToken> control_tokens,
       std::vector<TokenId> eos);

  struct Spelling {
    std::string_view text;
    TokenId id;
  };
  // The control token that text begins with, the longest of several; nullptr if none.
  const Spelling* control_at(std::string_view text) const;

  void encode_ordinary(std::string_view valid, std::vector<TokenId>& out) const;
  void encode_portion(std::string_view valid, AllowSpecial allow, std::vector<TokenId>& out) const;

  BpeVocabulary bpe;
  std::vector<ControlToken> controls;  // [id - bpe.size()]
  std::unordered_map<std::string_view, TokenId> control_ids;
  std::unordered_map<uint32_t, std::vector<Spelling>> controls_by_start;  // first two bytes
  std::array<bool, 256> begins_control{};
  std::vector<TokenId> eos_ids;
};

}  // namespace eyrie
