// A main for compilers without libFuzzer: runs a target on every file of the folders given, and on
// each file cut short and with a byte changed, at every place up to a bound.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/mapped_file.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

void run(const std::string& bytes) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

int replay(const std::string& bytes) {
  constexpr size_t kPlaces = 40;
  constexpr std::string_view kBytes = "\"{%\xC3<0";
  run(bytes);
  int num_runs = 1;
  const size_t stride = bytes.size() / kPlaces + 1;
  for (size_t at = 0; at < bytes.size(); at += stride) {
    run(bytes.substr(0, at));
    std::string changed = bytes;
    changed[at] = kBytes[at % kBytes.size()];
    run(changed);
    num_runs += 2;
  }
  return num_runs;
}

}  // namespace

int main(int argc, char** argv) {
  int num_files = 0;
  int num_runs = 0;
  for (int i = 1; i < argc; ++i) {
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      num_runs += replay(eyrie::read_text_file(entry.path().string()));
      ++num_files;
    }
  }
  fmt::print("{} inputs from {} files\n", num_runs, num_files);
  return num_files > 0 ? 0 : 1;
}
