#include "apps/eyrie/local_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "apps/eyrie/serve_flags.h"
#include "base/error.h"
#include "base/mapped_file.h"

namespace eyrie::apps {

std::vector<FlagSpec> with_engine_flags(std::span<const FlagSpec> own) {
  std::vector<FlagSpec> table(own.begin(), own.end());
  for (const FlagSpec& flag : serve_flags()) {
    const bool is_own = std::any_of(own.begin(), own.end(),
                                    [&](const FlagSpec& other) { return other.name == flag.name; });
    if (!is_own) table.push_back(flag);
  }
  return table;
}

std::vector<int32_t> counts_from(std::string_view flag, const std::string& text) {
  std::vector<int32_t> counts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    int32_t count = 0;
    const auto parsed = std::from_chars(text.data() + begin, text.data() + end, count);
    if (parsed.ec != std::errc{} || parsed.ptr != text.data() + end || count < 1) {
      fail("--{} is '{}'; it takes a positive number or several with commas", flag, text);
    }
    counts.push_back(count);
    begin = end + 1;
  }
  return counts;
}

int64_t count_from(const ParsedFlags& flags, std::string_view name, int64_t absent, int64_t low) {
  const int64_t value = flags.integer(name, absent);
  if (value < low || value > (int64_t{1} << 30)) {
    fail("--{} is {}; it takes a number of at least {}", name, value, low);
  }
  return value;
}

runtime::SamplingParams bench_sampling(const ParsedFlags& flags) {
  runtime::SamplingParams params;
  params.temperature = flags.number("temperature", 1.0);
  if (!(params.temperature >= 0)) {
    fail("--temperature is {}; it takes a number of at least 0", params.temperature);
  }
  params.ignore_eos = true;
  return params;
}

void say_notes(const ServeConfig& config) {
  for (const std::string& note : config.notes) fmt::print(stderr, "note: {}\n", note);
}

void write_json(const std::string& path, const nlohmann::ordered_json& json) {
  if (path.empty()) return;
  write_file_atomically(path, json.dump(1) + "\n");
  fmt::print("Result: {}\n", path);
}

}  // namespace eyrie::apps
