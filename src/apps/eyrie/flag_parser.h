// vLLM's command-line grammar, so that a command line works with one word changed: underscores are
// dashes, unique prefixes are enough, `--x/--no-x` pairs take no value, JSON flags accept dotted
// keys
// (--speculative-config.method eagle3), human-readable integers (1k = 1000, 1K = 1024), a repeated
// scalar's last value wins. Ordinary parsers know none of these rules, hence a small one of our own
// (docs/decisions/0002-flag-grammar.md). A program's flags are one table of FlagSpec.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace eyrie::apps {

enum class FlagKind {
  kBool,    // --x / --no-x, no value
  kSwitch,  // --x only, no value
  kString,
  kInt,
  kHumanInt,  // 1k, 1K, 25.6k, also "auto" as written by the caller's check
  kFloat,
  kList,      // one or more values after the flag
  kRepeated,  // one value each time, all of them kept in order
  kJson,      // JSON text or dotted keys, merged
};

struct FlagSpec {
  std::string_view name;  // "max-model-len", without dashes
  FlagKind kind = FlagKind::kString;
  std::string_view alias = {};  // "tp" for -tp; empty = none
  std::string_view help = {};
  // Non-empty: vLLM knows the flag and this program does not act on it; the log says this, once.
  std::string_view explained = {};
};

class ParsedFlags {
 public:
  bool has(std::string_view name) const { return values_.contains(std::string(name)); }
  bool boolean(std::string_view name, bool absent) const;
  std::string string(std::string_view name, std::string_view absent = "") const;
  int64_t integer(std::string_view name, int64_t absent) const;
  double number(std::string_view name, double absent) const;
  std::vector<std::string> list(std::string_view name) const;
  nlohmann::json json(std::string_view name) const;  // null when absent

  const std::vector<std::string>& positionals() const { return positionals_; }
  // Given flags in order, as "--name value", for the log.
  std::string given() const;
  // Lines for flags that were accepted and are not acted on, and for repeated scalars.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  friend ParsedFlags parse_flags(std::span<const FlagSpec>, std::span<const std::string>);
  const nlohmann::json* find(std::string_view name) const;
  std::map<std::string, nlohmann::json> values_;  // name → value of the flag's kind
  std::vector<std::string> positionals_;
  std::vector<std::string> order_;
  std::vector<std::string> notes_;
};

// Throws Error naming the flag, the value and what is accepted.
ParsedFlags parse_flags(std::span<const FlagSpec> specs, std::span<const std::string> args);

// "25.6k" → 25600, "1K" → 1024; nullopt when it is not one.
std::optional<int64_t> parse_human_integer(std::string_view text);

// Help text: flags whose name contains `search` (all when empty).
std::string flags_help(std::span<const FlagSpec> specs, std::string_view search = "");

}  // namespace eyrie::apps
