#include "bench/sse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace eyrie::bench {
namespace {

std::vector<std::string> parse(std::string_view stream, size_t piece) {
  std::vector<std::string> events;
  SseParser parser([&](std::string_view data) { events.emplace_back(data); });
  for (size_t pos = 0; pos < stream.size(); pos += piece) parser.feed(stream.substr(pos, piece));
  parser.finish();
  return events;
}

constexpr std::string_view kStream =
    ": keep-alive\n\n"
    "data: {\"a\":1}\n\n"
    "event: x\r\nid: 7\r\ndata: first\r\ndata: second\r\n\r\n"
    "data:no space\r\r"
    "data:\n\n"
    "data: žluťoučký 🦅\n\n"
    "data: [DONE]\n\n";

TEST(SseParserTest, SameEventsHoweverTheBytesAreSplit) {
  const std::vector<std::string> expected = {"{\"a\":1}", "first\nsecond",      "no space",
                                             "",          "žluťoučký 🦅", "[DONE]"};
  for (size_t piece = 1; piece <= kStream.size(); ++piece) {
    EXPECT_EQ(parse(kStream, piece), expected) << "pieces of " << piece;
  }
}

TEST(SseParserTest, TwoPiecesSplitAtEveryByte) {
  const auto whole = parse(kStream, kStream.size());
  for (size_t cut = 0; cut <= kStream.size(); ++cut) {
    std::vector<std::string> events;
    SseParser parser([&](std::string_view data) { events.emplace_back(data); });
    parser.feed(kStream.substr(0, cut));
    parser.feed(kStream.substr(cut));
    parser.finish();
    EXPECT_EQ(events, whole) << "cut at " << cut;
  }
}

TEST(SseParserTest, AnEventWithoutItsBlankLineCountsAtTheEnd) {
  EXPECT_THAT(parse("data: tail", 3), testing::ElementsAre("tail"));
  EXPECT_TRUE(parse("", 1).empty());
  EXPECT_TRUE(parse("\n\n\n", 1).empty());
}

}  // namespace
}  // namespace eyrie::bench
