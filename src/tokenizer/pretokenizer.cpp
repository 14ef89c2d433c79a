#include "tokenizer/pretokenizer.h"

#include "base/check.h"
#include "tokenizer/char_classes.h"
#include "tokenizer/utf8.h"

namespace eyrie {
namespace {

// The pattern, first alternative that matches, each greedy with backtracking. H is Han, U and W the
// upper- and lower-case classes (marks and letters without case are in both), S the suffix
// 's 't 're 've 'm 'll 'd in any case, or nothing:
//   1  H+
//   2  [^\r\n L N]? U* W+ S
//   3  [^\r\n L N]? U+ W* S
//   4  N{1,3}
//   5  ' '? [^\s L N]+ [\r\n]*
//   6  \s* [\r\n]+
//   7  \s+ (?!\S)
//   8  \s+
// Every character begins one of them. The functions below find the end that backtracking would.
class Cutter {
 public:
  explicit Cutter(std::string_view valid)
      : data_(reinterpret_cast<const uint8_t*>(valid.data())), size_(valid.size()) {}

  size_t piece_end(size_t begin) const {
    const Char first = at(begin);
    if (first.bits & kHanChar) return skip(begin, kHanChar);
    if ((first.bits & (kNewlineChar | kNumberChar)) == 0) {
      const size_t end = word_end(begin, first);
      if (end != begin) return end + suffix_size(end);
    }
    if (first.bits & kNumberChar) return number_end(begin);
    const size_t symbols = data_[begin] == ' ' ? begin + 1 : begin;
    size_t end = symbols_end(symbols);
    if (end == symbols) return space_end(begin);
    while (end < size_ && (data_[end] == '\r' || data_[end] == '\n')) ++end;
    return end;
  }

 private:
  struct Char {
    uint8_t bits;
    uint8_t size;
  };

  Char at(size_t i) const {
    const uint32_t lead = data_[i];
    if (lead < 0x80) return {classes_[lead], 1};
    const auto low = [&](size_t k) { return data_[i + k] & 0x3Fu; };
    if (lead < 0xE0) return {classes_[(lead & 0x1F) << 6 | low(1)], 2};
    if (lead < 0xF0) return {classes_[(lead & 0x0F) << 12 | low(1) << 6 | low(2)], 3};
    return {classes_[(lead & 0x07) << 18 | low(1) << 12 | low(2) << 6 | low(3)], 4};
  }

  // The first place from i on whose character has none of these bits.
  size_t skip(size_t i, uint8_t bits) const {
    while (i < size_) {
      const Char c = at(i);
      if ((c.bits & bits) == 0) break;
      i += c.size;
    }
    return i;
  }

  size_t symbols_end(size_t i) const {
    while (i < size_) {
      const Char c = at(i);
      if (c.bits & (kSpaceChar | kLetterChar | kNumberChar)) break;
      i += c.size;
    }
    return i;
  }

  // Alternatives 2 and 3 without their suffix; begin if neither matches. first: no newline, no
  // number, not Han.
  size_t word_end(size_t begin, Char first) const {
    const size_t start = first.bits & kLetterChar ? begin : begin + first.size;
    size_t i = start;
    size_t after_both = begin;  // behind the last character of U* that W+ could take instead
    while (i < size_) {
      const Char c = at(i);
      if ((c.bits & kUpperChar) == 0) {
        if (c.bits & kLowerChar) return skip(i, kLowerChar);
        break;
      }
      i += c.size;
      if (c.bits & kLowerChar) after_both = i;
    }
    if (after_both != begin) return after_both;
    // No W after the character that may stand in front. If that is a mark, W+ takes it alone.
    if (start != begin && (first.bits & kLowerChar)) return start;
    return i > start ? i : begin;
  }

  // (?i:'s|'t|'re|'ve|'m|'ll|'d)? where U+017F is an s too, as Unicode folds it.
  size_t suffix_size(size_t i) const {
    if (i + 1 >= size_ || data_[i] != '\'') return 0;
    const uint8_t one = data_[i + 1] | 0x20;
    if (one == 's' || one == 't' || one == 'm' || one == 'd') return 2;
    if (i + 2 >= size_) return 0;
    const uint8_t two = data_[i + 2] | 0x20;
    if ((one == 'r' || one == 'v') && two == 'e') return 3;
    if (one == 'l' && two == 'l') return 3;
    return data_[i + 1] == 0xC5 && data_[i + 2] == 0xBF ? 3 : 0;
  }

  size_t number_end(size_t i) const {
    for (int digits = 0; digits < 3 && i < size_; ++digits) {
      const Char c = at(i);
      if ((c.bits & kNumberChar) == 0) break;
      i += c.size;
    }
    return i;
  }

  // Alternatives 6 to 8: up to the last newline; else all of it but the last character, which goes
  // with what follows.
  size_t space_end(size_t begin) const {
    size_t i = begin, last = begin, after_newline = begin;
    while (i < size_) {
      const Char c = at(i);
      if ((c.bits & kSpaceChar) == 0) break;
      last = i;
      i += c.size;
      if (c.bits & kNewlineChar) after_newline = i;
    }
    if (after_newline != begin) return after_newline;
    return i == size_ || last == begin ? i : last;
  }

  const uint8_t* data_;
  size_t size_;
  const uint8_t* classes_ = char_classes();
};

}  // namespace

void split_pieces(std::string_view valid, std::vector<uint32_t>& ends) {
  CHECK_LT(valid.size(), size_t{UINT32_MAX});
  const Cutter cutter(valid);
  for (size_t at = 0; at < valid.size();) {
    at = cutter.piece_end(at);
    ends.push_back(static_cast<uint32_t>(at));
  }
}

bool is_python_space(char32_t c) {
  if (c < 0x80) return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

std::string_view PortionCutter::next() {
  const size_t begin = begin_;
  // No limit can be met by a text that has fewer bytes than the smaller one has characters.
  if (begin == 0 && text_.size() <= static_cast<size_t>(kMaxRun)) {
    begin_ = text_.size();
    return text_;
  }
  size_t at = begin;
  int64_t run = 0;
  bool run_is_space = false;
  while (at < text_.size() && characters_ < kMaxCharacters) {
    const auto lead = static_cast<uint8_t>(text_[at]);
    size_t size = 1;
    bool is_space = false;
    if (lead < 0x80) {
      is_space = is_python_space(lead);
    } else if (lead == 0xC2 || (lead >= 0xE1 && lead <= 0xE3)) {  // begin those beyond ASCII
      const Utf8Step step = utf8_step(text_.substr(at));
      size = static_cast<size_t>(step.size);
      is_space = is_python_space(step.code_point);
    } else {
      size = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    }
    run = is_space == run_is_space ? run + 1 : 1;
    run_is_space = is_space;
    if (run > kMaxRun) {
      begin_ = at;
      return text_.substr(begin, at - begin);
    }
    at += size;
    ++characters_;
  }
  characters_ = 0;
  begin_ = at;
  return text_.substr(begin, at - begin);
}

}  // namespace eyrie
