// Both models against the oracle (testing_oracle.h) on tiny random checkpoints, whole and in
// pieces.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "model/eagle3.h"
#include "model/kimi_k25.h"
#include "model/testing.h"
#include "model/testing_oracle.h"
#include "ops/op_table.h"

namespace eyrie::model {
namespace {

using ::testing::HasSubstr;
using testing::Rows;
using testing::TinyCheckpoint;

constexpr int32_t kBlockSize = 16;
constexpr int32_t kNumBlocks = 8;
// float32 sums against double ones; a wrong formula is off by 1e-1.
constexpr double kTolerance = 1e-4;

std::vector<double> row_of(Tensor x, int64_t row) {
  const float* begin = x.data<float>() + row * x.stride(0);
  return {begin, begin + x.dim(1)};
}

// A bf16 cache full of NaN: what is read before it was written shows.
struct Cache {
  explicit Cache(int64_t width) : memory(kNumBlocks * kBlockSize * static_cast<size_t>(width) * 2) {
    clear();
    view = {.data = Tensor(memory.data(), DType::kBF16, {kNumBlocks * kBlockSize, width}),
            .block_size = kBlockSize};
  }
  void clear() { std::fill(memory.data(), memory.data() + memory.bytes(), std::byte{0xff}); }
  std::string bytes() const {
    return {reinterpret_cast<const char*>(memory.data()), memory.bytes()};
  }
  Buffer memory;
  ops::CacheView view;
};

// One sequence whose tokens are computed in pieces, on blocks in a scrambled order.
struct Harness {
  explicit Harness(const ops::OpTable& table, const TinyCheckpoint& tiny = testing::tiny_target())
      : ctx{&table, &pool, &arena} {
    tiny.write(folder.path());
    files = checkpoint::Checkpoint::open(folder.path());
    target = KimiK25::load(ctx, *files, ModelConfig::parse(files->config()));
    for (int64_t i = 0; i < target->config().num_hidden_layers; ++i) {
      caches.emplace_back(target->config().latent_width());
      views.push_back(caches.back().view);
    }
  }

  Step step(int32_t first_position, int32_t num_rows, std::span<const ops::CacheView> of) {
    positions.clear();
    for (int32_t i = 0; i < num_rows; ++i) positions.push_back(first_position + i);
    sequences = {{.first_row = 0,
                  .num_rows = num_rows,
                  .first_position = first_position,
                  .block_table = block_table.data()}};
    return {.ctx = ctx, .positions = positions, .sequences = sequences, .caches = of};
  }

  // Runs ids in pieces; logits and aux states of every position.
  struct Output {
    Rows logits;
    Rows aux;
  };
  Output run(const std::vector<int32_t>& ids, int32_t piece, std::vector<int64_t> aux_layers = {}) {
    Output output;
    for (int32_t begin = 0; begin < static_cast<int32_t>(ids.size()); begin += piece) {
      arena.reset();
      const int32_t count = std::min(piece, static_cast<int32_t>(ids.size()) - begin);
      const Step s = step(begin, count, views);
      const int64_t width = target->config().hidden_size * static_cast<int64_t>(aux_layers.size());
      const Tensor aux = arena.f32({count, width});
      const Tensor hidden = target->forward(
          s, std::span(ids).subspan(static_cast<size_t>(begin), static_cast<size_t>(count)),
          aux_layers, aux);
      std::vector<int32_t> rows(static_cast<size_t>(count));
      for (int32_t i = 0; i < count; ++i) rows[static_cast<size_t>(i)] = i;
      const Tensor logits = arena.f32({count, target->config().vocab_size});
      target->logits(s, hidden, rows, logits);
      for (int32_t i = 0; i < count; ++i) {
        output.logits.push_back(row_of(logits, i));
        output.aux.push_back(row_of(aux, i));
      }
    }
    return output;
  }

  ThreadPool pool{2};
  Arena arena;
  ops::Ctx ctx;
  testing::TempFolder folder;
  std::optional<checkpoint::Checkpoint> files;
  std::optional<KimiK25> target;
  std::vector<Cache> caches;
  std::vector<ops::CacheView> views;
  std::vector<int32_t> block_table = {5, 2, 7, 0};
  std::vector<int32_t> positions;
  std::vector<ops::SequenceRows> sequences;
};

std::vector<int32_t> some_tokens(int count) {
  std::vector<int32_t> ids;
  for (int i = 0; i < count; ++i) ids.push_back((i * i * 7 + i * 13 + 5) % 128);
  return ids;
}

class ModelTest : public ::testing::TestWithParam<const ops::OpTable*> {};
INSTANTIATE_TEST_SUITE_P(Backends, ModelTest,
                         ::testing::Values(&ops::reference_ops(), &ops::cpu_ops()),
                         [](const auto& instance) {
                           return std::string(instance.index == 0 ? "reference" : "cpu");
                         });

TEST_P(ModelTest, LogitsAndStatesMatchTheOracle) {
  const TinyCheckpoint tiny = testing::tiny_target();
  Harness harness(*GetParam(), tiny);
  const std::vector<int32_t> ids = some_tokens(37);
  const auto expected = testing::oracle_target(tiny, harness.target->config(), ids);
  const auto actual = harness.run(ids, 64, {0, 2, 4});
  for (size_t t = 0; t < ids.size(); ++t) {
    EXPECT_LT(testing::relative_error(actual.logits[t], expected.logits[t]), kTolerance) << t;
    for (size_t k = 0; k < 3; ++k) {
      const auto begin = actual.aux[t].begin() + static_cast<int64_t>(k) * 64;
      EXPECT_LT(testing::relative_error({begin, begin + 64}, expected.layer_inputs[2 * k][t]),
                kTolerance);
    }
  }
}

TEST_P(ModelTest, FlatCheckpointGivesTheSame) {
  Harness wrapped(*GetParam(), testing::tiny_target());
  Harness flat(*GetParam(), testing::tiny_target({.wrapped = false}));
  const std::vector<int32_t> ids = some_tokens(20);
  EXPECT_EQ(wrapped.run(ids, 32).logits, flat.run(ids, 32).logits);
}

TEST_P(ModelTest, AnyCutIntoPiecesGivesTheSameBits) {
  Harness harness(*GetParam());
  const std::vector<int32_t> ids = some_tokens(50);
  const Rows whole = harness.run(ids, 50).logits;
  for (const int32_t piece : {1, 7, 16, 33}) {
    EXPECT_EQ(harness.run(ids, piece).logits, whole) << "pieces of " << piece;
  }
}

TEST_P(ModelTest, LogitsOnlyForTheRowsAsked) {
  Harness harness(*GetParam());
  const std::vector<int32_t> ids = some_tokens(9);
  const Rows all = harness.run(ids, 9).logits;
  harness.arena.reset();
  const Step s = harness.step(0, 9, harness.views);
  const Tensor hidden = harness.target->forward(s, ids);
  const Tensor some = harness.arena.f32({2, 128});
  harness.target->logits(s, hidden, std::vector<int32_t>{8, 3}, some);
  EXPECT_EQ(row_of(some, 0), all[8]);
  EXPECT_EQ(row_of(some, 1), all[3]);
}

// Formats are per tensor: what each file says is what is computed with.
struct Encoding {
  const char* name;
  const formats::WeightFormat* format;
  std::vector<std::string> parts;
};

class EncodingTest : public ::testing::TestWithParam<Encoding> {};
INSTANTIATE_TEST_SUITE_P(
    Encodings, EncodingTest,
    ::testing::Values(Encoding{"mxfp4_experts", &formats::kMxfp4, {".mlp.experts."}},
                      Encoding{"mxfp4_all_mlp", &formats::kMxfp4, {".mlp."}},
                      Encoding{"fp8_attention", &formats::kFp8, {".self_attn."}},
                      Encoding{"fp8_half_an_expert", &formats::kFp8, {"2.mlp.experts.3.up_proj"}},
                      Encoding{"fp8_everything", &formats::kFp8, {"_proj", ".mlp."}},
                      Encoding{"fp8_blocks_everywhere", &formats::kFp8Block, {"_proj"}},
                      Encoding{"fp8_kv_b_proj", &formats::kFp8, {"kv_b_proj"}},
                      Encoding{"fp8_blocks_kv_b_proj", &formats::kFp8Block, {"kv_b_proj"}},
                      Encoding{"nvfp4_experts", &formats::kNvfp4, {".mlp.experts."}},
                      Encoding{"nvfp4_shared_experts", &formats::kNvfp4, {".shared_experts."}},
                      Encoding{"mxfp4_shared_experts", &formats::kMxfp4, {".shared_experts."}},
                      Encoding{"int4_experts", &formats::kInt4G32, {".mlp.experts."}},
                      // Parts of groups that run as one: some quantized, some not.
                      Encoding{"mxfp4_q_a_proj_only", &formats::kMxfp4, {".q_a_proj"}},
                      Encoding{"mxfp4_some_gates", &formats::kMxfp4, {".gate_proj"}},
                      Encoding{
                          "mxfp4_some_experts", &formats::kMxfp4, {"experts.1.", "experts.2."}}),
    [](const auto& instance) { return std::string(instance.param.name); });

TEST_P(EncodingTest, LogitsMatchTheOracleOfTheDecodedWeights) {
  const TinyCheckpoint tiny = testing::tiny_target().encoded(*GetParam().format, GetParam().parts);
  Harness harness(ops::cpu_ops(), tiny);
  const std::vector<int32_t> ids = some_tokens(19);
  const auto expected = testing::oracle_target(tiny, harness.target->config(), ids);
  const auto actual = harness.run(ids, 19);
  for (size_t t = 0; t < ids.size(); ++t) {
    EXPECT_LT(testing::relative_error(actual.logits[t], expected.logits[t]), kTolerance) << t;
  }
}

// MXFP4 experts beside per-channel FP8 attention, as AMD publishes it, and a mixture in one group.
TEST(KimiK25Test, FormatsMixFreely) {
  const TinyCheckpoint tiny = testing::tiny_target()
                                  .encoded(formats::kMxfp4, {".mlp.experts."})
                                  .encoded(formats::kFp8, {".self_attn."})
                                  .encoded(formats::kNvfp4, {"shared_experts.gate_proj"})
                                  .encoded(formats::kInt4G32, {"shared_experts.up_proj"});
  Harness harness(ops::cpu_ops(), tiny);
  const std::vector<int32_t> ids = some_tokens(9);
  const auto expected = testing::oracle_target(tiny, harness.target->config(), ids);
  const auto actual = harness.run(ids, 9);
  for (size_t t = 0; t < ids.size(); ++t) {
    EXPECT_LT(testing::relative_error(actual.logits[t], expected.logits[t]), kTolerance) << t;
  }
}

TEST(KimiK25Test, TensorsThatDoNotFitAreNamed) {
  const auto error_of = [](auto&& change) {
    TinyCheckpoint tiny = testing::tiny_target();
    change(tiny);
    try {
      Harness harness(ops::reference_ops(), tiny);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  const std::string q_a = "language_model.model.layers.2.self_attn.q_a_proj.weight";
  EXPECT_THAT(error_of([&](TinyCheckpoint& t) { t.tensors.erase(q_a); }), HasSubstr(q_a));
  EXPECT_THAT(error_of([&](TinyCheckpoint& t) {
                t.tensors[q_a].shape = {64, 48};
              }),
              AllOf(HasSubstr(q_a), HasSubstr("[64, 48]")));
  EXPECT_THAT(error_of([&](TinyCheckpoint& t) {
                std::erase_if(t.tensors, [](const auto& entry) {
                  return entry.first.find("embed_tokens") != std::string::npos;
                });
              }),
              HasSubstr("embed_tokens.weight' is missing"));
}

// ---- draft --------------------------------------------------------------------------------------

struct DraftHarness : Harness {
  DraftHarness(const ops::OpTable& table, const TinyCheckpoint& tiny,
               const TinyCheckpoint& tiny_draft, bool fp8_head = false)
      : Harness(table, tiny) {
    tiny_draft.write(draft_folder.path());
    draft_files = checkpoint::Checkpoint::open(draft_folder.path());
    draft = Eagle3::load(ctx, *draft_files, Eagle3Config::parse(draft_files->config()), *target,
                         AuxLayerIds::kGuess, ops::ActivationQuantization::kOff, fp8_head);
    const Eagle3Config& c = draft->config();
    for (int i = 0; i < 2; ++i) {
      draft_caches.emplace_back(c.num_key_value_heads * c.head_dim);
      draft_views.push_back(draft_caches.back().view);
    }
  }

  // Entries with given states in one forward, then a chain of single ones.
  Rows run_draft(const Rows& aux, const std::vector<int32_t>& next_ids) {
    Rows logits;
    arena.reset();
    const auto num_fused = static_cast<int32_t>(aux.size());
    const Tensor states = arena.f32({num_fused, static_cast<int64_t>(aux[0].size())});
    for (size_t t = 0; t < aux.size(); ++t) {
      std::copy(aux[t].begin(), aux[t].end(), states.data<float>() + t * aux[0].size());
    }
    Step s = step(0, num_fused, draft_views);
    Tensor y = draft->forward(s, std::span(next_ids).first(aux.size()), draft->fuse(s, states));
    Eagle3::Guess guess = draft->guess(s, y);
    for (int32_t i = 0; i < num_fused; ++i) logits.push_back(row_of(guess.logits, i));
    Tensor feature = guess.feature.rows(num_fused - 1, 1);
    for (size_t t = aux.size(); t < next_ids.size(); ++t) {
      s = step(static_cast<int32_t>(t), 1, draft_views);
      y = draft->forward(s, std::span(next_ids).subspan(t, 1), feature);
      guess = draft->guess(s, y);
      logits.push_back(row_of(guess.logits, 0));
      feature = guess.feature;
    }
    return logits;
  }

  // One pass over all entries; output of the given rows, or of all in a plain pass.
  Rows catch_up(const Rows& aux, std::span<const int32_t> next_ids,
                const std::optional<std::vector<int32_t>>& rows) {
    arena.reset();
    const auto T = static_cast<int32_t>(next_ids.size());
    const Tensor states = arena.f32({T, static_cast<int64_t>(aux[0].size())});
    for (int32_t t = 0; t < T; ++t) {
      std::ranges::copy(aux[static_cast<size_t>(t)], states.data<float>() + t * states.stride(0));
    }
    const Step s = step(0, T, draft_views);
    const Tensor feature = draft->fuse(s, states);
    std::vector<ops::SequenceRows> newest;
    for (const int32_t row : rows.value_or(std::vector<int32_t>{})) {
      newest.push_back({.first_row = static_cast<int32_t>(newest.size()),
                        .num_rows = 1,
                        .first_position = row,
                        .block_table = block_table.data()});
    }
    const Tensor y = !rows ? draft->forward(s, next_ids, feature)
                           : draft->forward(s, next_ids, feature, {*rows, *rows, newest});
    Rows output;
    for (int64_t i = 0; i < y.dim(0); ++i) output.push_back(row_of(y, i));
    return output;
  }

  testing::TempFolder draft_folder;
  std::optional<checkpoint::Checkpoint> draft_files;
  std::optional<Eagle3> draft;
  std::vector<Cache> draft_caches;
  std::vector<ops::CacheView> draft_views;
};

struct Variant {
  const char* name;
  testing::TinyDraftOptions options;
};

class DraftTest : public ::testing::TestWithParam<Variant> {};
INSTANTIATE_TEST_SUITE_P(
    Variants, DraftTest,
    ::testing::Values(Variant{"plain", {}}, Variant{"layers0_names", {.midlayer_names = false}},
                      Variant{"own_vocabulary", {.draft_vocab_size = 64}},
                      Variant{"grouped_queries", {.num_kv_heads = 2}},
                      Variant{"norm_before_residual", {.extra = {{"norm_before_residual", true}}}},
                      Variant{"norm_before_fc", {.extra = {{"norm_before_fc", true}}}},
                      Variant{"eagle31", {.extra = {{"fc_norm", true}, {"norm_output", true}}}}),
    [](const auto& instance) { return std::string(instance.param.name); });

TEST_P(DraftTest, LogitsMatchTheOracleFusedAndChained) {
  const TinyCheckpoint tiny = testing::tiny_target();
  const TinyCheckpoint tiny_draft = testing::tiny_draft(tiny, GetParam().options);
  DraftHarness harness(ops::cpu_ops(), tiny, tiny_draft);
  const std::vector<int32_t> ids = some_tokens(26);
  const auto aux_layers = harness.draft->aux_layers();
  ASSERT_EQ((std::vector<int64_t>(aux_layers.begin(), aux_layers.end())),
            (std::vector<int64_t>{1, 2, 3}));
  const Rows aux = harness.run(ids, 64, {1, 2, 3}).aux;
  std::vector<int32_t> next_ids(ids.begin() + 1, ids.end());
  for (const int32_t id : {3, 77, 20, 9, 127, 0}) next_ids.push_back(id);
  const Rows expected =
      testing::oracle_draft(tiny_draft, tiny, harness.draft->config(), aux, next_ids).logits;
  const Rows actual = harness.run_draft(aux, next_ids);
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t t = 0; t < expected.size(); ++t) {
    EXPECT_LT(testing::relative_error(actual[t], expected[t]), kTolerance) << t;
  }
}

// Entries that only catch up leave the same keys and values, and those that guess have the same
// output to the bit. A row's position is its index: all are of one sequence.
TEST_P(DraftTest, APassOfWhichFewGuessIsTheSamePass) {
  const TinyCheckpoint tiny = testing::tiny_target();
  const TinyCheckpoint tiny_draft = testing::tiny_draft(tiny, GetParam().options);
  DraftHarness harness(ops::cpu_ops(), tiny, tiny_draft), other(ops::cpu_ops(), tiny, tiny_draft);
  const std::vector<int32_t> ids = some_tokens(26);
  const Rows aux = harness.run(ids, 64, {1, 2, 3}).aux;
  const std::span<const int32_t> next_ids = std::span(ids).subspan(1);
  const Rows all = harness.catch_up(aux, next_ids, std::nullopt);
  for (const std::vector<int32_t>& rows : {std::vector<int32_t>{24}, {8, 24}, {}}) {
    SCOPED_TRACE(rows.size());
    const Rows few = other.catch_up(aux, next_ids, rows);
    ASSERT_EQ(few.size(), rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(few[i], all[static_cast<size_t>(rows[i])]);
    }
    for (size_t cache = 0; cache < harness.draft_caches.size(); ++cache) {
      EXPECT_TRUE(harness.draft_caches[cache].bytes() == other.draft_caches[cache].bytes());
    }
    for (Cache& cache : other.draft_caches) cache.clear();
  }
}

class DraftEncodingTest : public ::testing::TestWithParam<Encoding> {};
INSTANTIATE_TEST_SUITE_P(
    Encodings, DraftEncodingTest,
    ::testing::Values(Encoding{"bf16", &formats::kFp8, {}},
                      Encoding{"fp8_layer", &formats::kFp8, {"self_attn.", "mlp."}},
                      Encoding{"fp8_fc_and_head", &formats::kFp8, {"fc.", "lm_head"}},
                      Encoding{"fp8_q_proj_only", &formats::kFp8, {".q_proj"}},
                      Encoding{"mxfp4_layer", &formats::kMxfp4, {"self_attn.", "mlp."}}),
    [](const auto& instance) { return std::string(instance.param.name); });

// The target's MXFP4 says nothing about its draft, and the draft's files speak for themselves.
TEST_P(DraftEncodingTest, LogitsMatchTheOracleOfTheDecodedWeights) {
  const TinyCheckpoint tiny = testing::tiny_target().encoded(formats::kMxfp4, {".mlp.experts."});
  const TinyCheckpoint tiny_draft = testing::tiny_draft(tiny, {.draft_vocab_size = 64})
                                        .encoded(*GetParam().format, GetParam().parts);
  DraftHarness harness(ops::cpu_ops(), tiny, tiny_draft);
  const std::vector<int32_t> ids = some_tokens(12);
  const Rows aux = harness.run(ids, 12, {1, 2, 3}).aux;
  const std::vector<int32_t> next_ids = some_tokens(16);
  const Rows expected =
      testing::oracle_draft(tiny_draft, tiny, harness.draft->config(), aux, next_ids).logits;
  const Rows actual = harness.run_draft(aux, next_ids);
  for (size_t t = 0; t < expected.size(); ++t) {
    EXPECT_LT(testing::relative_error(actual[t], expected[t]), kTolerance) << t;
  }
}

// As if the file's lm_head had been FP8: the draft's own, and the target's that it shares.
TEST(Eagle3Test, HeadMadeFp8ForDraftingIsTheFormatsOwnEncoding) {
  for (const ops::OpTable* table : {&ops::reference_ops(), &ops::cpu_ops()}) {
    for (const int64_t vocab_size : {64, 128}) {
      SCOPED_TRACE(vocab_size);
      const TinyCheckpoint tiny = testing::tiny_target();
      const TinyCheckpoint plain = testing::tiny_draft(tiny, {.draft_vocab_size = vocab_size});
      DraftHarness harness(*table, tiny, plain, /*fp8_head=*/true);
      const Rows aux = harness.run(some_tokens(12), 12, {1, 2, 3}).aux;
      const std::vector<int32_t> next_ids = some_tokens(16);
      const Rows expected = testing::oracle_draft(plain.encoded(formats::kFp8, {"lm_head"}),
                                                  tiny.encoded(formats::kFp8, {"lm_head"}),
                                                  harness.draft->config(), aux, next_ids)
                                .logits;
      const Rows exact =
          testing::oracle_draft(plain, tiny, harness.draft->config(), aux, next_ids).logits;
      const Rows actual = harness.run_draft(aux, next_ids);
      for (size_t t = 0; t < expected.size(); ++t) {
        EXPECT_LT(testing::relative_error(actual[t], expected[t]), kTolerance) << t;
        EXPECT_GT(testing::relative_error(actual[t], exact[t]), kTolerance) << "not rounded";
      }
    }
  }
}

TEST(Eagle3Test, OwnVocabularyMapsToTargetIds) {
  const TinyCheckpoint tiny = testing::tiny_target();
  DraftHarness harness(ops::reference_ops(), tiny,
                       testing::tiny_draft(tiny, {.draft_vocab_size = 64}));
  ASSERT_EQ(harness.draft->d2t().size(), 64u);
  EXPECT_EQ(harness.draft->d2t()[63], 126);
}

TEST(Eagle3Test, AVocabularyMapOutOfOrderIsRefused) {
  const TinyCheckpoint tiny = testing::tiny_target();
  TinyCheckpoint tiny_draft = testing::tiny_draft(tiny, {.draft_vocab_size = 64});
  tiny_draft.tensors["d2t"].values[5] = 0;
  try {
    DraftHarness harness(ops::reference_ops(), tiny, tiny_draft);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("'d2t' maps draft token 5 to 5"));
  }
}

}  // namespace
}  // namespace eyrie::model
