// The bundled models, quantized with every recipe, against what the producers' own tools make of
// them: checksums written by tools/formats_golden/compare_producers.py.
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <sstream>

#include "base/mapped_file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/test_files.h"
#include "quantize/quantize.h"

namespace eyrie::quantize {
namespace {

using checkpoint::Checkpoint;
using checkpoint::TempFolder;

constexpr const char* kGolden = "src/quantize/testdata/nano_producers.txt";

// CRC-32 as zlib and PNG have it.
class Crc32 {
 public:
  void add(std::string_view bytes) {
    static const std::array<uint32_t, 256> kTable = make_table();
    for (const char c : bytes) {
      state_ = kTable[(state_ ^ static_cast<unsigned char>(c)) & 255u] ^ (state_ >> 8);
    }
  }
  uint32_t value() const { return ~state_; }

 private:
  static std::array<uint32_t, 256> make_table() {
    std::array<uint32_t, 256> table{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t c = i;
      for (int bit = 0; bit < 8; ++bit) c = (c & 1u) != 0 ? 0xedb88320u ^ (c >> 1) : c >> 1;
      table[i] = c;
    }
    return table;
  }
  uint32_t state_ = ~0u;
};

// "weight:01234567 weight_scale:…", over names and bytes in order of names.
std::string checksums_of(const Checkpoint& files) {
  std::map<std::string, Crc32> sums;
  for (const std::string& name : files.names()) {
    const Tensor& tensor = *files.find(name);
    Crc32& sum = sums[name.substr(name.rfind('.') + 1)];
    sum.add(name);
    sum.add({static_cast<const char*>(tensor.raw()), tensor.bytes()});
  }
  std::string text;
  for (const auto& [kind, sum] : sums) text += fmt::format(" {}:{:08x}", kind, sum.value());
  return text;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

TEST(NanoProducersTest, EveryToolsCheckpointByteForByte) {
  std::istringstream golden(read_text_file(kGolden));
  int num_runs = 0;
  for (std::string line; std::getline(golden, line);) {
    if (line.starts_with("#")) continue;
    SCOPED_TRACE(line);
    std::istringstream fields(line);
    std::string model, scheme, producer, global_scale, exclude, expected;
    fields >> model >> scheme >> producer >> global_scale >> exclude;
    std::getline(fields, expected);
    const TempFolder folder;
    Options options;
    options.input = "models/" + model;
    options.output = folder.file("out");
    options.recipe = formats::find_recipe(*formats::find_format(scheme), producer);
    ASSERT_NE(options.recipe, nullptr);
    options.exclude = split(exclude);
    options.share_global_scales = global_scale == "shared";
    quantize(options);
    EXPECT_EQ(checksums_of(Checkpoint::open(options.output)), expected);
    ++num_runs;
  }
  EXPECT_EQ(num_runs, 11);
}

}  // namespace
}  // namespace eyrie::quantize
