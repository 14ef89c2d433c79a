#include "tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>

#include "base/check.h"

namespace eyrie {
namespace {

constexpr uint64_t kMul = 0x9E3779B97F4A7C15ull;

uint64_t load8(const char* data) {
  uint64_t word;
  std::memcpy(&word, data, 8);
  return word;
}

uint64_t load4(const char* data) {
  uint32_t word;
  std::memcpy(&word, data, 4);
  return word;
}

// The first eight bytes as a number, zeros behind a shorter text. Loads of fixed size that overlap.
uint64_t head_of(std::string_view bytes) {
  const char* data = bytes.data();
  const size_t size = bytes.size();
  if (size >= 8) return load8(data);
  if (size >= 4) return load4(data) | load4(data + size - 4) << (8 * (size - 4));
  const auto byte = [&](size_t i) { return uint64_t{static_cast<uint8_t>(data[i])} << (8 * i); };
  return size == 0 ? 0 : byte(0) | byte(size / 2) | byte(size - 1);
}

// Multiply and fold, eight bytes at a time. Only our own table depends on the values.
uint64_t hash_bytes(std::string_view bytes, uint64_t head) {
  uint64_t hash = (head ^ bytes.size()) * kMul;
  if (bytes.size() > 8) {
    const char* data = bytes.data();
    size_t at = 8;
    for (; at + 8 < bytes.size(); at += 8) {
      hash = (hash ^ (hash >> 32) ^ load8(data + at)) * kMul;
    }
    hash = (hash ^ (hash >> 32) ^ load8(data + bytes.size() - 8)) * kMul;
  }
  hash = (hash ^ (hash >> 29)) * kMul;
  return hash ^ (hash >> 32);
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
  for (TokenId id = 0; id < size(); ++id) {
    const std::string_view token = bytes(id);
    const uint64_t head = head_of(token);
    Slot& slot = slots_[slot_of(token, head)];
    CHECK(!token.empty() && slot.size == 0);
    slot = {head, static_cast<uint32_t>(token.size()), id};
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

// Where these bytes are, or the empty slot where they would be.
size_t BpeVocabulary::slot_of(std::string_view wanted, uint64_t head) const {
  const size_t mask = slots_.size() - 1;
  size_t at = hash_bytes(wanted, head) & mask;
  for (; slots_[at].size != 0; at = (at + 1) & mask) {
    const Slot& slot = slots_[at];
    if (slot.head != head || slot.size != wanted.size()) continue;
    if (wanted.size() <= 8 || bytes(slot.id) == wanted) break;
  }
  return at;
}

TokenId BpeVocabulary::find(std::string_view wanted) const {
  return slots_[slot_of(wanted, head_of(wanted))].id;
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
  // Part i is the token id[i] = piece[begin[i], begin[i+1]); joined[i] is the token of parts i and
  // i+1 together, whose rank is its priority.
  uint8_t begin[kMaxShortPiece + 1];
  TokenId id[kMaxShortPiece], joined[kMaxShortPiece];
  size_t num_parts = piece.size();
  joined[num_parts - 1] = kNone;
  for (size_t i = 0; i < num_parts; ++i) {
    const auto byte = static_cast<uint8_t>(piece[i]);
    begin[i] = static_cast<uint8_t>(i);
    id[i] = byte_ids_[byte];
    if (i > 0) joined[i - 1] = pair_ids_[static_cast<uint8_t>(piece[i - 1]) * 256u + byte];
  }
  begin[num_parts] = static_cast<uint8_t>(num_parts);
  const auto join = [&](size_t i) {
    joined[i] = find(piece.substr(begin[i], size_t{begin[i + 2]} - begin[i]));
  };
  while (num_parts > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < num_parts; ++i) {
      if (joined[i] < joined[best]) best = i;
    }
    if (joined[best] == kNone) break;
    id[best] = joined[best];
    // Part best + 1 goes: what stood behind it moves one to the left.
    --num_parts;
    for (size_t i = best + 1; i < num_parts; ++i) {
      begin[i] = begin[i + 1];
      id[i] = id[i + 1];
      joined[i] = joined[i + 1];
    }
    begin[num_parts] = begin[num_parts + 1];
    if (best + 1 < num_parts) join(best);
    if (best > 0) join(best - 1);
  }
  out.insert(out.end(), id, id + num_parts);
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
  thread_local std::vector<Part> parts;
  thread_local std::vector<Candidate> candidates;  // a heap, the best in front
  parts.resize(size);
  candidates.clear();
  const auto offer = [&](uint32_t begin) {
    Part& part = parts[begin];
    part.rank = part.end < size ? find(piece.substr(begin, parts[part.end].end - begin)) : kNone;
    if (part.rank == kNone) return;
    candidates.push_back({part.rank, begin});
    std::push_heap(candidates.begin(), candidates.end(), std::greater<>());
  };
  for (uint32_t i = 0; i < size; ++i) parts[i] = {i - 1, i + 1, kNone};
  for (uint32_t i = 0; i < size; ++i) offer(i);
  while (!candidates.empty()) {
    std::pop_heap(candidates.begin(), candidates.end(), std::greater<>());
    const Candidate top = candidates.back();
    candidates.pop_back();
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
