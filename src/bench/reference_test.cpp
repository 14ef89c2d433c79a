#include "bench/reference.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "bench/sweep_tables.h"
#include "bench/sweep_testing.h"

namespace eyrie::bench {
namespace {

using testing::HasSubstr;

Reference published() { return load_reference("amd-mi355x-tp4"); }

TEST(ReferenceTest, ThePublishedTableIsWhole) {
  const Reference reference = published();
  ASSERT_EQ(reference.rows.size(), 5U);
  EXPECT_EQ(reference.column_ids.size(), 3U);
  EXPECT_DOUBLE_EQ(reference.find(4)->per_device[2], 165.2);
  EXPECT_DOUBLE_EQ(reference.find(64)->per_device[0], 533.3);
  EXPECT_EQ(reference.find(2), nullptr);
  EXPECT_FALSE(reference.source_url.empty());
}

TEST(ReferenceTest, UnknownNamesAndBadFilesAreErrors) {
  try {
    load_reference("h100");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("there are: amd-mi355x-tp4"));
  }
  EXPECT_THROW(parse_reference("{}", "x.json"), Error);
  EXPECT_THROW(parse_reference("[", "x.json"), Error);
}

TEST(ReferenceTest, ColumnsAreFoundByName) {
  const auto columns = match_columns(published(), {{"no-spec", {}}, {"My-FP8", {}}});
  EXPECT_EQ(columns[0], 0U);
  EXPECT_FALSE(columns[1].has_value());
  EXPECT_EQ(columns[2], 1U);
}

TEST(ComparisonTableTest, OursBesideThePublished) {
  const auto result = fake_sweep({{100, 150}, {110, 0}}, {2, 4}, {"no-spec", "bf16"});
  const Reference reference = published();
  const auto rows = comparison_rows(result, &reference);
  ASSERT_EQ(rows.size(), 7U);  // header, 2, 4, 8, 16, 32, 64
  EXPECT_THAT(rows[1], testing::ElementsAre("2", "100.0", "110.0 (1.10×)", "-", "-", "-"));
  EXPECT_THAT(rows[2], testing::ElementsAre("4", "150.0", "not run", "82.7", "157.0 (1.90×)",
                                            "165.2 (2.00×)"));
  EXPECT_EQ(comparison_rows(result, nullptr).size(), 3U);
  const std::string markdown = sweep_markdown(result, &reference, judge(reference, result, {}));
  EXPECT_THAT(markdown, HasSubstr("rocm.blogs.amd.com"));
  EXPECT_THAT(markdown, HasSubstr("not run"));
}

}  // namespace
}  // namespace eyrie::bench
