#include "bench/sweep_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>

#include "base/human.h"
#include "bench/draft_sizing.h"
#include "bench/shell_words.h"

namespace eyrie::bench {
namespace {

// Latencies are medians; the other percentiles are in the report.
const std::vector<std::string> kHeader = {"configuration", "C",         "tok/s",
                                          "tok/s/device",  "out tok/s", "speedup",
                                          "accept",        "TTFT ms",   "TPOT ms"};

std::string speedup_text(const SweepResult& result, const SweepPoint& point) {
  const auto speedup = result.speedup(point);
  return speedup ? fmt::format("{:.2f}×", *speedup) : "-";
}

std::vector<std::string> row_cells(const SweepResult& result, const SweepPoint& point) {
  const RunSummary& run = point.run();
  return {result.configs[point.config_idx].name,
          fmt::format("{}", point.concurrency),
          fmt::format("{:.1f}", run.total_tok_s),
          fmt::format("{:.1f}", result.per_device(point)),
          fmt::format("{:.1f}", run.output_tok_s),
          speedup_text(result, point),
          run.acceptance_length ? fmt::format("{:.2f}", *run.acceptance_length) : "-",
          fmt::format("{:.1f}", run.ttft.p50),
          fmt::format("{:.2f}", run.tpot.p50)};
}

// Columns wide enough for what a sweep shows; the configurations' names set the first.
size_t live_width(const SweepResult& result, size_t column) {
  constexpr size_t kFigure = 8;
  size_t width = kHeader[column].size();
  if (column == 0) {
    for (const auto& config : result.configs) width = std::max(width, config.name.size());
    return width;
  }
  return column == 1 ? 4 : std::max(width, column == 2 ? kFigure : width);
}

std::string live_line(const SweepResult& result, const std::vector<std::string>& cells) {
  std::string line;
  for (size_t i = 0; i < cells.size(); ++i) {
    const size_t width = live_width(result, i);
    // fmt counts "×" as one column, as a terminal does.
    line +=
        i == 0 ? fmt::format("{:<{}}", cells[i], width) : fmt::format("  {:>{}}", cells[i], width);
  }
  return line;
}

std::string published_cell(const ReferenceRow& row, size_t column) {
  return column == 0 ? fmt::format("{:.1f}", row.per_device[0])
                     : fmt::format("{:.1f} ({:.2f}×)", row.per_device[column],
                                   row.per_device[column] / row.per_device[0]);
}

}  // namespace

TableRows sweep_rows(const SweepResult& result) {
  TableRows rows = {kHeader};
  for (const auto& point : result.points) rows.push_back(row_cells(result, point));
  return rows;
}

std::string live_header(const SweepResult& result) { return live_line(result, kHeader); }

std::string live_row(const SweepResult& result, const SweepPoint& point) {
  std::string line = live_line(result, row_cells(result, point));
  if (point.from_store) line += "  stored";
  if (point.run().failed > 0) line += fmt::format("  {} failed", point.run().failed);
  return line;
}

TableRows comparison_rows(const SweepResult& result, const Reference* reference) {
  TableRows rows(1);
  rows[0].push_back("C");
  for (const auto& config : result.configs) rows[0].push_back(config.name);
  std::set<int64_t> concurrencies(result.concurrencies.begin(), result.concurrencies.end());
  if (reference != nullptr) {
    for (const auto& title : reference->column_titles) rows[0].push_back("published " + title);
    for (const auto& row : reference->rows) concurrencies.insert(row.concurrency);
  }
  for (const int64_t concurrency : concurrencies) {
    std::vector<std::string> cells = {fmt::format("{}", concurrency)};
    for (size_t i = 0; i < result.configs.size(); ++i) {
      const SweepPoint* point = result.find(i, concurrency);
      if (point == nullptr) {
        cells.push_back("not run");
      } else if (i == 0) {
        cells.push_back(fmt::format("{:.1f}", result.per_device(*point)));
      } else {
        cells.push_back(
            fmt::format("{:.1f} ({})", result.per_device(*point), speedup_text(result, *point)));
      }
    }
    if (reference != nullptr) {
      const ReferenceRow* row = reference->find(concurrency);
      for (size_t i = 0; i < reference->column_ids.size(); ++i) {
        cells.push_back(row == nullptr ? "-" : published_cell(*row, i));
      }
    }
    rows.push_back(std::move(cells));
  }
  return rows;
}

std::vector<std::string> sweep_warnings(const SweepResult& result) {
  // The same warning comes from many runs with other numbers: one line for each kind.
  struct Kind {
    std::string place, text;
    int count = 0;
  };
  std::vector<std::string> order;
  std::map<std::string, Kind> kinds;
  for (const auto& point : result.points) {
    std::vector<std::string> warnings;
    for (const auto& run : point.runs) {
      warnings.insert(warnings.end(), run.warnings.begin(), run.warnings.end());
    }
    for (const auto& warning : warnings) {
      std::string shape;
      for (const char c : warning) {
        if (std::isdigit(static_cast<unsigned char>(c)) == 0) shape += c;
      }
      const auto [found, added] = kinds.try_emplace(shape);
      if (added) order.push_back(shape);
      found->second.place =
          fmt::format("{} C={}", result.configs[point.config_idx].name, point.concurrency);
      found->second.text = warning;
      ++found->second.count;
    }
  }
  std::vector<std::string> lines;
  for (const auto& shape : order) {
    const Kind& kind = kinds[shape];
    lines.push_back(kind.count == 1 ? fmt::format("{}: {}", kind.place, kind.text)
                                    : fmt::format("in {} of {} runs, the last {}: {}", kind.count,
                                                  result.points.size(), kind.place, kind.text));
  }
  return lines;
}

std::vector<std::string> speedup_sentences(const SweepResult& result) {
  std::vector<std::string> lines;
  for (size_t i = 1; i < result.configs.size(); ++i) {
    const SweepPoint *first = nullptr, *last = nullptr;
    for (const auto& point : result.points) {
      if (point.config_idx != i || !result.speedup(point)) continue;
      if (first == nullptr) first = &point;
      last = &point;
    }
    if (first == nullptr) continue;
    std::string line = fmt::format("{}: {} at C={}", result.configs[i].name,
                                   speedup_text(result, *first), first->concurrency);
    if (last != first) {
      line += fmt::format(", {} at C={}", speedup_text(result, *last), last->concurrency);
    }
    lines.push_back(line + fmt::format(", against {}", result.configs[0].name));
  }
  return lines;
}

std::string verdict_text(const std::vector<Verdict>& verdicts) {
  std::string text;
  for (const auto& verdict : verdicts) {
    text += fmt::format("[{}] {}\n    {}\n", outcome_word(verdict.outcome), verdict.criterion,
                        verdict.detail);
  }
  return text;
}

std::string sweep_markdown(const SweepResult& result, const Reference* reference,
                           const std::vector<Verdict>& verdicts) {
  std::string text = fmt::format("# {}\n\n", result.title);
  text += fmt::format("{} · {} · eyrie {} · {}\n\n", result.model, result.machine, result.version,
                      result.date);
  text += fmt::format("`{}`\n\nDataset: {}.\n\n", result.command, result.dataset);
  text += format_table(sweep_rows(result), /*markdown=*/true);
  text += fmt::format(
      "\ntok/s counts input and output tokens; {} device{}; speedup against {}; accept = tokens "
      "per step of the target (1 + accepted drafts).\n",
      result.devices, result.devices == 1 ? "" : "s", result.configs[0].name);
  if (const std::string answers = result.answers_sentence(); !answers.empty()) {
    text += "\n" + answers + "\n";
  }
  if (reference != nullptr) {
    text += fmt::format("\n## Beside {}\n\ntok/s per device (speedup). {}; {}. Source: {}, {}\n\n",
                        reference->title, reference->metric, reference->workload,
                        reference->source_title, reference->source_url);
    text += format_table(comparison_rows(result, reference), /*markdown=*/true);
    text += "\n";
    for (const auto& verdict : verdicts) {
      text += fmt::format("- **{}**: {}. {}\n", outcome_word(verdict.outcome), verdict.criterion,
                          verdict.detail);
    }
  }
  if (const auto lines = draft_sizing_sentences(result); !lines.empty()) {
    text += "\n## Draft lengths\n\n";
    for (const auto& line : lines) text += fmt::format("- {}\n", line);
    for (const auto& verdict : judge_draft_sizing(result)) {
      text += fmt::format("- **{}**: {}. {}\n", outcome_word(verdict.outcome), verdict.criterion,
                          verdict.detail);
    }
  }
  if (const auto warnings = sweep_warnings(result); !warnings.empty()) {
    text += "\n## What to keep in mind\n\n";
    for (const auto& warning : warnings) text += fmt::format("- {}\n", warning);
  }
  text += "\n## Configurations\n\n";
  for (const auto& config : result.configs) {
    auto args = result.common_args;
    args.insert(args.end(), config.args.begin(), config.args.end());
    text += fmt::format("- {}: `serve {} {}`\n", config.name, result.model, join_shell_words(args));
  }
  return text;
}

}  // namespace eyrie::bench
