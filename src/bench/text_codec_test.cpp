#include "bench/text_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "bench/dataset.h"

// On the tokenizer of the bundled model.
namespace eyrie::bench {
namespace {

constexpr const char* kModel = "models/kimi-k2.5-nano";

TEST(TextCodecTest, ReadsControlTokensAndRendersATurn) {
  const auto codec = load_text_codec(kModel, nlohmann::json::object());
  EXPECT_EQ(codec->encode("<|im_end|>").size(), 1U);
  EXPECT_EQ(codec->decode(codec->encode("two plus two")), "two plus two");
  const std::string turn = codec->render_user_turn("hello");
  EXPECT_THAT(turn, testing::HasSubstr("<|im_user|>user<|im_middle|>hello<|im_end|>"));
  EXPECT_THAT(turn, testing::HasSubstr("<|im_assistant|>"));
  EXPECT_THAT(turn, testing::Not(testing::HasSubstr("</think>")));
  const auto brief = load_text_codec(kModel, {{"thinking", false}});
  EXPECT_THAT(brief->render_user_turn("hello"), testing::HasSubstr("</think>"));
  EXPECT_THROW(load_text_codec(kModel, {{"thinking", "perhaps"}}), Error);
  EXPECT_THROW(load_text_codec("/no/such/dir", nlohmann::json::object()), Error);
}

TEST(TextCodecTest, RandomPromptsHitTheirLengths) {
  const auto codec = load_text_codec(kModel, nlohmann::json::object());
  DatasetOptions options;
  options.num_prompts = 20;
  options.input_len = 200;
  options.input_range_ratio = 0.5;
  for (const bool inferencex : {false, true}) {
    options.use_chat_template = inferencex;
    const auto dataset = make_dataset(options, codec.get(), /*wrap_on_client=*/true);
    for (const auto& prompt : dataset.prompts) {
      // What the server will count for the text, template included.
      EXPECT_EQ(static_cast<int64_t>(codec->encode(prompt.text).size()), prompt.prompt_len);
      EXPECT_LE(prompt.prompt_len, inferencex ? 202 : 302);
      EXPECT_GE(prompt.prompt_len, 98);
    }
    EXPECT_EQ(dataset.num_repeated, 0);
  }
}

}  // namespace
}  // namespace eyrie::bench
