#include "tokenizer/utf8.h"

#include <cstdint>
#include <cstring>

#include "base/check.h"

namespace eyrie {
namespace {

bool is_ascii_word(const char* bytes) {
  uint64_t word;
  std::memcpy(&word, bytes, sizeof word);
  return (word & 0x8080808080808080ull) == 0;
}

// The bytes allowed in second place after `lead` (table 3-7); size 0 for a byte that leads nothing.
struct Lead {
  int size;
  uint8_t low, high;
};
Lead lead_of(uint8_t byte) {
  if (byte < 0xC2 || byte > 0xF4) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte < 0xF0) {
    return {3, static_cast<uint8_t>(byte == 0xE0 ? 0xA0 : 0x80),
            static_cast<uint8_t>(byte == 0xED ? 0x9F : 0xBF)};
  }
  return {4, static_cast<uint8_t>(byte == 0xF0 ? 0x90 : 0x80),
          static_cast<uint8_t>(byte == 0xF4 ? 0x8F : 0xBF)};
}

}  // namespace

Utf8Step utf8_step(std::string_view bytes) {
  using Kind = Utf8Step::Kind;
  DCHECK(!bytes.empty());
  const auto first = static_cast<uint8_t>(bytes[0]);
  if (first < 0x80) return {Kind::kCharacter, 1, first};
  const Lead lead = lead_of(first);
  if (lead.size == 0) return {Kind::kInvalid, 1, 0};
  char32_t code_point = first & (0x7Fu >> lead.size);
  for (int i = 1; i < lead.size; ++i) {
    if (i == static_cast<int>(bytes.size())) return {Kind::kIncomplete, i, 0};
    const auto byte = static_cast<uint8_t>(bytes[static_cast<size_t>(i)]);
    const uint8_t low = i == 1 ? lead.low : 0x80;
    const uint8_t high = i == 1 ? lead.high : 0xBF;
    if (byte < low || byte > high) return {Kind::kInvalid, i, 0};
    code_point = (code_point << 6) | (byte & 0x3Fu);
  }
  return {Kind::kCharacter, lead.size, code_point};
}

bool utf8_valid(std::string_view bytes) {
  size_t i = 0;
  while (i < bytes.size()) {
    if (i + 8 <= bytes.size() && is_ascii_word(bytes.data() + i)) {
      i += 8;
      continue;
    }
    const Utf8Step step = utf8_step(bytes.substr(i));
    if (step.kind != Utf8Step::Kind::kCharacter) return false;
    i += static_cast<size_t>(step.size);
  }
  return true;
}

std::string utf8_replace_invalid(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  Utf8Stream stream;
  stream.push(bytes, out);
  stream.flush(out);
  return out;
}

void append_utf8(char32_t c, std::string& out) {
  const auto continuation = [&](int shift) {
    out.push_back(static_cast<char>(0x80 | ((c >> shift) & 0x3F)));
  };
  if (c < 0x80) {
    out.push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out.push_back(static_cast<char>(0xC0 | (c >> 6)));
    continuation(0);
  } else if (c < 0x10000) {
    out.push_back(static_cast<char>(0xE0 | (c >> 12)));
    continuation(6);
    continuation(0);
  } else {
    out.push_back(static_cast<char>(0xF0 | (c >> 18)));
    continuation(12);
    continuation(6);
    continuation(0);
  }
}

int64_t utf8_length(std::string_view valid) {
  int64_t length = 0;
  for (const char c : valid) length += (static_cast<uint8_t>(c) & 0xC0) != 0x80;
  return length;
}

void Utf8Stream::push(std::string_view bytes, std::string& out) {
  std::string joined;
  if (!pending_.empty()) {
    joined = std::move(pending_);
    joined += bytes;
    bytes = joined;
    pending_.clear();
  }
  while (!bytes.empty()) {
    const Utf8Step step = utf8_step(bytes);
    const auto size = static_cast<size_t>(step.size);
    switch (step.kind) {
      case Utf8Step::Kind::kCharacter:
        out += bytes.substr(0, size);
        break;
      case Utf8Step::Kind::kInvalid:
        out += kReplacementCharacter;
        break;
      case Utf8Step::Kind::kIncomplete:
        pending_ = bytes;
        return;
    }
    bytes.remove_prefix(size);
  }
}

void Utf8Stream::flush(std::string& out) {
  if (!pending_.empty()) out += kReplacementCharacter;
  pending_.clear();
}

}  // namespace eyrie
