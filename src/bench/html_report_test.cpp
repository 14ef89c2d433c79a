#include "bench/html_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/line_chart.h"
#include "bench/sweep_testing.h"

namespace eyrie::bench {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// The first violation of XML's nesting and quoting, empty when there is none. The page is written
// to satisfy both HTML and XML (void elements closed), so a strict reading is possible.
std::string first_fault(const std::string& page) {
  std::vector<std::string> open;
  size_t pos = page.find("<html");
  while ((pos = page.find('<', pos)) != std::string::npos) {
    const size_t end = page.find('>', pos);
    if (end == std::string::npos) return "a tag does not end";
    const std::string tag = page.substr(pos + 1, end - pos - 1);
    if (tag.find('<') != std::string::npos) return "a bare < before " + tag.substr(0, 40);
    if (std::count(tag.begin(), tag.end(), '"') % 2 != 0) return "odd quotes in " + tag;
    const std::string name = tag.substr(0, tag.find_first_of(" /", 1));
    if (tag.starts_with('/')) {
      if (open.empty() || "/" + open.back() != tag) return "unexpected <" + tag + ">";
      open.pop_back();
    } else if (!tag.ends_with('/')) {
      open.push_back(name);
    }
    if (name == "style") {  // its text is not markup
      pos = page.find("</style", end);
      continue;
    }
    pos = end;
  }
  return open.empty() ? "" : "never closed: " + open.back();
}

std::string page_of(bool with_reference) {
  SweepResult result = fake_sweep({{100, 200, 300}, {150, 0, 500}, {160, 320, 640}}, {4, 8, 64},
                                  {"no-spec", "bf16 <&\">", "fp8"});
  OrderedJson run = fake_result(700);
  run["spec_decode_acceptance_length"] = 2.5;
  run["spec_decode_num_drafts"] = 10;
  run["spec_decode_per_position_acceptance_rates"] = {0.9, 0.6, 0.0};
  run["eyrie"]["warnings"] = {"a <warning>"};
  for (auto& point : result.points) {
    if (point.config_idx == 2 && point.concurrency == 64) point.add(run, false);
  }
  result.configs[1].args = {"--speculative-config", "{\"a\": \"<b>\"}"};
  const Reference reference = load_reference("amd-mi355x-tp4");
  return sweep_html(result, with_reference ? &reference : nullptr, judge(reference, result, {}));
}

TEST(HtmlReportTest, IsWellFormed) {
  EXPECT_EQ(first_fault(page_of(true)), "");
  EXPECT_EQ(first_fault(page_of(false)), "");
  EXPECT_EQ(first_fault(sweep_html(fake_sweep({{0}}, {1}), nullptr, {})), "");
}

TEST(HtmlReportTest, TheCheckerSeesFaults) {
  EXPECT_NE(first_fault("<html><p></html>"), "");
  EXPECT_NE(first_fault("<html><p>a < b</p></html>"), "");
  EXPECT_NE(first_fault("<html><a b=\"></a></html>"), "");
}

TEST(HtmlReportTest, NeedsNothingFromElsewhere) {
  const std::string page = page_of(true);
  for (const char* loader : {"<script", "<link", "<img", "@import", "url(", "src="}) {
    EXPECT_THAT(page, Not(HasSubstr(loader)));
  }
  EXPECT_THAT(page, HasSubstr("prefers-color-scheme: dark"));
}

TEST(HtmlReportTest, ShowsPlotsVerdictsAndWarnings) {
  const std::string page = page_of(true);
  size_t plots = 0;
  for (size_t pos = 0; (pos = page.find("<svg", pos)) != std::string::npos; ++pos) ++plots;
  EXPECT_EQ(plots, 5U);
  EXPECT_THAT(page, HasSubstr("NOT MET"));
  EXPECT_THAT(page, HasSubstr("a &lt;warning&gt;"));
  EXPECT_THAT(page, HasSubstr("a &lt;title&gt; &amp; more"));
}

TEST(LineChartTest, TicksAreRoundAndCoverTheValues) {
  EXPECT_THAT(round_ticks(100), ElementsAre(0, 25, 50, 75, 100));
  EXPECT_THAT(round_ticks(5943), ElementsAre(0, 2000, 4000, 6000));
  EXPECT_THAT(round_ticks(0.9).back(), testing::DoubleNear(1.0, 1e-9));
  EXPECT_THAT(round_ticks(0), ElementsAre(0, 0.25, 0.5, 0.75, 1.0));
  EXPECT_THAT(round_ticks(-3).back(), 1.0);
}

TEST(LineChartTest, AGapBreaksTheLine) {
  LineChart chart;
  chart.title = "t";
  chart.categories = {"1", "2", "3", "4"};
  chart.series = {{.name = "a", .color = 1, .dashed = false, .values = {1.0, {}, 3.0, 4.0}}};
  const std::string svg = line_chart_svg(chart);
  size_t lines = 0, dots = 0;
  for (size_t pos = 0; (pos = svg.find("<polyline", pos)) != std::string::npos; ++pos) ++lines;
  for (size_t pos = 0; (pos = svg.find("<circle", pos)) != std::string::npos; ++pos) ++dots;
  EXPECT_EQ(lines, 2U);
  EXPECT_EQ(dots, 3U);
  chart.categories = {"1"};
  chart.series[0].values = {2.0};
  EXPECT_THAT(line_chart_svg(chart), HasSubstr("<circle"));
}

}  // namespace
}  // namespace eyrie::bench
