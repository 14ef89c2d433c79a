#include "tokenizer/text_stream.h"

#include <gtest/gtest.h>

#include <random>

#include "tokenizer/golden_test_util.h"

namespace eyrie {
namespace {

using Ids = std::vector<TokenId>;

Ids encode(std::string_view text) { return golden_tokenizer().encode(text, AllowSpecial::kAll); }

// The tokens of single bytes: the cut a vocabulary without the character would make.
Ids byte_ids(std::string_view bytes) {
  Ids ids;
  for (const char byte : bytes) {
    for (TokenId id = 0; id < 256; ++id) {
      if (golden_tokenizer().token_bytes(id) == std::string_view(&byte, 1)) ids.push_back(id);
    }
  }
  return ids;
}

std::string joined(const std::vector<TextPiece>& pieces) {
  std::string text;
  for (const TextPiece& piece : pieces) text += piece.text;
  return text;
}

TEST(StreamingDetokenizerTest, PiecesJoinToTheDecodedText) {
  std::mt19937 rng(5);
  for (int round = 0; round < 2000; ++round) {
    Ids ids(rng() % 30);
    for (TokenId& id : ids) id = static_cast<TokenId>(rng() % (round % 2 ? 256 : 1256));
    for (const bool skip_special : {false, true}) {
      StreamingDetokenizer detokenizer(golden_tokenizer(), skip_special);
      std::string text;
      for (const TokenId id : ids) {
        const std::string piece = detokenizer.push(id);
        ASSERT_TRUE(utf8_valid(piece));
        text += piece;
      }
      text += detokenizer.flush();
      ASSERT_EQ(text, golden_tokenizer().decode(ids, skip_special));
    }
  }
}

TEST(StreamingDetokenizerTest, ACharacterComesWithItsLastByte) {
  StreamingDetokenizer detokenizer(golden_tokenizer(), true);
  std::vector<std::string> pieces;
  for (const TokenId id : byte_ids("🦅ď")) pieces.push_back(detokenizer.push(id));
  EXPECT_EQ(pieces, (std::vector<std::string>{"", "", "", "🦅", "", "ď"}));
  EXPECT_EQ(detokenizer.flush(), "");
}

TEST(StreamingDetokenizerTest, BytesThatNeverBecomeACharacterAreReplaced) {
  StreamingDetokenizer detokenizer(golden_tokenizer(), true);
  const Ids ids = byte_ids("\xF0\x9F\xA6x\xC3");
  std::vector<std::string> pieces;
  for (const TokenId id : ids) pieces.push_back(detokenizer.push(id));
  EXPECT_EQ(pieces, (std::vector<std::string>{"", "", "", "\uFFFDx", ""}));
  EXPECT_EQ(detokenizer.flush(), "\uFFFD");
}

// A prompt of ids may end inside an emoji: the answer completes it and repeats nothing of the
// prompt.
TEST(StreamingDetokenizerTest, ContinuesACharacterThePromptBegan) {
  const std::string eagle = "🦅";
  for (size_t cut = 0; cut <= eagle.size(); ++cut) {
    Ids prompt = encode("Hello ");
    for (const TokenId id : byte_ids(eagle.substr(0, cut))) prompt.push_back(id);
    StreamingDetokenizer detokenizer(golden_tokenizer(), true, prompt);
    std::string text;
    for (const TokenId id : byte_ids(eagle.substr(cut) + "!")) text += detokenizer.push(id);
    text += detokenizer.flush();
    EXPECT_EQ(text, cut < eagle.size() ? "🦅!" : "!");
  }
}

TEST(StreamingDetokenizerTest, DanglingBytesOfThePromptAreNotShown) {
  const Ids prompt = byte_ids("a\xF0\x9F");
  const auto answer = [&](std::string_view bytes) {
    StreamingDetokenizer detokenizer(golden_tokenizer(), true, prompt);
    std::string text;
    for (const TokenId id : byte_ids(bytes)) text += detokenizer.push(id);
    return text + detokenizer.flush();
  };
  EXPECT_EQ(answer("x"), "x");
  EXPECT_EQ(answer(""), "");
  EXPECT_EQ(answer("\xA6x"), "\uFFFDx");
  EXPECT_EQ(answer("\xA6"), "\uFFFD");
  EXPECT_EQ(answer("é"), "é");
}

struct Found {
  int stop_idx;
  size_t begin, end;
  bool operator==(const Found&) const = default;
};

// The definition, written as plainly as possible: the smallest end, then the smallest begin.
std::optional<Found> first_stop(const std::string& text, const std::vector<std::string>& stops) {
  std::optional<Found> best;
  for (size_t i = 0; i < stops.size(); ++i) {
    const size_t begin = text.find(stops[i]);
    if (begin == std::string::npos) continue;
    const Found found{static_cast<int>(i), begin, begin + stops[i].size()};
    if (!best || found.end < best->end || (found.end == best->end && found.begin < best->begin)) {
      best = found;
    }
  }
  return best;
}

TEST(StopStringMatcherTest, FindsTheFirstStopHoweverTheTextIsCut) {
  std::mt19937 rng(6);
  const auto random_word = [&](size_t max_size) {
    std::string word(1 + rng() % max_size, 'a');
    for (char& c : word) c = static_cast<char>('a' + rng() % 3);
    return word;
  };
  int num_matches = 0;
  for (int round = 0; round < 5000; ++round) {
    const std::string text = random_word(40);
    std::vector<std::string> stops;
    for (size_t i = 0; i < 1 + rng() % 4; ++i) stops.push_back(random_word(7));
    StopStringMatcher matcher(stops);
    std::optional<StopStringMatcher::Match> match;
    size_t at = 0;
    const auto expected = first_stop(text, stops);
    while (at < text.size() && !match) {
      const size_t size = std::min(text.size() - at, 1 + rng() % 5);
      match = matcher.push(std::string_view(text).substr(at, size));
      at += size;
      if (match) break;
      ASSERT_LE(matcher.certain(), expected ? expected->begin : at);
    }
    ASSERT_EQ(match.has_value(), expected.has_value()) << text;
    if (!match) continue;
    ++num_matches;
    EXPECT_EQ(match->begin, expected->begin);
    EXPECT_EQ(match->end, expected->end);
  }
  EXPECT_GT(num_matches, 1000);
}

TEST(StopStringMatcherTest, HoldsBackOnlyWhatMayBeginAStop) {
  StopStringMatcher matcher({"\n\nQuestion:"});
  EXPECT_FALSE(matcher.push("42\n"));
  EXPECT_EQ(matcher.certain(), 2u);
  EXPECT_FALSE(matcher.push("\nQuest"));
  EXPECT_EQ(matcher.certain(), 2u);
  EXPECT_FALSE(matcher.push("s"));
  EXPECT_EQ(matcher.certain(), 10u);
}

TEST(StopStringMatcherTest, WithoutStopsEverythingIsCertain) {
  StopStringMatcher matcher({});
  EXPECT_FALSE(matcher.push("abc"));
  EXPECT_EQ(matcher.certain(), 3u);
}

struct StreamResult {
  std::vector<TextPiece> pieces;
  bool stopped = false;
};
StreamResult stream(const Ids& ids, TextStreamOptions options) {
  StreamResult result;
  TextStream text(golden_tokenizer(), std::move(options));
  for (const TokenId id : ids) {
    if (text.push(id, result.pieces)) {
      result.stopped = true;
      break;
    }
  }
  text.finish(result.pieces);
  return result;
}

TEST(TextStreamTest, OnePieceATokenInOrder) {
  const Ids ids = encode("The eagle left its eyrie. 🦅 <think>x</think>");
  const StreamResult result = stream(ids, {.skip_special = false, .stop = {"zzz", "eyrie!"}});
  ASSERT_EQ(result.pieces.size(), ids.size());
  for (size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(result.pieces[i].token, ids[i]);
  EXPECT_EQ(joined(result.pieces), golden_tokenizer().decode(ids, false));
  EXPECT_FALSE(result.stopped);
}

TEST(TextStreamTest, AnyTokensGiveOnePieceEachAndTheDecodedText) {
  std::mt19937 rng(12);
  for (int round = 0; round < 2000; ++round) {
    Ids ids(rng() % 20);
    for (TokenId& id : ids) id = static_cast<TokenId>(rng() % (round % 2 ? 256 : 1256));
    const bool skip_special = rng() % 2 == 0;
    const StreamResult result = stream(ids, {.skip_special = skip_special, .stop = {"~~~~"}});
    ASSERT_EQ(result.pieces.size(), ids.size());
    for (size_t i = 0; i < ids.size(); ++i) ASSERT_EQ(result.pieces[i].token, ids[i]);
    ASSERT_EQ(joined(result.pieces), golden_tokenizer().decode(ids, skip_special));
  }
}

TEST(TextStreamTest, CutsExactlyAtTheStopString) {
  const std::string text = "12 + 30 = 42\n\nQuestion: next";
  for (const std::string stop : {"\n\nQuestion:", "42", "=", "2\n", "n", "1"}) {
    const StreamResult cut = stream(encode(text), {.stop = {stop}});
    EXPECT_EQ(joined(cut.pieces), text.substr(0, text.find(stop)));
    EXPECT_TRUE(cut.stopped);
    EXPECT_TRUE(cut.pieces.back().cut);
    const StreamResult kept = stream(encode(text), {.stop = {stop}, .include_stop = true});
    EXPECT_EQ(joined(kept.pieces), text.substr(0, text.find(stop) + stop.size()));
  }
}

TEST(TextStreamTest, AnEmojiOverSeveralTokensMayBeTheStop) {
  Ids ids = encode("go ");
  for (const TokenId id : byte_ids("🦅")) ids.push_back(id);
  const StreamResult result = stream(ids, {.stop = {"🦅"}});
  EXPECT_TRUE(result.stopped);
  EXPECT_EQ(joined(result.pieces), "go ");
}

TEST(TextStreamTest, MarksOnlyWhatTheStopTook) {
  // A hidden token before the stop string is whole; those inside it are cut.
  const Ids ids = encode("a[EOT]ST[EOT]OP");
  const StreamResult result = stream(ids, {.stop = {"STOP"}});
  std::vector<bool> cut;
  for (const TextPiece& piece : result.pieces) cut.push_back(piece.cut);
  ASSERT_GE(cut.size(), 4u);
  EXPECT_FALSE(cut[0]);
  EXPECT_FALSE(cut[1]);
  for (size_t i = 2; i < cut.size(); ++i) EXPECT_TRUE(cut[i]);
}

TEST(TextStreamTest, StopStringsWaitForMinTokens) {
  TextStream text(golden_tokenizer(), {.stop = {"a"}});
  std::vector<TextPiece> pieces;
  const Ids a = encode("a"), b = encode("b");
  EXPECT_FALSE(text.push(a[0], pieces, false));
  EXPECT_FALSE(text.push(b[0], pieces, true));
  EXPECT_TRUE(text.push(a[0], pieces, true));
  EXPECT_EQ(joined(pieces), "ab");
  EXPECT_EQ(*text.matched_stop(), "a");
}

TEST(TextStreamTest, AnUnfinishedCharacterComesLast) {
  Ids ids = encode("ok");
  for (const TokenId id : byte_ids("\xF0\x9F")) ids.push_back(id);
  const StreamResult result = stream(ids, {});
  EXPECT_EQ(joined(result.pieces), "ok\uFFFD");
  ASSERT_EQ(result.pieces.size(), ids.size());
  EXPECT_EQ(result.pieces.back().text, "\uFFFD");
}

}  // namespace
}  // namespace eyrie
