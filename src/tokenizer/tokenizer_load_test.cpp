// What Tokenizer::load says about files that are not as they should be.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <random>

#include "base/error.h"
#include "base/mapped_file.h"
#include "tokenizer/golden_test_util.h"

namespace eyrie {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class TokenizerLoadTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = std::filesystem::temp_directory_path() /
           fmt::format("eyrie-tokenizer-{}-{}", getpid(),
                       testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(dir_);
    model_ = read_text_file(std::string(kGoldenDir) + "/tiktoken.model");
    config_ = read_text_file(std::string(kGoldenDir) + "/tokenizer_config.json");
    write("tiktoken.model", model_);
    write("tokenizer_config.json", config_);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  void write(const std::string& file, std::string_view content) {
    write_file_atomically((dir_ / file).string(), content);
  }
  std::string message() {
    try {
      Tokenizer::load(dir_.string());
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  }
  std::string message_with(const std::string& file, std::string_view content) {
    write(file, content);
    return message();
  }
  std::string model_with_line(size_t number, const std::string& line) {
    std::string out;
    size_t at = 0;
    for (size_t i = 1; at < model_.size(); ++i) {
      const size_t end = model_.find('\n', at);
      out += (i == number ? line : model_.substr(at, end - at)) + "\n";
      at = end + 1;
    }
    return out;
  }

  std::filesystem::path dir_;
  std::string model_, config_;
};

TEST_F(TokenizerLoadTest, NamesTheLineOfABadVocabulary) {
  const auto bad_line = [&](const std::string& line) {
    return message_with("tiktoken.model", model_with_line(7, line));
  };
  const auto at_line = AllOf(HasSubstr("tiktoken.model line 7: "));
  EXPECT_THAT(bad_line("Jw=="), AllOf(at_line, HasSubstr("\"Jw==\"")));
  EXPECT_THAT(bad_line("J*== 6"), AllOf(at_line, HasSubstr("base64")));
  EXPECT_THAT(bad_line("Jw= 6"), AllOf(at_line, HasSubstr("base64")));
  EXPECT_THAT(bad_line(" 6"), AllOf(at_line, HasSubstr("base64")));
  EXPECT_THAT(bad_line("==== 6"), AllOf(at_line, HasSubstr("base64")));
  EXPECT_THAT(bad_line("Jw== six"), AllOf(at_line, HasSubstr("rank \"six\"")));
  EXPECT_THAT(bad_line("Jw== -6"), AllOf(at_line, HasSubstr("rank \"-6\"")));
  EXPECT_THAT(bad_line("Jw== 99999999999"), at_line);
  EXPECT_THAT(bad_line("Jw== 1000"), AllOf(at_line, HasSubstr("0 … 999")));
  EXPECT_THAT(message_with("tiktoken.model", model_with_line(9, "KQ== 7")),
              HasSubstr("line 9: rank 7 again"));
  EXPECT_THAT(message_with("tiktoken.model", model_with_line(9, "IQ== 8")),
              HasSubstr("line 9: the token of line 1 again"));
  EXPECT_THAT(message_with("tiktoken.model", model_with_line(1, "IUFBQUFB 0")),
              HasSubstr("single byte 0x21"));
  EXPECT_THAT(message_with("tiktoken.model", ""), HasSubstr("single byte"));
  std::filesystem::remove(dir_ / "tiktoken.model");
  EXPECT_THAT(message(), HasSubstr("has no tiktoken.model"));
}

TEST_F(TokenizerLoadTest, NamesTheFieldOfABadConfig) {
  const auto with = [&](const char* text) { return message_with("tokenizer_config.json", text); };
  EXPECT_THAT(with("{"), HasSubstr("tokenizer_config.json is not valid JSON"));
  EXPECT_THAT(with("[]"), HasSubstr("a JSON object is expected, not array"));
  EXPECT_THAT(with(R"({"added_tokens_decoder": []})"), HasSubstr("added_tokens_decoder must be"));
  EXPECT_THAT(with(R"({"added_tokens_decoder": {"x": {"content": "a"}}})"),
              HasSubstr("added_tokens_decoder \"x\": the key must be a token id"));
  EXPECT_THAT(with(R"({"added_tokens_decoder": {"999": {"content": "a"}}})"),
              HasSubstr("not in 1000 … 1511"));
  EXPECT_THAT(with(R"({"added_tokens_decoder": {"1000": "a"}})"), HasSubstr("object is expected"));
  EXPECT_THAT(with(R"({"added_tokens_decoder": {"1000": {"content": ""}}})"),
              HasSubstr("content must be a text"));
  EXPECT_THAT(with(R"({"added_tokens_decoder": {"1000": {"content": "a", "special": 1}}})"),
              HasSubstr("special must be true or false, not 1"));
  EXPECT_THAT(with(R"({"added_tokens_decoder": {"1000": {"content": "a"},
                                                "1001": {"content": "a"}}})"),
              HasSubstr("names both 1000 and 1001 \"a\""));
}

TEST_F(TokenizerLoadTest, FallsBackToKimisSlots) {
  std::filesystem::remove(dir_ / "tokenizer_config.json");
  const Tokenizer tokenizer = Tokenizer::load(dir_.string());
  const Tokenizer& golden = golden_tokenizer();
  ASSERT_EQ(tokenizer.vocab_size(), golden.vocab_size());
  for (TokenId id = 0; id < golden.vocab_size(); ++id) {
    EXPECT_EQ(tokenizer.token_bytes(id), golden.token_bytes(id));
    EXPECT_EQ(tokenizer.is_special(id), golden.is_special(id)) << golden.token_bytes(id);
  }
}

TEST_F(TokenizerLoadTest, TakesRanksInAnyOrderAndWindowsLines) {
  std::vector<std::string> lines;
  for (size_t at = 0; at < model_.size(); at = model_.find('\n', at) + 1) {
    lines.push_back(model_.substr(at, model_.find('\n', at) - at) + "\r\n");
  }
  std::shuffle(lines.begin(), lines.end(), std::mt19937(3));
  std::string shuffled;
  for (const std::string& line : lines) shuffled += line;
  EXPECT_EQ(message_with("tiktoken.model", shuffled), "");
  EXPECT_EQ(Tokenizer::load(dir_.string()).token_bytes(999), golden_tokenizer().token_bytes(999));
}

TEST_F(TokenizerLoadTest, MergesTheEosIdsOfBothConfigs) {
  write("config.json", R"({"eos_token_id": 1001, "text_config": {"eos_token_id": null}})");
  write("generation_config.json", R"({"eos_token_id": [1002, 1100]})");
  EXPECT_EQ(Tokenizer::load(dir_.string()).eos_ids(),
            (std::vector<TokenId>{1001, 1002, 1009, 1100}));
  EXPECT_THAT(message_with("generation_config.json", R"({"eos_token_id": 163586})"),
              HasSubstr("generation_config.json: eos_token_id 163586 is no token id"));
  EXPECT_THAT(message_with("generation_config.json", R"({"eos_token_id": "x"})"),
              HasSubstr("eos_token_id \"x\""));
}

// Any damage either leaves a file that loads or gives one Error that names the file.
TEST_F(TokenizerLoadTest, DamagedFilesGiveOneErrorOrLoad) {
  std::mt19937 rng(4);
  int num_errors = 0;
  for (int round = 0; round < 300; ++round) {
    const bool damage_model = round % 2 == 0;
    std::string content = damage_model ? model_ : config_;
    for (int i = 0; i < 3; ++i) {
      const size_t at = rng() % content.size();
      switch (rng() % 4) {
        case 0:
          content[at] = static_cast<char>(rng());
          break;
        case 1:
          content.erase(at, 1 + rng() % 50);
          break;
        case 2:
          content.insert(at, content.substr(rng() % content.size(), rng() % 50));
          break;
        default:
          content.resize(std::max<size_t>(at, 1));
          break;
      }
    }
    write("tiktoken.model", damage_model ? content : model_);
    write("tokenizer_config.json", damage_model ? config_ : content);
    const std::string error = message();
    num_errors += !error.empty();
    EXPECT_TRUE(error.empty() || error.find(dir_.string()) != std::string::npos) << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  }
  EXPECT_GT(num_errors, 150);
}

}  // namespace
}  // namespace eyrie
