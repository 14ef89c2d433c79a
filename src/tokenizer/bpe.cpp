#include "tokenizer/bpe.h"

#include <bit>
#include <cstring>
#include <queue>

#include "base/check.h"

namespace eyrie {
namespace {

// Eight bytes at a time, multiply and fold. Only our own table depends on the values.
uint64_t hash_bytes(std::string_view bytes) {
  constexpr uint64_t kMul = 0x9E3779B97F4A7C15ull;
  uint64_t hash = bytes.size() * kMul;
  const auto mix = [&](uint64_t word) {
    hash = (hash ^ word) * kMul;
    hash ^= hash >> 32;
  };
  const char* data = bytes.data();
  size_t left = bytes.size();
  for (; left >= 8; left -= 8, data += 8) {
    uint64_t word;
    std::memcpy(&word, data, 8);
    mix(word);
  }
  uint64_t word = 0;
  std::memcpy(&word, data, left);
  mix(word ^ (uint64_t{left} << 56));
  mix(0);
  return hash;
}

constexpr size_t kMaxShortPiece = 96;  // above this a heap beats scanning for the minimum

}  // namespace

BpeVocabulary::BpeVocabulary(const std::vector<std::string>& token_bytes) {
  offsets_.reserve(token_bytes.size() + 1);
  offsets_.push_back(0);
  for (const std::string& bytes : token_bytes) {
    blob_ += bytes;
    offsets_.push_back(static_cast<uint32_t>(blob_.size()));
  }
  slots_.resize(std::bit_ceil(token_bytes.size() * 2 + 2));
  const size_t mask = slots_.size() - 1;
  for (TokenId id = 0; id < size(); ++id) {
    CHECK(!bytes(id).empty() && find(bytes(id)) == kNone);
    const uint64_t hash = hash_bytes(bytes(id));
    size_t at = hash & mask;
    while (slots_[at].id != kNone) at = (at + 1) & mask;
    slots_[at] = {static_cast<uint32_t>(hash >> 32), id};
  }
  pair_ids_.resize(65536);
  for (size_t first = 0; first < 256; ++first) {
    const char one = static_cast<char>(first);
    byte_ids_[first] = find({&one, 1});
    CHECK_NE(byte_ids_[first], kNone);
    for (size_t second = 0; second < 256; ++second) {
      const char two[2] = {one, static_cast<char>(second)};
      pair_ids_[first * 256 + second] = find({two, 2});
    }
  }
}

TokenId BpeVocabulary::find(std::string_view wanted) const {
  const uint64_t hash = hash_bytes(wanted);
  const size_t mask = slots_.size() - 1;
  for (size_t at = hash & mask; slots_[at].id != kNone; at = (at + 1) & mask) {
    if (slots_[at].tag == static_cast<uint32_t>(hash >> 32) && bytes(slots_[at].id) == wanted) {
      return slots_[at].id;
    }
  }
  return kNone;
}

void BpeVocabulary::encode_piece(std::string_view piece, std::vector<TokenId>& out) const {
  if (piece.size() == 1) {
    out.push_back(byte_ids_[static_cast<uint8_t>(piece[0])]);
  } else if (const TokenId whole = find(piece); whole != kNone) {
    out.push_back(whole);
  } else if (piece.size() <= kMaxShortPiece) {
    merge_short(piece, out);
  } else {
    merge_long(piece, out);
  }
}

void BpeVocabulary::merge_short(std::string_view piece, std::vector<TokenId>& out) const {
  // Part i is piece[begin[i], begin[i+1]); rank[i] is that of parts i and i+1 together.
  uint8_t begin[kMaxShortPiece + 1];
  TokenId rank[kMaxShortPiece];
  size_t num_parts = piece.size();
  for (size_t i = 0; i <= num_parts; ++i) begin[i] = static_cast<uint8_t>(i);
  for (size_t i = 0; i + 1 < num_parts; ++i) {
    rank[i] = pair_ids_[static_cast<uint8_t>(piece[i]) * 256u + static_cast<uint8_t>(piece[i + 1])];
  }
  const auto joined = [&](size_t i) {
    return i + 1 < num_parts ? find(piece.substr(begin[i], size_t{begin[i + 2]} - begin[i]))
                             : kNone;
  };
  while (num_parts > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < num_parts; ++i) {
      if (rank[i] < rank[best]) best = i;
    }
    if (rank[best] == kNone) break;
    // Part best + 1 goes: what stood behind it moves one to the left.
    std::memmove(begin + best + 1, begin + best + 2, num_parts - best - 1);
    if (best + 3 < num_parts) {
      std::memmove(rank + best + 1, rank + best + 2, (num_parts - best - 3) * sizeof(TokenId));
    }
    --num_parts;
    if (best + 1 < num_parts) rank[best] = joined(best);
    if (best > 0) rank[best - 1] = joined(best - 1);
  }
  for (size_t i = 0; i < num_parts; ++i) {
    out.push_back(find(piece.substr(begin[i], size_t{begin[i + 1]} - begin[i])));
  }
}

void BpeVocabulary::merge_long(std::string_view piece, std::vector<TokenId>& out) const {
  // Parts are a doubly linked list over their first byte; the heap holds candidates that may have
  // gone stale, which their rank then tells.
  struct Part {
    uint32_t prev, end;  // the next part begins at end
    TokenId rank;        // with the next part
  };
  struct Candidate {
    TokenId rank;
    uint32_t begin;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : begin > other.begin;
    }
  };
  const auto size = static_cast<uint32_t>(piece.size());
  std::vector<Part> parts(size);
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  const auto offer = [&](uint32_t begin) {
    Part& part = parts[begin];
    part.rank = part.end < size ? find(piece.substr(begin, parts[part.end].end - begin)) : kNone;
    if (part.rank != kNone) candidates.push({part.rank, begin});
  };
  for (uint32_t i = 0; i < size; ++i) parts[i] = {i - 1, i + 1, kNone};
  for (uint32_t i = 0; i < size; ++i) offer(i);
  while (!candidates.empty()) {
    const Candidate top = candidates.top();
    candidates.pop();
    Part& part = parts[top.begin];
    if (part.rank != top.rank) continue;
    Part& eaten = parts[part.end];
    part.end = eaten.end;
    eaten.rank = kNone;
    if (part.end < size) parts[part.end].prev = top.begin;
    offer(top.begin);
    if (top.begin > 0) offer(part.prev);
  }
  for (uint32_t i = 0; i < size; i = parts[i].end) {
    out.push_back(find(piece.substr(i, parts[i].end - i)));
  }
}

}  // namespace eyrie
