#include "bench/verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

namespace eyrie::bench {
namespace {

constexpr double kLowShare = 0.8;  // the tutorial's "20 % below"

// Ours and the published figure for one column at one concurrency.
struct Compared {
  const SweepPoint* point = nullptr;  // null: not run
  double speedup = 0.0;
  double published_speedup = 0.0;
};

class Judge {
 public:
  Judge(const Reference& reference, const SweepResult& result, const VerdictOptions& options)
      : reference_(reference),
        result_(result),
        options_(options),
        columns_(match_columns(reference, result.configs)) {}

  std::vector<Verdict> run() {
    absolute_baseline();
    for (size_t column = 1; column < reference_.column_ids.size(); ++column) speedups(column);
    order_of_last_two();
    low_rows();
    return std::move(verdicts_);
  }

 private:
  void add(Outcome outcome, std::string criterion, std::string detail) {
    verdicts_.push_back({outcome, std::move(criterion), std::move(detail)});
  }

  Compared compare(size_t column, const ReferenceRow& row) const {
    Compared compared;
    compared.published_speedup = row.per_device[column] / row.per_device[0];
    if (!columns_[column]) return compared;
    const SweepPoint* point = result_.find(*columns_[column], row.concurrency);
    const auto speedup = point == nullptr ? std::nullopt : result_.speedup(*point);
    if (!speedup) return compared;
    compared.point = point;
    compared.speedup = *speedup;
    return compared;
  }

  void absolute_baseline() {
    const std::string criterion = fmt::format(
        "{} at C = {} … {}: {:.1f} … {:.1f} tok/s per device", reference_.column_titles[0],
        reference_.rows.front().concurrency, reference_.rows.back().concurrency,
        reference_.rows.front().per_device[0], reference_.rows.back().per_device[0]);
    if (!options_.same_hardware) {
      add(Outcome::kNotCompared, criterion,
          fmt::format("published for {}; this is {}. Speeds of different hardware and models are "
                      "not comparable, speedups are (--same-hardware compares both)",
                      reference_.hardware, result_.machine));
      return;
    }
    std::string low, missing;
    int compared = 0;
    for (const auto& row : reference_.rows) {
      const SweepPoint* point = result_.find(0, row.concurrency);
      if (point == nullptr) {
        missing += fmt::format(" {}", row.concurrency);
        continue;
      }
      ++compared;
      const double ours = result_.per_device(*point);
      if (ours < kLowShare * row.per_device[0]) {
        low += fmt::format(" C={}: {:.1f} of {:.1f};", row.concurrency, ours, row.per_device[0]);
      }
    }
    if (!missing.empty()) missing = "; not run: C =" + missing;
    if (compared == 0) {
      add(Outcome::kNotRun, criterion, "none of these concurrencies was run");
    } else if (low.empty()) {
      add(Outcome::kMet, criterion, fmt::format("{} rows within 20 %{}", compared, missing));
    } else {
      add(Outcome::kNotMet, criterion, "20 % or more below:" + low + missing);
    }
  }

  // The speedup the tutorial names at its smallest and largest load.
  void speedups(size_t column) {
    for (const int64_t concurrency : reference_.speedup_at) {
      const ReferenceRow* row = reference_.find(concurrency);
      if (row == nullptr) continue;
      const Compared compared = compare(column, *row);
      const std::string criterion =
          fmt::format("{}: {:.2f}× over {} at C = {}", reference_.column_titles[column],
                      compared.published_speedup, reference_.column_titles[0], concurrency);
      if (compared.point == nullptr) {
        add(Outcome::kNotRun, criterion,
            columns_[column] ? fmt::format("C = {} was not run", concurrency)
                             : "no configuration stands for this column");
        continue;
      }
      const double floor = compared.published_speedup * (1.0 - noise(*compared.point));
      add(compared.speedup >= floor ? Outcome::kMet : Outcome::kNotMet, criterion,
          fmt::format("ours {:.2f}×{}{}", compared.speedup,
                      compared.speedup >= floor && compared.speedup < compared.published_speedup
                          ? ", within noise"
                          : "",
                      options_.same_hardware ? "" : ", on other hardware"));
    }
  }

  double noise(const SweepPoint& point) const {
    const SweepPoint* base = result_.find(0, point.concurrency);
    return std::max({options_.noise, point.spread(), base == nullptr ? 0.0 : base->spread()});
  }

  // FP8 ≥ BF16 at every concurrency, whichever were run.
  void order_of_last_two() {
    const size_t n = reference_.column_ids.size();
    if (n < 3) return;
    const size_t slow = n - 2, fast = n - 1;
    const std::string criterion =
        fmt::format("{} at least as fast as {} at every concurrency",
                    reference_.column_titles[fast], reference_.column_titles[slow]);
    if (!columns_[slow] || !columns_[fast]) {
      add(Outcome::kNotRun, criterion, "both configurations are needed");
      return;
    }
    std::string below;
    int compared = 0;
    double widest = 0.0;
    for (const int64_t concurrency : result_.concurrencies) {
      const SweepPoint* a = result_.find(*columns_[slow], concurrency);
      const SweepPoint* b = result_.find(*columns_[fast], concurrency);
      if (a == nullptr || b == nullptr) continue;
      ++compared;
      const double allowed = std::max({options_.noise, a->spread(), b->spread()});
      widest = std::max(widest, allowed);
      const double ratio = b->run().total_tok_s / std::max(1e-9, a->run().total_tok_s);
      if (ratio < 1.0 - allowed) {
        below += fmt::format(" C={}: {:.1f} % slower;", concurrency, (1.0 - ratio) * 100.0);
      }
    }
    const std::string within = fmt::format(
        "within noise of {:.1f} % ({})", widest * 100.0,
        widest > options_.noise ? "spread of the repeats" : "assumed; --repeats measures it");
    if (compared == 0) {
      add(Outcome::kNotRun, criterion, "no concurrency has both");
    } else if (below.empty()) {
      add(Outcome::kMet, criterion, fmt::format("{} concurrencies, {}", compared, within));
    } else {
      add(Outcome::kNotMet, criterion, below.substr(1) + " " + within);
    }
  }

  // Rows whose speedup is 20 % or more below the published one, with what to check.
  void low_rows() {
    const std::string criterion = "no speedup 20 % or more below the published one";
    std::string low;
    size_t low_config = 0;
    int compared = 0;
    for (size_t column = 1; column < reference_.column_ids.size(); ++column) {
      for (const auto& row : reference_.rows) {
        const Compared one = compare(column, row);
        if (one.point == nullptr) continue;
        ++compared;
        if (one.speedup >= kLowShare * one.published_speedup) continue;
        low += fmt::format(" {} C={}: {:.2f}× of {:.2f}×;", result_.configs[*columns_[column]].name,
                           row.concurrency, one.speedup, one.published_speedup);
        low_config = *columns_[column];
      }
    }
    if (compared == 0) {
      add(Outcome::kNotRun, criterion, "no published concurrency was run");
      return;
    }
    if (low.empty()) {
      add(Outcome::kMet, criterion, fmt::format("{} rows compared", compared));
      return;
    }
    std::string detail = low.substr(1) + " check";
    for (const auto& line : settings_in_effect(reference_, result_, low_config)) {
      detail += "\n    - " + line;
    }
    add(Outcome::kNotMet, criterion, detail);
  }

  const Reference& reference_;
  const SweepResult& result_;
  const VerdictOptions& options_;
  std::vector<std::optional<size_t>> columns_;
  std::vector<Verdict> verdicts_;
};

// The value of --name or -alias among args: "given" for a bare flag, nullopt when absent. The last
// one counts, as for the server.
std::optional<std::string> flag_value(const std::vector<std::string>& args,
                                      const ReferenceFlag& flag) {
  std::vector<std::string> spellings = {"--" + flag.name};
  for (const auto& alias : flag.aliases) {
    spellings.push_back("-" + alias);
    spellings.push_back("--" + alias);
  }
  std::optional<std::string> value;
  for (size_t i = 0; i < args.size(); ++i) {
    for (const auto& spelling : spellings) {
      if (args[i] == spelling) {
        const bool bare = flag.value == "given" || i + 1 == args.size();
        value = bare ? "given" : args[i + 1];
      } else if (args[i].starts_with(spelling + "=")) {
        value = args[i].substr(spelling.size() + 1);
      }
    }
  }
  return value;
}

}  // namespace

const char* outcome_word(Outcome outcome) {
  switch (outcome) {
    case Outcome::kMet:
      return "met";
    case Outcome::kNotMet:
      return "NOT MET";
    case Outcome::kNotRun:
      return "not run";
    case Outcome::kNotCompared:
      return "not compared";
  }
  return "";
}

std::vector<Verdict> judge(const Reference& reference, const SweepResult& result,
                           const VerdictOptions& options) {
  return Judge(reference, result, options).run();
}

std::vector<std::string> settings_in_effect(const Reference& reference, const SweepResult& result,
                                            size_t config_idx) {
  std::vector<std::string> lines;
  std::vector<std::string> args = result.common_args;
  const auto& own = result.configs[config_idx].args;
  args.insert(args.end(), own.begin(), own.end());
  for (const auto& flag : reference.flags) {
    const auto value = flag_value(args, flag);
    const std::string wanted =
        flag.value == "given" ? "--" + flag.name : fmt::format("--{} {}", flag.name, flag.value);
    lines.push_back(fmt::format("{}: here {}", wanted, value ? *value : flag.unset));
  }
  for (const auto& setting : reference.environment) {
    const std::string name = setting.substr(0, setting.find('='));
    const char* value = std::getenv(name.c_str());
    lines.push_back(fmt::format("{} (read by vLLM on ROCm): here {}", setting,
                                value == nullptr ? "not set" : value));
  }
  const auto positions = result.acceptance_per_position(config_idx);
  if (!positions.empty()) {
    double length = 1.0;
    for (const double rate : positions) length += rate;
    lines.push_back(fmt::format(
        "acceptance length here {:.2f} of at most {}: below about 2 a draft rarely pays", length,
        positions.size() + 1));
  }
  return lines;
}

}  // namespace eyrie::bench
