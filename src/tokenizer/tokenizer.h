// Text to token ids and back: byte-level BPE over a tiktoken.model, Kimi's pre-tokenizer pattern
// and Kimi's 256 slots for control tokens behind the mergeable ranks. A Tokenizer is immutable
// after load; every const method may be called from any thread. Ids are int32, sizes are bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace eyrie {

using TokenId = int32_t;

// kAll: spellings of control tokens in the text become those tokens (tiktoken's allowed_special =
// "all"). kNone: they are ordinary text, so text from a user cannot forge the end of a turn.
enum class AllowSpecial { kAll, kNone };

class Tokenizer {
 public:
  // Reads DIR/tiktoken.model, DIR/tokenizer_config.json (added_tokens_decoder; Kimi's names for the
  // slots where the file or the field is absent) and the eos_token_id of DIR/config.json and
  // DIR/generation_config.json where they exist. Error names file and line or field.
  static Tokenizer load(const std::string& dir);
  // The 256 single bytes and nothing else: for measuring a model that came without a vocabulary.
  // Other ids have no bytes, and no token ends an answer.
  static Tokenizer bytes_only();

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Invalid UTF-8 in text counts as U+FFFD.
  std::vector<TokenId> encode(std::string_view text, AllowSpecial allow) const;
  void encode_append(std::string_view text, AllowSpecial allow, std::vector<TokenId>& out) const;

  // The first spelling of a control token in the text, the longest if several begin there.
  struct ControlSpelling {
    size_t offset = 0;
    size_t size = 0;
    TokenId id = 0;
  };
  std::optional<ControlSpelling> find_control(std::string_view text) const;

  // Valid UTF-8 always: bytes that are no character become U+FFFD. Ids outside the vocabulary have
  // no bytes. skip_special leaves out the tokens that is_special() names.
  std::string decode(std::span<const TokenId> ids, bool skip_special) const;

  // The bytes of one token; of a control token its spelling. Empty for ids outside the vocabulary.
  std::string_view token_bytes(TokenId id) const;

  // The id of a control token by its spelling: "<|im_end|>", "<think>", …
  std::optional<TokenId> id_of(std::string_view control) const;

  // A token from the slots behind the mergeable ranks, whatever its flag.
  bool is_control(TokenId id) const { return id >= num_base_tokens() && id < vocab_size(); }
  // Marked special in tokenizer_config.json: skip_special_tokens hides it. Kimi's think and tool
  // markers are control tokens that are not special.
  bool is_special(TokenId id) const;

  int32_t num_base_tokens() const;  // mergeable ranks: ids 0 … num_base_tokens - 1
  int32_t vocab_size() const;       // base tokens and slots

  // Tokens that end an answer, ascending: those of config.json and generation_config.json, [EOS],
  // <|im_end|>, [EOT].
  const std::vector<TokenId>& eos_ids() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace eyrie
