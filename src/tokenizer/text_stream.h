// From the ids of one answer to the text a client may see: no half characters, nothing that may yet
// turn out to be a stop string, and an exact cut where one begins. One object a sequence, used by
// one thread at a time; it borrows the Tokenizer. Sizes are bytes of UTF-8.
#pragma once

#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

namespace eyrie {

// Text of one token as soon as it is certain. A character spread over several tokens comes with the
// token that completes it; U+FFFD comes only for bytes that can never become a character.
class StreamingDetokenizer {
 public:
  // prompt: where it ends inside a character, the first tokens of the answer complete that
  // character and it is shown whole; bytes the prompt left dangling are never shown as U+FFFD.
  StreamingDetokenizer(const Tokenizer& tokenizer, bool skip_special,
                       std::span<const TokenId> prompt = {});

  std::string push(TokenId id);
  std::string flush();  // at the end of the answer
  // Whether flush would give text.
  bool has_pending() const {
    return utf8_.has_pending() || prompt_tail_.size() > num_prompt_bytes_;
  }

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::string prompt_tail_;      // a character begun by the prompt, and what the answer added to it
  size_t num_prompt_bytes_ = 0;  // of prompt_tail_
  Utf8Stream utf8_;
};

// Finds the first stop string to be completed in a text that comes in portions (of several that
// complete at once, the longest). The result does not depend on how the text is cut.
class StopStringMatcher {
 public:
  explicit StopStringMatcher(std::vector<std::string> stops);  // none of them empty

  struct Match {
    int stop_idx = 0;
    size_t begin = 0;  // of the stop string, in bytes from the start of the whole text
    size_t end = 0;
  };
  std::optional<Match> push(std::string_view text);

  // Bytes from the start of the whole text that no stop string can begin in any more.
  size_t certain() const { return base_ + tail_.size() - held_; }
  const std::vector<std::string>& stops() const { return stops_; }

  // Text in which no match may begin (min_tokens not reached), nor in the text before it.
  void skip(std::string_view text);

 private:
  std::vector<std::string> stops_;
  size_t max_size_ = 0;
  std::string tail_;  // the last bytes seen, enough for the longest stop string
  size_t base_ = 0;   // bytes before tail_
  size_t held_ = 0;   // bytes at the end of tail_ that may begin a stop string
};

// One token's share of the visible text; the sum of the sizes before it is its text offset.
struct TextPiece {
  TokenId token = -1;
  std::string text{};
  bool cut = false;  // a stop string took the rest of this token's text, or all of it
};

struct TextStreamOptions {
  bool skip_special = true;
  std::vector<std::string> stop{};  // stop strings
  bool include_stop = false;        // include_stop_str_in_output
};

// Detokenizer and stop strings together: tokens in, pieces out, exactly one piece a token, in
// order.
class TextStream {
 public:
  TextStream(const Tokenizer& tokenizer, TextStreamOptions options,
             std::span<const TokenId> prompt = {});

  // Appends the pieces that became certain. True when a stop string is complete: the answer ends
  // here, nothing more may be pushed and finish() adds nothing. check_stop false while min_tokens
  // is not reached.
  bool push(TokenId token, std::vector<TextPiece>& out, bool check_stop = true);
  // The answer ended without a stop string: what was held back comes out, U+FFFD for bytes of a
  // character that was never completed with the last token.
  void finish(std::vector<TextPiece>& out);

  // The stop string that ended the answer.
  const std::string* matched_stop() const;

 private:
  void release(size_t certain, std::vector<TextPiece>& out);
  void release_cut(size_t end, std::vector<TextPiece>& out);

  TextStreamOptions options_;
  StreamingDetokenizer detokenizer_;
  StopStringMatcher matcher_;
  std::deque<TextPiece> waiting_;
  size_t waiting_begin_ = 0;  // text offset of waiting_'s first piece
  int matched_stop_idx_ = -1;
};

}  // namespace eyrie
