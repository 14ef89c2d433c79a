// Byte-level BPE: tokens are byte strings, the rank of a token is both its id and its priority when
// two neighbours merge. Immutable after construction, any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace eyrie {

class BpeVocabulary {
 public:
  // token_bytes[rank]; all different, none empty, every single byte among them.
  explicit BpeVocabulary(const std::vector<std::string>& token_bytes);

  int32_t size() const { return static_cast<int32_t>(offsets_.size()) - 1; }
  std::string_view bytes(TokenId id) const {
    return std::string_view(blob_).substr(
        offsets_[static_cast<size_t>(id)],
        offsets_[static_cast<size_t>(id) + 1] - offsets_[static_cast<size_t>(id)]);
  }

  // The token that is exactly these bytes, or kNone.
  static constexpr TokenId kNone = INT32_MAX;  // compares above every rank
  TokenId find(std::string_view bytes) const;

  // Tokens of one piece of the pre-tokenizer: merge the neighbours of lowest rank, leftmost first,
  // until none merge.
  void encode_piece(std::string_view piece, std::vector<TokenId>& out) const;

 private:
  void merge_short(std::string_view piece, std::vector<TokenId>& out) const;
  void merge_long(std::string_view piece, std::vector<TokenId>& out) const;

  // A token of up to eight bytes is whole in its slot, so finding it touches one cache line.
  struct Slot {
    uint64_t head = 0;  // the first eight bytes, zeros behind a shorter token
    uint32_t size = 0;  // 0: empty
    TokenId id = kNone;
  };
  size_t slot_of(std::string_view bytes, uint64_t head) const;
  std::string blob_;
  std::vector<uint32_t> offsets_;
  std::vector<Slot> slots_;  // open addressing, at most half full
  std::array<TokenId, 256> byte_ids_;
  std::vector<TokenId> pair_ids_;  // [first byte * 256 + second byte]
};

}  // namespace eyrie
