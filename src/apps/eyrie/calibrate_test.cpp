// Calibration from a file of prompts to the scales in a checkpoint. What single ops record is
// ops/observe_test.cpp; ModelOpt's own scales are compared by tools/formats_golden.
#include "apps/eyrie/calibrate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "apps/eyrie/calibration_prompts.h"
#include "base/error.h"
#include "chat/template.h"
#include "model/testing.h"
#include "model/testing_oracle.h"
#include "quantize/quantize.h"

namespace eyrie::apps {
namespace {

using checkpoint::Checkpoint;
using model::testing::TempFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kNano = "models/kimi-k2.5-nano";
using Prompts = std::vector<std::vector<TokenId>>;

struct PromptFile {
  TempFolder folder;
  CalibrationFile file = {
      .path = folder.path() + "/prompts.jsonl", .model = kNano, .vocab_size = 4096};
  Prompts read(const std::string& text) const {
    std::ofstream(file.path) << text;
    return read_calibration_prompts(file);
  }
  std::string error(const std::string& text) const {
    try {
      read(text);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
};

TEST(CalibrationPromptsTest, EveryKindOfRow) {
  const PromptFile prompts;
  const Prompts got = prompts.read(R"({"prompt": "Two and two", "question": "not this"}
{"prompt": [5, 0, 4095]}

{"messages": [{"role": "user", "content": "Hello"}]}
{"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]}
{"question": "Why?", "answer": 4}
{"text": "Because")" + std::string("}\n"));
  const Tokenizer tokenizer = Tokenizer::load(kNano);
  const auto text = [&](const std::string& words) {
    return tokenizer.encode(words, AllowSpecial::kAll);
  };
  ASSERT_EQ(got.size(), 6u);
  EXPECT_EQ(got[0], text("Two and two"));
  EXPECT_EQ(got[1], (std::vector<TokenId>{5, 0, 4095}));
  const auto chat_template = chat::load_chat_template({.tokenizer_dir = kNano});
  std::vector<chat::Message> messages(1);
  messages[0].role = "user";
  messages[0].content = {{.text = "Hello"}};
  EXPECT_EQ(got[2],
            chat::encode_prompt(tokenizer, chat_template->render(messages, {}, {}).value()));
  // An answered conversation ends with its answer.
  EXPECT_GT(got[3].size(), text("Hello").size() + text("Hi").size());
  EXPECT_TRUE(got[3].back() != got[2].back());
  EXPECT_EQ(got[4], text("Why?"));
  EXPECT_EQ(got[5], text("Because"));
}

TEST(CalibrationPromptsTest, TakesAsManyRowsAndTokensAsAsked) {
  PromptFile prompts;
  prompts.file.max_samples = 2;
  prompts.file.max_tokens = 3;
  const Prompts got = prompts.read("{\"prompt\": [1]}\n{\"prompt\": [1, 2, 3, 4]}\nnot JSON\n");
  EXPECT_EQ(got, (Prompts{{1}, {1, 2, 3}}));
}

TEST(CalibrationPromptsTest, BadRowsNameFileAndLine) {
  const PromptFile prompts;
  const std::string line = prompts.file.path + ":2: ", good = "{\"prompt\": [1]}\n";
  EXPECT_THAT(prompts.error(good + "hello\n"), AllOf(HasSubstr(line), HasSubstr("JSON object")));
  EXPECT_THAT(prompts.error(good + "{\"q\": 1}"), AllOf(HasSubstr(line), HasSubstr("\"text\"")));
  EXPECT_THAT(prompts.error(good + "{\"prompt\": 7}"), HasSubstr(line + "\"prompt\" is not a"));
  EXPECT_THAT(prompts.error(good + "{\"prompt\": \"\"}"), HasSubstr(line + "has no tokens"));
  EXPECT_THAT(prompts.error(good + "{\"prompt\": [4096]}"),
              AllOf(HasSubstr(line), HasSubstr("0 to 4095")));
  EXPECT_THAT(prompts.error(good + "{\"messages\": 3}"), HasSubstr(line));
  EXPECT_THAT(prompts.error("\n"), HasSubstr("holds no prompts"));
  PromptFile missing;
  missing.file.path = "/nowhere.jsonl";
  EXPECT_THROW(read_calibration_prompts(missing.file), Error);
}

std::vector<std::string> linear_modules(const Checkpoint& files) {
  std::vector<std::string> modules;
  for (const std::string& name : files.names()) {
    if (name.find("embed_tokens") == name.npos && name.ends_with(".weight") &&
        files.find(name)->rank() == 2) {
      modules.push_back(name.substr(0, name.size() - 7));
    }
  }
  return modules;
}

std::vector<TokenId> some_tokens(int count) {
  std::vector<TokenId> ids;
  for (int i = 0; i < count; ++i) ids.push_back((i * i * 7 + i * 13 + 5) % 128);
  return ids;
}

// The inputs of the attention's first projections are what an oracle in double precision says:
// max |rms_norm(residual) · weight|, layer by layer.
TEST(CalibrateTest, LayersSeeWhatTheOracleSays) {
  const model::testing::TinyCheckpoint tiny = model::testing::tiny_target();
  const TempFolder folder;
  tiny.write(folder.path());
  Checkpoint files = Checkpoint::open(folder.path());
  const auto config = model::ModelConfig::parse(files.config());
  const Prompts prompts = {some_tokens(37), some_tokens(9)};
  const Calibration got = calibrate(&files, linear_modules(files), prompts, 2);
  EXPECT_EQ(got.num_tokens, 46);
  const auto oracle = model::testing::oracle_target(tiny, config, prompts[0]);
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const std::string prefix = fmt::format("language_model.model.layers.{}.", layer);
    const std::vector<float>& weight = tiny[prefix + "input_layernorm.weight"];
    double want = 0;  // the second prompt is the first one's beginning and adds nothing
    for (const std::vector<double>& row : oracle.layer_inputs[static_cast<size_t>(layer)]) {
      double sum = 0;
      for (const double x : row) sum += x * x;
      const double factor =
          1 / std::sqrt(sum / static_cast<double>(row.size()) + config.rms_norm_eps);
      for (size_t i = 0; i < row.size(); ++i) {
        want = std::max(want, std::fabs(row[i] * factor * weight[i]));
      }
    }
    EXPECT_NEAR(got.amax.at(prefix + "self_attn.q_a_proj"), want, 1e-4 * want) << layer;
    EXPECT_EQ(got.amax.at(prefix + "self_attn.q_a_proj"),
              got.amax.at(prefix + "self_attn.kv_a_proj_with_mqa"));
  }
  for (const auto& [module, amax] : got.amax) EXPECT_GT(amax, 0) << module;
}

TEST(CalibrateTest, EveryLayerIsKnownAndExpertsOfALayerShare) {
  const TempFolder folder;
  model::testing::tiny_target().write(folder.path());
  Checkpoint files = Checkpoint::open(folder.path());
  const std::vector<std::string> modules = linear_modules(files);
  const Prompts one_token = {{3}};
  const Calibration got = calibrate(&files, modules, one_token, 1);
  EXPECT_EQ(got.amax.size(), modules.size());  // kv_b_proj and the head too
  EXPECT_GT(got.num_idle_experts, 0);
  EXPECT_LT(got.num_idle_experts, got.num_experts);
  const std::string layer = "language_model.model.layers.1.mlp.";
  const float gate = got.amax.at(layer + "experts.0.gate_proj");
  const float down = got.amax.at(layer + "experts.0.down_proj");
  EXPECT_GT(gate, 0);
  EXPECT_GT(down, 0);
  for (const auto& [module, amax] : got.amax) {
    if (!module.starts_with(layer + "experts.")) continue;
    EXPECT_EQ(amax, module.ends_with("down_proj") ? down : gate) << module;
  }
  // The router and the shared expert read the same rows as the experts.
  EXPECT_EQ(gate, got.amax.at(layer + "gate"));

  EXPECT_EQ(calibrate(&files, modules, one_token, 3).amax, got.amax);
  const std::vector<std::string> unknown = {"vision_tower.layers.0.proj"};
  EXPECT_THROW(calibrate(&files, unknown, one_token, 1), Error);
}

// From prompts to a checkpoint whose experts round activations with what was seen.
TEST(CalibrateTest, TheBundledModelFromPromptsToScales) {
  const TempFolder folder;
  quantize::Options options;
  options.input = kNano;
  options.output = folder.path() + "/out";
  options.recipe = formats::find_recipe(formats::kNvfp4, "modelopt");
  Checkpoint files = Checkpoint::open(kNano);
  const Prompts prompts = read_calibration_prompts({.path = "data/prompts/nano-mix.jsonl",
                                                    .model = kNano,
                                                    .max_samples = 3,
                                                    .max_tokens = 100,
                                                    .vocab_size = 4096});
  const std::vector<std::string> modules = quantize::selected_modules(options);
  int64_t done = 0, total = 0;
  for (const std::vector<TokenId>& ids : prompts) total += static_cast<int64_t>(ids.size());
  const Calibration calibration =
      calibrate(&files, modules, prompts, 2, [&](const CalibrationProgress& progress) {
        EXPECT_EQ(progress.tokens_total, total);
        EXPECT_GT(progress.tokens_done, done);
        done = progress.tokens_done;
      });
  EXPECT_EQ(done, total);
  options.input_amax = calibration.amax;
  quantize::quantize(options);
  Checkpoint made = Checkpoint::open(options.output);
  EXPECT_FALSE(modules.empty());
  for (const std::string& module : modules) {
    const float input_scale = made.stored_weight(module).input_scale;
    EXPECT_FLOAT_EQ(input_scale, calibration.amax.at(module) / 2688) << module;
    EXPECT_GT(input_scale, 0);
  }
}

}  // namespace
}  // namespace eyrie::apps
