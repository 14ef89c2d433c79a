#include <gtest/gtest.h>

#include <fstream>

#include "chat/json_text.h"
#include "chat/template.h"
#include "tokenizer/golden_test_util.h"

namespace eyrie::chat {
namespace {

TEST(ToolDeclarationTest, DeclaresAsTheCheckpointsTokenizer) {
  const Json rows = Json::parse(std::ifstream(std::string(kGoldenDir) + "/tools.json"));
  ASSERT_GT(rows.size(), 40u);
  for (const Json& row : rows) {
    EXPECT_EQ(declare_tools(tools_from_json(row["tools"]).value()), row["text"].get<std::string>());
  }
  EXPECT_EQ(declare_tools({}), "");
}

TEST(JsonTextTest, WritesFloatsAsPython) {
  // From Python 3.11: repr(value).
  const std::pair<double, const char*> cases[] = {
      {0.0, "0.0"},        {-0.0, "-0.0"},
      {1.0, "1.0"},        {0.1, "0.1"},
      {1e-4, "0.0001"},    {1e-5, "1e-05"},
      {1.5e-7, "1.5e-07"}, {1e15, "1000000000000000.0"},
      {1e16, "1e+16"},     {123456789012345680.0, "1.2345678901234568e+17"},
      {5e-324, "5e-324"},  {1.7976931348623157e308, "1.7976931348623157e+308"},
      {-2.5, "-2.5"},
  };
  for (const auto& [value, text] : cases) EXPECT_EQ(python_float(value), text);
}

TEST(JsonTextTest, DumpsAndPrintsAsPython) {
  const Json value =
      Json::parse(R"({"b": [1, 2.0, null, true], "a": {"k": "é\"\n\u0001"}, "e": {}})");
  EXPECT_EQ(dump_json(value), R"({"b": [1, 2.0, null, true], "a": {"k": "é\"\n\u0001"}, "e": {}})");
  EXPECT_EQ(dump_json(value, kCompactJson),
            R"({"b":[1,2.0,null,true],"a":{"k":"é\"\n\u0001"},"e":{}})");
  EXPECT_EQ(python_str(value), R"({'b': [1, 2.0, None, True], 'a': {'k': 'é"\n\x01'}, 'e': {}})");
  EXPECT_EQ(python_str(Json("it's")), "it's");
  EXPECT_EQ(python_str(Json::array({"it's"})), R"(["it's"])");
}

TEST(JsonTextTest, BoundsTheDepth) {
  EXPECT_TRUE(nests_at_most(Json(1), 0));
  EXPECT_TRUE(nests_at_most(Json::parse("[[1]]"), 2));
  EXPECT_FALSE(nests_at_most(Json::parse("[[1]]"), 1));
}

}  // namespace
}  // namespace eyrie::chat
