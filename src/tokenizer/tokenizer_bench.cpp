// Encoding and streaming back, in bytes of text a second. The small golden vocabulary merges more
// and finds whole pieces less often than a full one, so a full one is faster.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "base/mapped_file.h"
#include "tokenizer/golden_test_util.h"
#include "tokenizer/text_stream.h"
#include "tokenizer/utf8.h"

namespace eyrie {
namespace {

std::string sample(int kind) {
  static const char* const kSamples[] = {
      "The eagle left its eyrie at dawn and circled over the valley, looking for the river. Tom "
      "has "
      "12 apples; he buys 30 more and gives 5 to each of his 3 friends. They'll see.\n",
      "老鹰在清晨离开巢穴，在山谷上空盘旋，寻找河流。今天的天气很好，我们去公园散步吧。",
      "def f(x):\n    return {\"a\": x[0] + 1, 'b': [i**2 for i in range(10)]}  # <div>\n\n",
  };
  std::string text;
  while (text.size() < 100'000) text += kSamples[kind];
  return text;
}

void encode(benchmark::State& state) {
  const std::string text = sample(static_cast<int>(state.range(0)));
  const auto allow = state.range(1) ? AllowSpecial::kAll : AllowSpecial::kNone;
  std::vector<TokenId> ids;
  for (auto _ : state) {
    ids.clear();
    golden_tokenizer().encode_append(text, allow, ids);
    benchmark::DoNotOptimize(ids.data());
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(text.size()));
}
BENCHMARK(encode)->ArgNames({"text", "special"})->ArgsProduct({{0, 1, 2}, {0, 1}});

// A vocabulary of Kimi's size and mixed text, from tools/text_golden/fuzz_tokenizer.py. 100 kB at a
// time.
void mixed(benchmark::State& state) {
  const std::string path = tokenizer_dir() + "/mixed.txt";
  if (!std::filesystem::exists(path)) {
    state.SkipWithError("EYRIE_TOKENIZER_DIR names no folder with mixed.txt");
    return;
  }
  const Tokenizer tokenizer = Tokenizer::load(tokenizer_dir());
  const std::string text = utf8_replace_invalid(read_text_file(path));
  std::vector<TokenId> ids;
  int64_t bytes = 0, tokens = 0;
  size_t at = 0;
  for (auto _ : state) {
    ids.clear();
    const size_t end = std::min(text.find('\n', at + 100'000), text.size());
    const std::string_view part = std::string_view(text).substr(at, end - at);
    tokenizer.encode_append(part, AllowSpecial::kNone, ids);
    benchmark::DoNotOptimize(ids.data());
    bytes += static_cast<int64_t>(part.size());
    tokens += static_cast<int64_t>(ids.size());
    at = end < text.size() ? end : 0;
  }
  state.SetBytesProcessed(bytes);
  state.counters["bytes/token"] = static_cast<double>(bytes) / static_cast<double>(tokens);
}
BENCHMARK(mixed);

void load(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(Tokenizer::load(tokenizer_dir()));
}
BENCHMARK(load);

void stream(benchmark::State& state) {
  const auto ids = golden_tokenizer().encode(sample(0), AllowSpecial::kNone);
  std::vector<TextPiece> pieces;
  for (auto _ : state) {
    TextStream text(golden_tokenizer(), {.stop = {"\n\nQuestion:", "<|im_end|>"}});
    pieces.clear();
    for (const TokenId id : ids) text.push(id, pieces);
    text.finish(pieces);
    benchmark::DoNotOptimize(pieces.data());
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(ids.size()));
}
BENCHMARK(stream);

}  // namespace
}  // namespace eyrie

BENCHMARK_MAIN();
