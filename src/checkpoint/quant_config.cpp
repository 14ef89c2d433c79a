#include "checkpoint/quant_config.h"

#include <fnmatch.h>
#include <pcre2.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace eyrie::checkpoint {
namespace {

using nlohmann::json;

// The name, and what is left of it without the wrapper's prefixes: producers name modules from any
// of the three levels.
std::vector<std::string> spellings_of(std::string_view name) {
  std::vector<std::string> spellings = {std::string(name)};
  for (const std::string_view prefix : {"language_model.", "model."}) {
    if (!name.starts_with(prefix)) continue;
    name.remove_prefix(prefix.size());
    spellings.emplace_back(name);
  }
  return spellings;
}

std::string string_at(const json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
}

json object_at(const json& object, const char* key) {
  if (!object.is_object()) return json::object();
  const auto it = object.find(key);
  return it != object.end() && it->is_object() ? *it : json::object();
}

std::vector<std::string> strings_at(const json& object, const char* key) {
  std::vector<std::string> strings;
  const auto it = object.find(key);
  if (it == object.end() || !it->is_array()) return strings;
  for (const json& item : *it) {
    if (item.is_string()) strings.push_back(item.get<std::string>());
  }
  return strings;
}

// Quark's weight spec → our format. A list of specs is a two-level scale (NVFP4, W4A8).
void read_quark(const json& config, QuantConfig* result) {
  const json weight = object_at(object_at(config, "global_quant_config"), "weight");
  const std::string dtype = string_at(weight, "dtype");
  const std::string qscheme = string_at(weight, "qscheme");
  const auto group = weight.find("group_size");
  const bool group_of_32 = group != weight.end() && *group == 32;
  result->scheme = weight.empty() ? "unknown" : dtype + " " + qscheme;
  if (dtype == "fp4" && qscheme == "per_group" && group_of_32 &&
      string_at(weight, "scale_format") == "e8m0") {
    result->format = &formats::kMxfp4;
  } else if (dtype == "fp8_e4m3" && (qscheme == "per_channel" || qscheme == "per_tensor")) {
    result->format = &formats::kFp8;
  }
  std::vector<std::string> special;
  const json layers = object_at(config, "layer_quant_config");
  for (const auto& item : layers.items()) special.push_back(item.key());
  result->special = ModuleList(special);
}

}  // namespace

// Producers write Python regular expressions; PCRE2 reads the same language. Its match limits keep
// a hostile pattern from running away.
struct ModuleList::Regex {
  pcre2_code* code = nullptr;

  explicit Regex(const std::string& pattern) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), 0, &error,
                         &offset, nullptr);
    if (code == nullptr) {
      fail("quantization_config excludes \"re:{}\", which is not a valid regular expression",
           pattern);
    }
  }
  ~Regex() { pcre2_code_free(code); }
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;

  bool found_in(const std::string& name) const {
    pcre2_match_data* match = pcre2_match_data_create_from_pattern(code, nullptr);
    const int count = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(name.data()), name.size(), 0,
                                  0, match, nullptr);
    pcre2_match_data_free(match);
    return count >= 0;
  }
};

bool glob_matches(const std::string& glob, const std::string& name) {
  return ::fnmatch(glob.c_str(), name.c_str(), FNM_NOESCAPE) == 0;
}

ModuleList::ModuleList(const std::vector<std::string>& patterns) : patterns_(patterns) {
  for (const std::string& pattern : patterns) {
    if (pattern.starts_with("re:")) {
      regexes_.push_back(std::make_shared<Regex>(pattern.substr(3)));
    } else if (pattern.find_first_of("*?[") != std::string::npos) {
      globs_.push_back(pattern);
    } else {
      for (std::string& spelling : spellings_of(pattern)) plain_.insert(std::move(spelling));
    }
  }
}

bool ModuleList::matches(std::string_view module) const {
  if (patterns_.empty()) return false;
  for (const std::string& name : spellings_of(module)) {
    if (plain_.contains(name)) return true;
    for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
      if (plain_.contains(name.substr(0, dot)) || plain_.contains(name.substr(dot + 1))) {
        return true;
      }
    }
    for (const std::string& glob : globs_) {
      if (glob_matches(glob, name) || glob_matches(glob + ".*", name)) return true;
    }
    for (const auto& regex : regexes_) {
      if (regex->found_in(name)) return true;
    }
  }
  return false;
}

QuantConfig QuantConfig::from_config(const json& config) {
  const auto present = [](const json& object) {
    const auto it = object.find("quantization_config");
    return it != object.end() && !it->is_null();
  };
  QuantConfig result;
  const json text_config = object_at(config, "text_config");
  if (!present(config) && !present(text_config)) return result;
  const json& quantization =
      present(config) ? config["quantization_config"] : text_config["quantization_config"];
  if (!quantization.is_object()) fail("quantization_config in config.json must be an object");
  result.method = string_at(quantization, "quant_method");
  if (result.method.empty()) result.method = "unnamed";
  result.scheme = "unknown";
  // Older Quark files nest the same fields one level down.
  const json nested = object_at(quantization, "quant_config");
  const json& fields = nested.empty() ? quantization : nested;
  if (result.method == "quark") read_quark(fields, &result);

  std::vector<std::string> exclude;
  for (const char* key : {"exclude", "ignore", "exclude_modules", "modules_to_not_convert"}) {
    const std::vector<std::string> more = strings_at(fields, key);
    exclude.insert(exclude.end(), more.begin(), more.end());
  }
  result.exclude = ModuleList(exclude);
  return result;
}

const formats::WeightFormat* QuantConfig::claimed(std::string_view module) const {
  if (format == nullptr || exclude.matches(module) || special.matches(module)) return nullptr;
  return format;
}

bool is_linear_weight_name(std::string_view tensor_name) {
  constexpr std::string_view kSuffix = ".weight";
  if (!tensor_name.ends_with(kSuffix)) return false;
  const std::string_view module = tensor_name.substr(0, tensor_name.size() - kSuffix.size());
  return !module.ends_with("norm") && module.find("embed") == std::string_view::npos;
}

}  // namespace eyrie::checkpoint
