// Matching of module names against the lists producers write (checkpoint/quant_config.h).
#include <fnmatch.h>
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "checkpoint/quant_config.h"

namespace eyrie::checkpoint {
namespace {

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

// Engines run some layers as one and list them under the name of the whole.
std::vector<std::string> fused_names_of(const std::string& name) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 9> kFused = {{
      {"gate_proj", "gate_up_proj"},
      {"up_proj", "gate_up_proj"},
      {"q_proj", "qkv_proj"},
      {"k_proj", "qkv_proj"},
      {"v_proj", "qkv_proj"},
      {"q_a_proj", "fused_qkv_a_proj"},
      {"kv_a_proj_with_mqa", "fused_qkv_a_proj"},
      {"q_a_proj", "fused_qkv_a_proj_with_mqa"},
      {"kv_a_proj_with_mqa", "fused_qkv_a_proj_with_mqa"},
  }};
  const size_t dot = name.rfind('.');
  const size_t last = dot == std::string::npos ? 0 : dot + 1;
  std::vector<std::string> names;
  for (const auto& [part, whole] : kFused) {
    if (name.compare(last, std::string::npos, part) == 0) {
      names.push_back(name.substr(0, last) + std::string(whole));
    }
  }
  return names;
}

}  // namespace

// Producers write Python regular expressions; PCRE2 reads the same language. Its match limits keep
// a hostile pattern from running away.
struct ModuleList::Regex {
  std::string pattern;
  pcre2_code* code = nullptr;

  explicit Regex(const std::string& text) : pattern(text) {
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
  if (matches_name(module)) return true;
  const std::vector<std::string> fused = fused_names_of(std::string(module));
  return std::any_of(fused.begin(), fused.end(), [&](const std::string& name) {
    return matches_name(name, std::string_view(name).substr(name.rfind('.') + 1));
  });
}

// A pattern that stands for a fused layer spells its name: `*up_proj` means up_proj, though
// gate_up_proj ends in it too.
bool ModuleList::matches_name(std::string_view module, std::string_view spelled) const {
  const auto spells = [&](const std::string& pattern) {
    return pattern.find(spelled) != std::string::npos;
  };
  for (const std::string& name : spellings_of(module)) {
    if (plain_.contains(name)) return true;
    for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
      if (plain_.contains(name.substr(0, dot)) || plain_.contains(name.substr(dot + 1))) {
        return true;
      }
    }
    for (const std::string& glob : globs_) {
      if (!spells(glob)) continue;
      if (glob_matches(glob, name) || glob_matches(glob + ".*", name)) return true;
    }
    for (const auto& regex : regexes_) {
      if (spells(regex->pattern) && regex->found_in(name)) return true;
    }
  }
  return false;
}

}  // namespace eyrie::checkpoint
