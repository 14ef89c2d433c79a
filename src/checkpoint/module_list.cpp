// Matching of module names against the lists producers write (checkpoint/quant_config.h).
#include <fnmatch.h>
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <functional>
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

// What to do with the patterns that match a module.
struct ModuleList::Visitor {
  std::function<bool(size_t)> skips;  // need not be tried
  std::function<bool(size_t)> found;  // true: enough seen
};

ModuleList::ModuleList(const std::vector<std::string>& patterns) : patterns_(patterns) {
  for (size_t i = 0; i < patterns.size(); ++i) {
    const std::string& pattern = patterns[i];
    if (pattern.starts_with("re:")) {
      regexes_.emplace_back(i, std::make_shared<Regex>(pattern.substr(3)));
    } else if (pattern.find_first_of("*?[") != std::string::npos) {
      globs_.push_back(i);
    } else {
      for (const std::string& spelling : spellings_of(pattern)) plain_[spelling].push_back(i);
    }
  }
}

bool ModuleList::matches(std::string_view module) const {
  return visit(module, {[](size_t) { return false; }, [](size_t) { return true; }});
}

std::vector<int64_t> ModuleList::count_matches(const std::vector<std::string>& modules,
                                               int64_t enough) const {
  std::vector<int64_t> counts(patterns_.size(), 0);
  std::vector<size_t> counted(patterns_.size(), modules.size());  // the last module counted
  for (size_t m = 0; m < modules.size(); ++m) {
    visit(modules[m],
          {[&](size_t i) { return counted[i] == m || (enough > 0 && counts[i] >= enough); },
           [&](size_t i) {
             counted[i] = m;
             ++counts[i];
             return false;
           }});
  }
  return counts;
}

bool ModuleList::visit(std::string_view module, const Visitor& visitor) const {
  if (patterns_.empty()) return false;
  if (visit_name(module, {}, visitor)) return true;
  const std::vector<std::string> fused = fused_names_of(std::string(module));
  return std::any_of(fused.begin(), fused.end(), [&](const std::string& name) {
    return visit_name(name, std::string_view(name).substr(name.rfind('.') + 1), visitor);
  });
}

// A pattern that stands for a fused layer spells its name: `*up_proj` means up_proj, though
// gate_up_proj ends in it too.
bool ModuleList::visit_name(std::string_view full_name, std::string_view spelled,
                            const Visitor& visitor) const {
  const auto tried = [&](size_t i) {
    return patterns_[i].find(spelled) != std::string::npos && !visitor.skips(i);
  };
  const auto found_plain = [&](const std::string& name) {
    const auto it = plain_.find(name);
    return it != plain_.end() && std::any_of(it->second.begin(), it->second.end(), [&](size_t i) {
             return !visitor.skips(i) && visitor.found(i);
           });
  };
  for (const std::string& name : spellings_of(full_name)) {
    if (found_plain(name)) return true;
    for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
      if (found_plain(name.substr(0, dot)) || found_plain(name.substr(dot + 1))) return true;
    }
    for (const size_t i : globs_) {
      const std::string& glob = patterns_[i];
      if (!tried(i)) continue;
      const bool matches = glob_matches(glob, name) || glob_matches(glob + ".*", name);
      if (matches && visitor.found(i)) return true;
    }
    for (const auto& [i, regex] : regexes_) {
      if (tried(i) && regex->found_in(name) && visitor.found(i)) return true;
    }
  }
  return false;
}

}  // namespace eyrie::checkpoint
