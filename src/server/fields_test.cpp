#include "server/fields.h"

#include <gtest/gtest.h>

namespace eyrie::server {
namespace {

Json body(const char* text) { return Json::parse(text); }

TEST(FieldsTest, NullAndMissingAreAbsent) {
  const Json json = body(R"({"a": null})");
  Fields fields(json);
  EXPECT_FALSE(fields.integer("a", 0, 5).has_value());
  EXPECT_FALSE(fields.number("b", 0, 5).has_value());
  EXPECT_FALSE(fields.boolean("a").has_value());
  EXPECT_FALSE(fields.failed());
}

TEST(FieldsTest, IntegersMayBeWrittenAsWholeFloats) {
  const Json json = body(R"({"a": 3.0, "b": 3.5, "c": true, "d": "3", "e": 18446744073709551615})");
  EXPECT_EQ(Fields(json).integer("a", 0, 5), 3);
  for (const char* name : {"b", "c", "d", "e"}) {
    Fields fields(json);
    EXPECT_FALSE(fields.integer(name, 0, 5).has_value()) << name;
    EXPECT_EQ(fields.failure().param, name);
  }
}

TEST(FieldsTest, RangesAreInclusiveAndNamed) {
  const Json json = body(R"({"n": 7, "x": 2.5})");
  Fields fields(json);
  EXPECT_EQ(fields.integer("n", 7, 7), 7);
  EXPECT_EQ(fields.number("x", 2.5, 2.5), 2.5);
  EXPECT_FALSE(fields.failed());
  EXPECT_FALSE(fields.integer("n", 0, 6).has_value());
  EXPECT_EQ(fields.failure().message, "n must be between 0 and 6, got 7");
  // The first thing wrong is the one reported.
  EXPECT_FALSE(fields.number("x", 0, 1).has_value());
  EXPECT_EQ(fields.failure().param, "n");
}

TEST(FieldsTest, StringsComeAloneOrInAList) {
  const Json json = body(R"({"a": "x", "b": ["x", "y"], "c": [], "d": ["x", 1], "e": 5})");
  EXPECT_EQ(Fields(json).strings("a"), std::vector<std::string>{"x"});
  EXPECT_EQ(Fields(json).strings("b"), (std::vector<std::string>{"x", "y"}));
  EXPECT_TRUE(Fields(json).strings("c").empty());
  for (const char* name : {"d", "e"}) {
    Fields fields(json);
    fields.strings(name);
    ASSERT_TRUE(fields.failed());
    EXPECT_NE(fields.failure().message.find(name), std::string::npos);
  }
}

TEST(FieldsTest, TokenIdsAreInTheVocabulary) {
  const Json json = body(R"({"a": [0, 99], "b": [100], "c": [-1], "d": [1.5], "e": "x"})");
  EXPECT_EQ(Fields(json).token_ids("a", 100), (std::vector<int32_t>{0, 99}));
  for (const char* name : {"b", "c", "d", "e"}) {
    Fields fields(json);
    fields.token_ids(name, 100);
    EXPECT_TRUE(fields.failed()) << name;
  }
}

TEST(ParseBodyTest, OnlyObjectsOfSaneDepth) {
  EXPECT_TRUE(parse_body(R"({"a": [[[]]]})").ok());
  for (const std::string& bad :
       {std::string(R"({"model": )"), std::string("[1]"), std::string("5"), std::string(),
        std::string("{\"a\": \"\xff\"}"), std::string(R"({"a": 1} x)"),
        R"({"a": )" + std::string(100000, '[')}) {
    const auto parsed = parse_body(bad);
    ASSERT_FALSE(parsed.ok()) << bad.substr(0, 40);
    EXPECT_NE(parsed.failure().message.find("JSON"), std::string::npos);
  }
  // Brackets inside strings are text.
  EXPECT_TRUE(parse_body("{\"a\": \"" + std::string(1000, '[') + "\\\"[\"}").ok());
}

}  // namespace
}  // namespace eyrie::server
