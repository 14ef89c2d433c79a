#include "ops/gpu/gpu_test_support.h"

#include <fmt/format.h>

#include <map>

#include "base/human.h"

namespace eyrie::ops::gpu {
namespace {

struct Worst {
  double error = 0;
  double limit = 0;
  int64_t comparisons = 0;
};
std::map<std::string, Worst>& worst_errors() {
  static std::map<std::string, Worst> instance;
  return instance;
}

class ErrorTable : public testing::Environment {
  void TearDown() override {
    if (worst_errors().empty()) return;
    std::vector<std::vector<std::string>> rows{{"result", "worst error", "limit", "comparisons"}};
    for (const auto& [name, worst] : worst_errors()) {
      rows.push_back({name, fmt::format("{:.2e}", worst.error), fmt::format("{:.0e}", worst.limit),
                      fmt::format("{}", worst.comparisons)});
    }
    fmt::print("error relative to the largest value of the float64 reference\n{}\n",
               format_table(rows));
  }
};
[[maybe_unused]] const testing::Environment* const table =
    testing::AddGlobalTestEnvironment(new ErrorTable);

}  // namespace

void expect_close(const std::string& name, const Matrix& got, const Matrix& want, double limit) {
  ASSERT_EQ(got.rows(), want.rows());
  ASSERT_EQ(got.columns(), want.columns());
  const double error = normalised_error(got, want);
  Worst& worst = worst_errors()[name];
  worst.error = std::max(worst.error, error);
  worst.limit = limit;
  ++worst.comparisons;
  EXPECT_LE(error, limit) << name << " [" << got.rows() << ", " << got.columns() << "]";
}

}  // namespace eyrie::ops::gpu
