#include "apps/eyrie/flag_parser.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/check.h"
#include "base/error.h"

namespace eyrie::apps {
namespace {

using nlohmann::json;

std::string with_dashes(std::string_view name) {
  std::string out(name);
  const size_t dot = std::min(out.find('.'), out.size());
  std::replace(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(dot), '_', '-');
  return out;
}

// A flag as it stands in argv, taken apart: --name[.dotted.path][+][=value].
struct Token {
  std::string name;  // normalised, without dashes or dotted path
  std::string path;  // "a.b" after the first dot
  bool append = false;
  std::optional<std::string> value;
};

Token split_flag(const std::string& argument) {
  Token token;
  std::string body = argument.substr(argument.starts_with("--") ? 2 : 1);
  if (const size_t equals = body.find('='); equals != std::string::npos) {
    token.value = body.substr(equals + 1);
    body.resize(equals);
  }
  if (body.ends_with('+')) {
    token.append = true;
    body.pop_back();
  }
  if (const size_t dot = body.find('.'); dot != std::string::npos) {
    token.path = body.substr(dot + 1);
    body.resize(dot);
  }
  token.name = with_dashes(body);
  return token;
}

struct Match {
  const FlagSpec* spec = nullptr;
  bool negated = false;
};

Match find_flag(std::span<const FlagSpec> specs, const std::string& argument, const Token& token) {
  const bool is_long = argument.starts_with("--");
  for (const FlagSpec& spec : specs) {
    if (is_long && spec.name == token.name) return {&spec, false};
    if (!spec.alias.empty() && spec.alias == token.name) return {&spec, false};
    if (is_long && spec.kind == FlagKind::kBool && token.name == fmt::format("no-{}", spec.name)) {
      return {&spec, true};
    }
  }
  std::vector<std::string> candidates;
  Match prefix;
  for (const FlagSpec& spec : specs) {
    if (!is_long) break;
    if (spec.name.starts_with(token.name)) {
      candidates.push_back(fmt::format("--{}", spec.name));
      prefix = {&spec, false};
    }
    const std::string negative = fmt::format("no-{}", spec.name);
    if (spec.kind == FlagKind::kBool && negative.starts_with(token.name)) {
      candidates.push_back("--" + negative);
      prefix = {&spec, true};
    }
  }
  if (candidates.size() == 1) return prefix;
  if (candidates.size() > 1) {
    fail("flag {} could be {}; write it out", argument, fmt::join(candidates, ", "));
  }
  fail("unknown flag {}; --help=all lists the flags there are", argument);
}

bool looks_like_flag(const std::string& argument) {
  if (argument.size() < 2 || argument[0] != '-') return false;
  // As argparse: a blank before any '=' makes it a value ("--serve-args '--max-model-len 4096'").
  const size_t blank = argument.find(' ');
  if (blank != std::string::npos && blank < argument.find('=')) return false;
  const char second = argument[1];
  return !(second == '.' || (second >= '0' && second <= '9'));  // -1 is a value
}

// A dotted value: JSON, else a human-readable integer, else a string.
json loose_value(const std::string& text) {
  json parsed = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_discarded()) return parsed;
  if (const auto integer = parse_human_integer(text)) return *integer;
  return text;
}

json parse_value(const FlagSpec& spec, const std::string& text) {
  switch (spec.kind) {
    case FlagKind::kString:
      return text;
    case FlagKind::kInt: {
      int64_t value = 0;
      const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
      if (status != std::errc() || end != text.data() + text.size()) {
        fail("--{} takes a whole number, not '{}'", spec.name, text);
      }
      return value;
    }
    case FlagKind::kHumanInt: {
      if (text == "auto" || text == "-1") return int64_t{-1};
      const auto value = parse_human_integer(text);
      if (!value)
        fail("--{} takes a whole number such as 4096, 4k or 4K, not '{}'", spec.name, text);
      return *value;
    }
    case FlagKind::kFloat: {
      char* end = nullptr;
      const double value = std::strtod(text.c_str(), &end);
      if (text.empty() || *end != '\0' || std::isnan(value)) {
        fail("--{} takes a number, not '{}'", spec.name, text);
      }
      return value;
    }
    case FlagKind::kJson: {
      json value = json::parse(text, nullptr, /*allow_exceptions=*/false);
      if (value.is_discarded() || !value.is_object()) {
        fail("--{} takes a JSON object such as {{\"key\": \"value\"}}, not '{}'", spec.name, text);
      }
      return value;
    }
    case FlagKind::kList:
    case FlagKind::kRepeated:
    case FlagKind::kBool:
    case FlagKind::kSwitch:
      break;
  }
  CHECK(false, "--{} has no single value", spec.name);
}

void set_dotted(json& object, std::string_view path, json value, bool append) {
  json* node = &object;
  while (true) {
    const size_t dot = path.find('.');
    node = &(*node)[std::string(path.substr(0, dot))];
    if (dot == std::string_view::npos) break;
    path.remove_prefix(dot + 1);
  }
  if (append) {
    node->push_back(std::move(value));
  } else {
    *node = std::move(value);
  }
}

}  // namespace

std::optional<int64_t> parse_human_integer(std::string_view text) {
  if (text.empty()) return std::nullopt;
  static constexpr std::string_view kSuffixes = "kmgtKMGT";
  double scale = 1;
  bool binary = false;
  if (const size_t which = kSuffixes.find(text.back()); which != std::string_view::npos) {
    binary = which >= 4;
    scale = std::pow(binary ? 1024.0 : 1000.0, static_cast<double>(which % 4 + 1));
    text.remove_suffix(1);
  }
  double value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
    return std::nullopt;
  }
  const double scaled = value * scale;
  const bool whole = value == std::floor(value);
  if ((binary || scale == 1) && !whole) return std::nullopt;
  if (std::fabs(scaled) > 9e15) return std::nullopt;
  return static_cast<int64_t>(std::llround(scaled));
}

const nlohmann::json* ParsedFlags::find(std::string_view name) const {
  const auto it = values_.find(std::string(name));
  return it == values_.end() ? nullptr : &it->second;
}

bool ParsedFlags::boolean(std::string_view name, bool absent) const {
  const nlohmann::json* value = find(name);
  return value == nullptr ? absent : value->get<bool>();
}

std::string ParsedFlags::string(std::string_view name, std::string_view absent) const {
  const nlohmann::json* value = find(name);
  return value == nullptr ? std::string(absent) : value->get<std::string>();
}

int64_t ParsedFlags::integer(std::string_view name, int64_t absent) const {
  const nlohmann::json* value = find(name);
  return value == nullptr ? absent : value->get<int64_t>();
}

double ParsedFlags::number(std::string_view name, double absent) const {
  const nlohmann::json* value = find(name);
  return value == nullptr ? absent : value->get<double>();
}

std::vector<std::string> ParsedFlags::list(std::string_view name) const {
  const nlohmann::json* value = find(name);
  return value == nullptr ? std::vector<std::string>{} : value->get<std::vector<std::string>>();
}

nlohmann::json ParsedFlags::json(std::string_view name) const {
  const nlohmann::json* value = find(name);
  return value == nullptr ? nlohmann::json() : *value;
}

std::string ParsedFlags::given() const {
  std::string text;
  for (const std::string& name : order_) {
    const nlohmann::json& value = values_.at(name);
    const bool infinite = value.is_number_float() && std::isinf(value.get<double>());  // no JSON
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", name, infinite ? "inf" : value.dump());
  }
  return text;
}

ParsedFlags parse_flags(std::span<const FlagSpec> specs, std::span<const std::string> args) {
  ParsedFlags flags;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& argument = args[i];
    if (argument == "--") {
      flags.positionals_.insert(flags.positionals_.end(),
                                args.begin() + static_cast<std::ptrdiff_t>(i) + 1, args.end());
      break;
    }
    if (!looks_like_flag(argument)) {
      flags.positionals_.push_back(argument);
      continue;
    }
    const Token token = split_flag(argument);
    const auto [spec, negated] = find_flag(specs, argument, token);
    const std::string name(spec->name);
    const bool takes_value = spec->kind != FlagKind::kBool && spec->kind != FlagKind::kSwitch;
    const bool seen = flags.values_.contains(name);
    if (!seen) flags.order_.push_back(name);
    if (!seen && !spec->explained.empty()) {
      flags.notes_.push_back(fmt::format("--{}: {}", spec->name, spec->explained));
    }
    if (!takes_value) {
      if (token.value) fail("--{} takes no value (use --{} or --no-{})", name, name, name);
      flags.values_[name] = !negated;
      continue;
    }
    std::vector<std::string> values;
    if (token.value) {
      values.push_back(*token.value);
    } else {
      while (i + 1 < args.size() && !looks_like_flag(args[i + 1])) {
        values.push_back(args[++i]);
        if (spec->kind != FlagKind::kList) break;
      }
    }
    if (values.empty()) fail("--{} needs a value", name);
    if (spec->kind == FlagKind::kJson) {
      nlohmann::json& object = flags.values_[name];
      if (object.is_null()) object = nlohmann::json::object();
      if (token.path.empty()) {
        object.merge_patch(parse_value(*spec, values[0]));
      } else {
        set_dotted(object, token.path, loose_value(values[0]), token.append);
      }
      continue;
    }
    if (!token.path.empty()) fail("--{} takes no dotted keys (in {})", name, argument);
    if (spec->kind == FlagKind::kRepeated) {
      flags.values_[name].push_back(values[0]);
      continue;
    }
    if (seen && spec->kind != FlagKind::kList) {
      flags.notes_.push_back(fmt::format(
          "--{} was given more than once: the last value, '{}', counts", name, values[0]));
    }
    flags.values_[name] =
        spec->kind == FlagKind::kList ? nlohmann::json(values) : parse_value(*spec, values[0]);
  }
  return flags;
}

std::string flags_help(std::span<const FlagSpec> specs, std::string_view search) {
  std::string text;
  for (const FlagSpec& spec : specs) {
    if (!search.empty() && spec.name.find(search) == std::string_view::npos) continue;
    std::string left =
        fmt::format("  --{}{}", spec.kind == FlagKind::kBool ? "[no-]" : "", spec.name);
    if (!spec.alias.empty()) left += fmt::format(", -{}", spec.alias);
    const std::string_view right = spec.help.empty() ? spec.explained : spec.help;
    text += left.size() < 38 ? fmt::format("{:<38} {}\n", left, right)
                             : fmt::format("{}\n{:38} {}\n", left, "", right);
  }
  return text;
}

}  // namespace eyrie::apps
