#include "base/result.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace eyrie {
namespace {

Result<int> parse(bool good) {
  if (good) return 3;
  return Failure{FailureKind::kNotFound, "no such thing", "thing"};
}

TEST(Result, HoldsEitherAValueOrAFailure) {
  EXPECT_EQ(parse(true).value(), 3);
  const auto failed = parse(false);
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.failure().kind, FailureKind::kNotFound);
  EXPECT_EQ(failed.failure().param, "thing");
}

TEST(ResultDeathTest, TakingTheValueOfAFailureIsABug) {
  EXPECT_DEATH((void)parse(false).value(), "no such thing");
}

TEST(CheckDeathTest, PrintsBothValues) { EXPECT_DEATH(CHECK_EQ(1 + 1, 3), "2 vs 3"); }

TEST(Error, CarriesItsContext) {
  try {
    with_context("loading a.json", [] { fail("field {} is missing", "x"); });
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "loading a.json: field x is missing");
  }
}

}  // namespace
}  // namespace eyrie
