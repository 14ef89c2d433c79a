// Any bytes to tokens and back; any ids to text; a stream of any ids with stop strings against a
// search over the whole.
#include <algorithm>
#include <string>
#include <vector>

#include "base/check.h"
#include "tests/fuzz/fuzz_input.h"
#include "tokenizer/text_stream.h"
#include "tokenizer/utf8.h"

namespace eyrie::fuzz {
namespace {

void check_round_trip(const Tokenizer& tokenizer, std::string_view bytes) {
  const std::string valid = utf8_replace_invalid(bytes);
  CHECK(utf8_valid(valid));
  CHECK(utf8_valid(bytes) == (valid == bytes));
  for (const AllowSpecial allow : {AllowSpecial::kNone, AllowSpecial::kAll}) {
    const std::vector<TokenId> ids = tokenizer.encode(bytes, allow);
    for (const TokenId id : ids) {
      CHECK(id >= 0 && id < tokenizer.vocab_size());
      CHECK(allow == AllowSpecial::kAll || !tokenizer.is_control(id));
    }
    CHECK(tokenizer.decode(ids, false) == valid);
    CHECK(ids == tokenizer.encode(valid, allow));
  }
  const auto control = tokenizer.find_control(valid);
  const auto ids = tokenizer.encode(valid, AllowSpecial::kAll);
  const auto first =
      std::find_if(ids.begin(), ids.end(), [&](TokenId id) { return tokenizer.is_control(id); });
  CHECK(control.has_value() == (first != ids.end()));
  if (control) {
    CHECK(control->id == *first);
    CHECK(tokenizer.id_of(std::string_view(valid).substr(control->offset, control->size)) ==
          control->id);
  }
}

// Two bytes an id, some of them out of the vocabulary.
std::vector<TokenId> ids_of(std::string_view bytes, const Tokenizer& tokenizer) {
  std::vector<TokenId> ids;
  for (size_t i = 0; i + 1 < bytes.size(); i += 2) {
    const int value = static_cast<uint8_t>(bytes[i]) << 8 | static_cast<uint8_t>(bytes[i + 1]);
    ids.push_back(value % (tokenizer.vocab_size() + 2) - 1);
  }
  return ids;
}

// The end of the first stop string to be complete in the text, and of several the longest.
struct Stop {
  size_t begin = std::string::npos;
  size_t end = std::string::npos;
};
Stop find_stop(const std::string& text, const std::vector<std::string>& stops) {
  Stop found;
  for (const std::string& stop : stops) {
    const size_t begin = text.find(stop);
    if (begin == std::string::npos) continue;
    const size_t end = begin + stop.size();
    if (found.end == std::string::npos || end < found.end ||
        (end == found.end && begin < found.begin)) {
      found = {begin, end};
    }
  }
  return found;
}

void check_stream(const Tokenizer& tokenizer, const std::vector<TokenId>& ids, bool skip_special,
                  bool include_stop, const std::vector<std::string>& stops) {
  const std::string whole = tokenizer.decode(ids, skip_special);
  CHECK(utf8_valid(whole));
  TextStream stream(tokenizer,
                    {.skip_special = skip_special, .stop = stops, .include_stop = include_stop});
  std::vector<TextPiece> pieces;
  bool stopped = false;
  size_t num_pushed = 0;
  for (; num_pushed < ids.size() && !stopped; ++num_pushed) {
    stopped = stream.push(ids[num_pushed], pieces);
  }
  if (!stopped) stream.finish(pieces);
  CHECK_EQ(pieces.size(), num_pushed);
  std::string text;
  for (size_t i = 0; i < pieces.size(); ++i) {
    CHECK_EQ(pieces[i].token, ids[i]);
    CHECK(utf8_valid(pieces[i].text) || !stops.empty());
    text += pieces[i].text;
  }
  const Stop stop = find_stop(whole, stops);
  // A stop string may end in the U+FFFD of what the answer's last token left incomplete.
  CHECK(!stopped || stop.end != std::string::npos);
  if (stopped) {
    CHECK(text == whole.substr(0, include_stop ? stop.end : stop.begin));
    CHECK(stream.matched_stop() != nullptr);
  } else if (stop.end == std::string::npos) {
    CHECK(text == whole);
  }
}

}  // namespace
}  // namespace eyrie::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace eyrie;
  using namespace eyrie::fuzz;
  if (size > 4096) return -1;
  const Tokenizer& tokenizer = small_tokenizer();
  Input input(data, size);
  const unsigned options = input.option();
  const std::string_view bytes = input.part();
  check_round_trip(tokenizer, bytes);

  std::vector<std::string> stops;
  for (size_t left = 4; left > 0; --left) {
    const std::string stop = utf8_replace_invalid(input.part());
    if (!stop.empty()) stops.push_back(stop);
  }
  const bool skip_special = (options & 1) != 0;
  const bool include_stop = (options & 2) != 0;
  check_stream(tokenizer, ids_of(bytes, tokenizer), skip_special, include_stop, stops);
  check_stream(tokenizer, tokenizer.encode(bytes, AllowSpecial::kAll), skip_special, include_stop,
               stops);
  return 0;
}
