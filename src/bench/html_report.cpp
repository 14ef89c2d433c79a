#include "bench/html_report.h"

#include <fmt/format.h>

#include <functional>

#include "bench/line_chart.h"
#include "bench/shell_words.h"
#include "bench/sweep_tables.h"

namespace eyrie::bench {
namespace {

// Series colours keep their order in both modes and were chosen to stay apart for colour-blind
// readers; names at the lines' ends mean colour is never the only sign.
constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --bg: #fcfcfb; --ink: #1a1a19; --soft: #5f5e58; --grid: #e4e3de;
  --card: #ffffff; --good: #1a7f37; --bad: #b3261e;
  --c0: #5f5e58; --c1: #2a78d6; --c2: #c8590a; --c3: #12805c; --c4: #7b4fc9; --c5: #a8326e;
  --c6: #7a6a00; --c7: #0b7f91; }
@media (prefers-color-scheme: dark) { :root { --bg: #1a1a19; --ink: #f2f1ec; --soft: #b5b3aa;
  --grid: #3a3936; --card: #222221; --good: #5cc47a; --bad: #ff8a80;
  --c0: #b5b3aa; --c1: #6aa9f4; --c2: #f0914c; --c3: #4cc298; --c4: #b79bf0; --c5: #ee7fb2;
  --c6: #d3bf3c; --c7: #55c3d6; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1180px; padding: 24px; background: var(--bg); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 26px; margin: 0 0 4px; } h2 { font-size: 19px; margin: 36px 0 10px; }
h3 { font-size: 15px; margin: 0 0 6px; font-weight: 600; }
p, li { max-width: 78ch; } .soft { color: var(--soft); }
pre, code { font: 13px/1.5 ui-monospace, monospace; }
pre { overflow-x: auto; background: var(--card); border: 1px solid var(--grid); padding: 10px 12px;
  border-radius: 6px; white-space: pre-wrap; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; background: var(--card); }
th, td { padding: 5px 12px; border-bottom: 1px solid var(--grid); text-align: right;
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
th { color: var(--soft); font-weight: 600; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(420px, 1fr)); gap: 16px; }
figure { margin: 0; background: var(--card); border: 1px solid var(--grid); border-radius: 8px;
  padding: 14px; }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--soft); font: 12px system-ui, sans-serif; } svg .end { fill: var(--ink); }
.grid { stroke: var(--grid); } .axis { stroke: var(--soft); }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; } .dashed { stroke-dasharray: 5 4; }
.dot { stroke: var(--card); stroke-width: 1.5; } .hollow { fill: var(--card) !important;
  stroke-width: 2; }
.line.s0, .hollow.s0 { stroke: var(--c0); } .dot.s0 { fill: var(--c0); }
.line.s1, .hollow.s1 { stroke: var(--c1); } .dot.s1 { fill: var(--c1); }
.line.s2, .hollow.s2 { stroke: var(--c2); } .dot.s2 { fill: var(--c2); }
.line.s3, .hollow.s3 { stroke: var(--c3); } .dot.s3 { fill: var(--c3); }
.line.s4, .hollow.s4 { stroke: var(--c4); } .dot.s4 { fill: var(--c4); }
.line.s5, .hollow.s5 { stroke: var(--c5); } .dot.s5 { fill: var(--c5); }
.line.s6, .hollow.s6 { stroke: var(--c6); } .dot.s6 { fill: var(--c6); }
.line.s7, .hollow.s7 { stroke: var(--c7); } .dot.s7 { fill: var(--c7); }
ul.verdicts { list-style: none; padding: 0; } ul.verdicts li { margin: 0 0 10px; }
.outcome { display: inline-block; min-width: 8em; font-weight: 600; }
.met { color: var(--good); } .notmet { color: var(--bad); } .detail { color: var(--soft);
  white-space: pre-wrap; }
@media print { body { max-width: none; font-size: 12px; } .scroll { overflow: visible; }
  figure { break-inside: avoid; } }
)";

std::string element(const char* tag, const std::string& text) {
  return fmt::format("<{0}>{1}</{0}>\n", tag, escape_html(text));
}

std::string table_html(const TableRows& rows) {
  std::string out = "<div class=\"scroll\"><table>\n";
  for (size_t r = 0; r < rows.size(); ++r) {
    out += "<tr>";
    const char* tag = r == 0 ? "th" : "td";
    for (const auto& cell : rows[r]) out += fmt::format("<{0}>{1}</{0}>", tag, escape_html(cell));
    out += "</tr>\n";
  }
  return out + "</table></div>\n";
}

std::string figure(const LineChart& chart) {
  return "<figure>" + element("h3", chart.title) + line_chart_svg(chart) + "</figure>\n";
}

using Figure = std::function<double(const RunSummary&)>;

ChartSeries series_of(const SweepResult& result, size_t config_idx, const Figure& figure_of) {
  ChartSeries series;
  series.name = result.configs[config_idx].name;
  series.color = static_cast<int>(config_idx % 8);
  for (const int64_t concurrency : result.concurrencies) {
    const SweepPoint* point = result.find(config_idx, concurrency);
    series.values.push_back(point == nullptr ? std::nullopt
                                             : std::optional<double>(figure_of(point->run())));
  }
  return series;
}

LineChart by_concurrency(const SweepResult& result, const std::string& title,
                         const std::string& unit) {
  LineChart chart;
  chart.title = title;
  chart.x_label = "concurrent requests";
  chart.y_label = unit;
  for (const int64_t c : result.concurrencies) chart.categories.push_back(fmt::format("{}", c));
  return chart;
}

std::string throughput_plot(const SweepResult& result) {
  LineChart chart =
      by_concurrency(result, "Throughput, tok/s per device (input + output)", "tok/s per device");
  const auto devices = static_cast<double>(result.devices);
  for (size_t i = 0; i < result.configs.size(); ++i) {
    chart.series.push_back(
        series_of(result, i, [&](const RunSummary& run) { return run.total_tok_s / devices; }));
  }
  return figure(chart);
}

std::string speedup_plot(const SweepResult& result) {
  LineChart chart =
      by_concurrency(result, fmt::format("Speedup over {}", result.configs[0].name), "times");
  for (size_t i = 0; i < result.configs.size(); ++i) {
    ChartSeries series = series_of(result, i, [](const RunSummary&) { return 0.0; });
    for (size_t c = 0; c < result.concurrencies.size(); ++c) {
      const SweepPoint* point = result.find(i, result.concurrencies[c]);
      if (point != nullptr) series.values[c] = result.speedup(*point);
    }
    chart.series.push_back(std::move(series));
  }
  return figure(chart);
}

std::string latency_plot(const SweepResult& result, const std::string& title,
                         LatencyMs RunSummary::*latency) {
  LineChart chart = by_concurrency(result, title + ", ms: p50 solid, p99 dashed", "ms");
  for (size_t i = 0; i < result.configs.size(); ++i) {
    ChartSeries middle =
        series_of(result, i, [&](const RunSummary& run) { return (run.*latency).p50; });
    middle.name += " p50";
    ChartSeries tail =
        series_of(result, i, [&](const RunSummary& run) { return (run.*latency).p99; });
    tail.name += " p99";
    tail.dashed = true;
    chart.series.push_back(std::move(middle));
    chart.series.push_back(std::move(tail));
  }
  return figure(chart);
}

std::string acceptance_plot(const SweepResult& result) {
  LineChart chart;
  chart.title = "Drafts accepted at each position, % of steps (all runs)";
  chart.x_label = "position in the draft";
  chart.y_label = "%";
  chart.y_max = 100.0;
  size_t longest = 0;
  for (size_t i = 0; i < result.configs.size(); ++i) {
    const auto rates = result.acceptance_per_position(i);
    if (rates.empty()) continue;
    ChartSeries series;
    series.name = result.configs[i].name;
    series.color = static_cast<int>(i % 8);
    for (const double rate : rates) series.values.push_back(rate * 100.0);
    longest = std::max(longest, rates.size());
    chart.series.push_back(std::move(series));
  }
  if (chart.series.empty()) return "";
  for (size_t i = 0; i < longest; ++i) chart.categories.push_back(fmt::format("{}", i));
  for (auto& series : chart.series) series.values.resize(longest);
  return figure(chart);
}

const char* outcome_class(Outcome outcome) {
  if (outcome == Outcome::kMet) return "met";
  return outcome == Outcome::kNotMet ? "notmet" : "soft";
}

std::string reference_section(const SweepResult& result, const Reference& reference,
                              const std::vector<Verdict>& verdicts) {
  std::string out = element("h2", "Beside the published table");
  out += fmt::format(
      "<p>{}. tok/s per device, speedup in brackets. Metric: {}; workload: {}.<br/>Source: "
      "<a href=\"{}\">{}</a></p>\n",
      escape_html(reference.title), escape_html(reference.metric), escape_html(reference.workload),
      escape_html(reference.source_url), escape_html(reference.source_title));
  out += table_html(comparison_rows(result, &reference));
  out += "<ul class=\"verdicts\">\n";
  for (const auto& verdict : verdicts) {
    out += fmt::format(
        "<li><span class=\"outcome {}\">{}</span> {}<div class=\"detail\">{}</div></li>\n",
        outcome_class(verdict.outcome), outcome_word(verdict.outcome),
        escape_html(verdict.criterion), escape_html(verdict.detail));
  }
  return out + "</ul>\n";
}

std::string list_html(const std::vector<std::string>& lines) {
  std::string out = "<ul>\n";
  for (const auto& line : lines) out += element("li", line);
  return out + "</ul>\n";
}

std::string configurations_section(const SweepResult& result) {
  std::string out = element("h2", "Configurations");
  std::string commands;
  for (const auto& config : result.configs) {
    auto args = result.common_args;
    args.insert(args.end(), config.args.begin(), config.args.end());
    commands +=
        fmt::format("# {}\neyrie serve {} {}\n", config.name, result.model, join_shell_words(args));
  }
  return out + element("pre", commands) + "<p>The sweep was started as</p>\n" +
         element("pre", result.command);
}

}  // namespace

std::string sweep_html(const SweepResult& result, const Reference* reference,
                       const std::vector<Verdict>& verdicts) {
  std::string out =
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n";
  out += element("title", result.title);
  out += fmt::format("<style>{}</style></head><body>\n", kStyle);
  out += element("h1", result.title);
  out += fmt::format("<p class=\"soft\">{} · {} · eyrie {} · {}<br/>Dataset: {}</p>\n",
                     escape_html(result.model), escape_html(result.machine),
                     escape_html(result.version), escape_html(result.date),
                     escape_html(result.dataset));
  auto sentences = speedup_sentences(result);
  if (auto answers = result.answers_sentence(); !answers.empty()) {
    sentences.push_back(std::move(answers));
  }
  if (!sentences.empty()) out += list_html(sentences);
  out += table_html(sweep_rows(result));
  out += fmt::format(
      "<p class=\"soft\">tok/s counts input and output tokens; {} device{}. Accept = tokens per "
      "step of the target (1 + accepted drafts). TPOT is per token: a chunk's gap is shared by its "
      "tokens.</p>\n",
      result.devices, result.devices == 1 ? "" : "s");
  out += "<div class=\"plots\">\n" + throughput_plot(result) + speedup_plot(result) +
         latency_plot(result, "Time to first token", &RunSummary::ttft) +
         latency_plot(result, "Time per output token", &RunSummary::tpot) +
         acceptance_plot(result) + "</div>\n";
  if (reference != nullptr) out += reference_section(result, *reference, verdicts);
  if (const auto warnings = sweep_warnings(result); !warnings.empty()) {
    out += element("h2", "What to keep in mind") + list_html(warnings);
  }
  return out + configurations_section(result) + "</body></html>\n";
}

}  // namespace eyrie::bench
