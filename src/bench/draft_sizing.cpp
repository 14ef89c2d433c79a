#include "bench/draft_sizing.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace eyrie::bench {
namespace {

// What a user may expect of drafts that size themselves.
constexpr double kLeastOfPlain = 0.97;
constexpr double kLeastOfFixed = 0.95;
constexpr double kLeastOfOptimum = 0.90;

// The number in length="3"; -1 without one.
int length_of(std::string_view labels) {
  constexpr std::string_view kKey = "length=\"";
  const size_t found = labels.find(kKey);
  if (found == labels.npos) return -1;
  const std::string_view digits = labels.substr(found + kKey.size());
  int length = -1;
  std::from_chars(digits.data(), digits.data() + digits.size(), length);
  return length;
}

std::vector<double> moved(const std::map<int, double>& before, const std::map<int, double>& after) {
  std::vector<double> out;
  for (const auto& [length, value] : after) {
    if (length < 0) continue;
    out.resize(static_cast<size_t>(length) + 1);
    const auto was = before.find(length);
    out.back() = value - (was == before.end() ? 0.0 : was->second);
  }
  return out;
}

// The speculative config among a configuration's flags; null without one.
nlohmann::json speculative_config(const SweepConfig& config) {
  for (const std::string& arg : config.args) {
    const size_t brace = arg.find('{');
    if (brace == std::string::npos) continue;
    const auto json = nlohmann::json::parse(arg.substr(brace), nullptr, false);
    if (json.is_object() && json.contains("num_speculative_tokens")) return json;
  }
  return nullptr;
}

bool is_adaptive(const nlohmann::json& config) {
  return config.is_object() && config.value("adaptive", true);
}

bool same_drafts(const nlohmann::json& one, const nlohmann::json& other) {
  return one.value("model", "") == other.value("model", "") &&
         one.value("method", "eagle3") == other.value("method", "eagle3");
}

// A share at every concurrency, and whether the least of them is enough.
class Shares {
 public:
  explicit Shares(double least) : least_(least) {}
  void add(int64_t concurrency, double share, const std::string& against) {
    text_ +=
        fmt::format("{}C={}: {:.2f}{}", text_.empty() ? "" : ", ", concurrency, share, against);
    met_ = met_ && share >= least_;
  }
  Verdict verdict(std::string criterion) const {
    const Outcome outcome = text_.empty() ? Outcome::kNotRun
                            : met_        ? Outcome::kMet
                                          : Outcome::kNotMet;
    return {outcome, std::move(criterion), text_.empty() ? "nothing to compare with" : text_};
  }

 private:
  double least_;
  std::string text_;
  bool met_ = true;
};

}  // namespace

void DraftSizingCounters::take(std::string_view name, std::string_view labels, double value) {
  if (name == "eyrie:draft_lengths_total") lengths[length_of(labels)] += value;
  if (name == "eyrie:decode_tokens_total") decode_tokens += value;
  if (name == "eyrie:decode_seconds_total") decode_seconds += value;
  if (name == "eyrie:decode_fixed_length_seconds_total") fixed_seconds[length_of(labels)] += value;
  if (name == "eyrie:synthetic_acceptance") synthetic = synthetic || value > 0.0;
}

std::optional<DraftSizing> draft_sizing(const DraftSizingCounters& before,
                                        const DraftSizingCounters& after) {
  DraftSizing sizing;
  sizing.lengths = moved(before.lengths, after.lengths);
  double total = 0.0;
  for (const double count : sizing.lengths) total += count;
  if (total <= 0.0) return std::nullopt;
  for (double& share : sizing.lengths) share /= total;
  sizing.synthetic = after.synthetic;
  const double tokens = after.decode_tokens - before.decode_tokens;
  const double seconds = after.decode_seconds - before.decode_seconds;
  if (tokens <= 0.0 || seconds <= 0.0) return sizing;
  sizing.decode_tok_s = tokens / seconds;
  for (const double fixed : moved(before.fixed_seconds, after.fixed_seconds)) {
    sizing.fixed_tok_s.push_back(fixed > 0.0 ? tokens / fixed : 0.0);
  }
  return sizing;
}

double DraftSizing::mean_length() const {
  double mean = 0.0;
  for (size_t k = 0; k < lengths.size(); ++k) mean += static_cast<double>(k) * lengths[k];
  return mean;
}

size_t DraftSizing::best_length() const {
  return static_cast<size_t>(std::ranges::max_element(fixed_tok_s) - fixed_tok_s.begin());
}

double DraftSizing::share_of_best() const {
  return fixed_tok_s.empty() ? 0.0 : decode_tok_s / std::max(1e-9, fixed_tok_s[best_length()]);
}

std::vector<std::pair<std::string, double>> draft_sizing_rows(const DraftSizing& sizing) {
  std::vector<std::pair<std::string, double>> rows = {{"Mean draft length:", sizing.mean_length()}};
  for (size_t k = 0; k < sizing.lengths.size(); ++k) {
    rows.emplace_back(fmt::format("  Length {} chosen (%):", k), sizing.lengths[k] * 100.0);
  }
  if (sizing.fixed_tok_s.empty()) return rows;
  rows.emplace_back("Decoding alone (tok/s):", sizing.decode_tok_s);
  for (size_t k = 0; k < sizing.fixed_tok_s.size(); ++k) {
    rows.emplace_back(fmt::format("  Fixed length {}, as modelled (tok/s):", k),
                      sizing.fixed_tok_s[k]);
  }
  rows.emplace_back("Of the best fixed length (%):", sizing.share_of_best() * 100.0);
  return rows;
}

nlohmann::ordered_json draft_sizing_json(const DraftSizing& sizing) {
  return {{"lengths", sizing.lengths},
          {"decode_tok_s", sizing.decode_tok_s},
          {"fixed_length_tok_s", sizing.fixed_tok_s},
          {"synthetic", sizing.synthetic}};
}

std::optional<DraftSizing> draft_sizing_from(const nlohmann::ordered_json& json) {
  if (!json.is_object()) return std::nullopt;
  DraftSizing sizing;
  sizing.lengths = json.value("lengths", sizing.lengths);
  sizing.decode_tok_s = json.value("decode_tok_s", 0.0);
  sizing.fixed_tok_s = json.value("fixed_length_tok_s", sizing.fixed_tok_s);
  sizing.synthetic = json.value("synthetic", false);
  return sizing;
}

std::vector<std::string> draft_sizing_sentences(const SweepResult& result) {
  std::vector<std::string> lines;
  for (const SweepPoint& point : result.points) {
    const auto& sizing = point.run().draft_sizing;
    if (!sizing || sizing->fixed_tok_s.empty()) continue;
    const size_t best = sizing->best_length();
    lines.push_back(fmt::format(
        "{} C={}: {:.2f} drafts in the mean; decoding alone {:.0f} tok/s; by measured costs and "
        "acceptance {:.0f} with none, {:.0f} with {} throughout, the best fixed length: {:.0f} % "
        "of it",
        result.configs[point.config_idx].name, point.concurrency, sizing->mean_length(),
        sizing->decode_tok_s, sizing->fixed_tok_s[0], sizing->fixed_tok_s[best], best,
        sizing->share_of_best() * 100.0));
  }
  return lines;
}

std::vector<Verdict> judge_draft_sizing(const SweepResult& result) {
  std::vector<Verdict> verdicts;
  const bool has_plain = !result.configs.empty() && speculative_config(result.configs[0]).is_null();
  for (size_t i = 0; i < result.configs.size(); ++i) {
    const nlohmann::json config = speculative_config(result.configs[i]);
    if (!is_adaptive(config)) continue;
    Shares of_plain(kLeastOfPlain), of_fixed(kLeastOfFixed), of_optimum(kLeastOfOptimum);
    for (const int64_t concurrency : result.concurrencies) {
      const SweepPoint* ours = result.find(i, concurrency);
      if (ours == nullptr) continue;
      const double speed = ours->run().output_tok_s;
      const SweepPoint* plain = has_plain ? result.find(0, concurrency) : nullptr;
      if (plain != nullptr) {
        of_plain.add(concurrency, speed / std::max(1e-9, plain->run().output_tok_s), "");
      }
      const SweepPoint* best = nullptr;
      for (size_t j = 0; j < result.configs.size(); ++j) {
        const nlohmann::json other = speculative_config(result.configs[j]);
        const SweepPoint* fixed = result.find(j, concurrency);
        if (other.is_null() || is_adaptive(other) || !same_drafts(config, other)) continue;
        if (fixed == nullptr) continue;
        if (best == nullptr || fixed->run().output_tok_s > best->run().output_tok_s) best = fixed;
      }
      if (best != nullptr) {
        of_fixed.add(concurrency, speed / std::max(1e-9, best->run().output_tok_s),
                     fmt::format(" of {}", result.configs[best->config_idx].name));
      }
      const auto& sizing = ours->run().draft_sizing;
      if (sizing && !sizing->fixed_tok_s.empty()) {
        of_optimum.add(concurrency, sizing->share_of_best(),
                       fmt::format(" of {} drafts", sizing->best_length()));
      }
    }
    const std::string& name = result.configs[i].name;
    verdicts.push_back(of_plain.verdict(name + ": at least 0.97× of no draft"));
    verdicts.push_back(of_fixed.verdict(name + ": within 5 % of the best fixed length"));
    verdicts.push_back(
        of_optimum.verdict(name + ": at least 90 % of what measured costs and acceptance allow"));
  }
  return verdicts;
}

}  // namespace eyrie::bench
