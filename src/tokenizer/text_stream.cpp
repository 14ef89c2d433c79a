#include "tokenizer/text_stream.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace eyrie {

StreamingDetokenizer::StreamingDetokenizer(const Tokenizer& tokenizer, bool skip_special,
                                           std::span<const TokenId> prompt)
    : tokenizer_(&tokenizer), skip_special_(skip_special) {
  constexpr size_t kMaxPending = 3;
  std::string tail;
  for (size_t i = prompt.size(); i > 0 && tail.size() < kMaxPending; --i) {
    tail.insert(0, tokenizer.token_bytes(prompt[i - 1]));
  }
  // A lead byte always begins a character, so a tail that is incomplete from there on is one.
  for (size_t size = 1; size <= std::min(tail.size(), kMaxPending); ++size) {
    const std::string_view candidate = std::string_view(tail).substr(tail.size() - size);
    if (utf8_step(candidate).kind == Utf8Step::Kind::kIncomplete) {
      prompt_tail_ = candidate;
      num_prompt_bytes_ = size;
      break;
    }
  }
}

std::string StreamingDetokenizer::push(TokenId id) {
  std::string out;
  if (skip_special_ && tokenizer_->is_special(id)) return out;
  std::string_view bytes = tokenizer_->token_bytes(id);
  if (bytes.empty()) return out;
  if (num_prompt_bytes_ == 0) {
    utf8_.push(bytes, out);
    return out;
  }
  prompt_tail_ += bytes;
  const Utf8Step step = utf8_step(prompt_tail_);
  if (step.kind == Utf8Step::Kind::kIncomplete) return out;
  const bool broken_by_prompt =
      step.kind == Utf8Step::Kind::kInvalid && static_cast<size_t>(step.size) <= num_prompt_bytes_;
  const std::string_view joined = prompt_tail_;
  utf8_.push(broken_by_prompt ? joined.substr(num_prompt_bytes_) : joined, out);
  num_prompt_bytes_ = 0;
  prompt_tail_.clear();
  return out;
}

std::string StreamingDetokenizer::flush() {
  std::string out;
  if (prompt_tail_.size() > num_prompt_bytes_) out += kReplacementCharacter;
  prompt_tail_.clear();
  num_prompt_bytes_ = 0;
  utf8_.flush(out);
  return out;
}

StopStringMatcher::StopStringMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_) {
    CHECK(!stop.empty());
    max_size_ = std::max(max_size_, stop.size());
  }
}

std::optional<StopStringMatcher::Match> StopStringMatcher::push(std::string_view text) {
  const size_t old_size = tail_.size();
  tail_ += text;
  const std::string_view seen = tail_;
  for (size_t end = old_size + 1; end <= seen.size(); ++end) {
    std::optional<Match> best;
    for (size_t i = 0; i < stops_.size(); ++i) {
      const std::string& stop = stops_[i];
      if (!seen.substr(0, end).ends_with(stop)) continue;
      const size_t begin = base_ + end - stop.size();
      if (!best || begin < best->begin) best = Match{static_cast<int>(i), begin, base_ + end};
    }
    if (best) return best;
  }
  held_ = 0;
  for (const std::string& stop : stops_) {
    for (size_t size = std::min(stop.size() - 1, seen.size()); size > held_; --size) {
      if (seen.ends_with(std::string_view(stop).substr(0, size))) held_ = size;
    }
  }
  const size_t keep = std::min(seen.size(), max_size_ == 0 ? 0 : max_size_ - 1);
  base_ += tail_.size() - keep;
  tail_.erase(0, tail_.size() - keep);
  return std::nullopt;
}

void StopStringMatcher::skip(std::string_view text) {
  base_ += tail_.size() + text.size();
  tail_.clear();
  held_ = 0;
}

TextStream::TextStream(const Tokenizer& tokenizer, TextStreamOptions options,
                       std::span<const TokenId> prompt)
    : options_(std::move(options)),
      detokenizer_(tokenizer, options_.skip_special, prompt),
      matcher_(options_.stop) {}

bool TextStream::push(TokenId token, std::vector<TextPiece>& out, bool check_stop) {
  CHECK_EQ(matched_stop_idx_, -1);
  waiting_.push_back({token, detokenizer_.push(token), false});
  const std::string& text = waiting_.back().text;
  if (!check_stop) {
    matcher_.skip(text);
  } else if (const auto match = matcher_.push(text)) {
    matched_stop_idx_ = match->stop_idx;
    release_cut(options_.include_stop ? match->end : match->begin, out);
    return true;
  }
  release(matcher_.certain(), out);
  return false;
}

void TextStream::finish(std::vector<TextPiece>& out) {
  if (matched_stop_idx_ >= 0) return;
  if (const std::string rest = detokenizer_.flush(); !rest.empty()) waiting_.back().text += rest;
  for (TextPiece& piece : waiting_) out.push_back(std::move(piece));
  waiting_.clear();
}

const std::string* TextStream::matched_stop() const {
  return matched_stop_idx_ < 0 ? nullptr : &options_.stop[static_cast<size_t>(matched_stop_idx_)];
}

// Whole pieces only: a reader that looks for markers gets each in one piece. The last one waits
// while it may get the U+FFFD of an unfinished character.
void TextStream::release(size_t certain, std::vector<TextPiece>& out) {
  const size_t num_kept = detokenizer_.has_pending() ? 1 : 0;
  while (waiting_.size() > num_kept && waiting_begin_ + waiting_.front().text.size() <= certain) {
    waiting_begin_ += waiting_.front().text.size();
    out.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

void TextStream::release_cut(size_t end, std::vector<TextPiece>& out) {
  bool cut = false;
  for (TextPiece& piece : waiting_) {
    const size_t size = piece.text.size();
    const size_t keep = waiting_begin_ >= end ? 0 : std::min(size, end - waiting_begin_);
    waiting_begin_ += size;
    cut = cut || keep < size;
    piece.text.resize(keep);
    piece.cut = cut;
    out.push_back(std::move(piece));
  }
  waiting_.clear();
}

}  // namespace eyrie
