#include "checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "checkpoint/test_files.h"

namespace eyrie::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::vector<RawTensor> kSmall = {
    {"a", "F32", {2, 3}, bytes_of(std::vector<float>{1, 2, 3, 4, 5, 6})},
    {"b", "BF16", {4}, bf16_bytes({1, -1, 0.5f, 2})},
    {"c", "I64", {}, bytes_of(std::vector<int64_t>{-7})},
    {"d", "U8", {0, 5}, ""},
};

std::string error_with(const std::string& content) {
  const TempFolder folder;
  folder.write("x.safetensors", content);
  return error_of([&] { SafetensorsFile(folder.file("x.safetensors")); });
}

std::string error_with_header(const std::string& header, size_t data_bytes) {
  return error_with(safetensors_with_header(header, std::string(data_bytes, '\0')));
}

TEST(SafetensorsTest, ReadsEveryTensorWhereItLies) {
  const TempFolder folder;
  folder.write("x.safetensors", safetensors_bytes(kSmall));
  const SafetensorsFile file(folder.file("x.safetensors"));
  ASSERT_EQ(file.tensors().size(), 4u);
  const Tensor& a = file.tensors().at("a");
  EXPECT_EQ(a.shape_string(), "[2, 3] F32");
  float last = 0;
  std::memcpy(&last, static_cast<const char*>(a.raw()) + 20, sizeof last);
  EXPECT_EQ(last, 6);
  EXPECT_EQ(file.tensors().at("b").shape_string(), "[4] BF16");
  EXPECT_EQ(file.tensors().at("c").rank(), 0);
  EXPECT_EQ(file.tensors().at("c").num_elements(), 1);
  EXPECT_EQ(file.tensors().at("d").num_elements(), 0);
}

TEST(SafetensorsTest, ReadsMetadataAndPaddedHeaders) {
  const TempFolder folder;
  folder.write("x.safetensors",
               safetensors_with_header(R"({"__metadata__":{"format":"pt"}}     )", ""));
  const SafetensorsFile file(folder.file("x.safetensors"));
  EXPECT_TRUE(file.tensors().empty());
  EXPECT_EQ(file.metadata().at("format"), "pt");
}

TEST(SafetensorsTest, ReadsE8m0AsBytes) {
  const TempFolder folder;
  folder.write("x.safetensors", safetensors_bytes({{"s", "F8_E8M0", {2}, "\x7f\x80"}}));
  EXPECT_EQ(SafetensorsFile(folder.file("x.safetensors")).tensors().at("s").dtype(), DType::kU8);
}

TEST(SafetensorsTest, NamesAMissingFile) {
  EXPECT_THAT(error_of([] { SafetensorsFile("/nowhere/x.safetensors"); }),
              AllOf(HasSubstr("/nowhere/x.safetensors"), HasSubstr("No such file")));
}

TEST(SafetensorsTest, RejectsTruncation) {
  const std::string whole = safetensors_bytes(kSmall);
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THAT(error_with(whole.substr(0, size)), HasSubstr("truncated")) << size;
  }
  EXPECT_EQ(error_with(whole), "");
}

TEST(SafetensorsTest, RejectsAHeaderLongerThanTheFile) {
  const std::string huge = bytes_of(std::vector<uint64_t>{~uint64_t{0}}) + "{}";
  EXPECT_THAT(error_with(huge),
              HasSubstr("a header of 18446744073709551615 bytes in a file of 10"));
}

TEST(SafetensorsTest, RejectsBadJson) {
  EXPECT_THAT(error_with_header("{\"a\":", 0), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_with_header("[1]", 0), HasSubstr("must be a JSON object"));
  EXPECT_THAT(error_with_header("{\"\xff\": 1}", 0), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_with_header(R"({"a": 1e999})", 0), HasSubstr("number overflow"));
}

TEST(SafetensorsTest, RejectsADuplicateName) {
  const std::string entry = R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  EXPECT_THAT(error_with_header("{\"w\":" + entry + ",\"w\":" + entry + "}", 1),
              HasSubstr("lists \"w\" twice"));
}

TEST(SafetensorsTest, NamesTheTensorWithAWrongEntry) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"w":3})", "entry of tensor w must be an object"},
      {R"({"w":{"shape":[1],"data_offsets":[0,1]}})", "tensor w needs \"dtype\""},
      {R"({"w":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}})", "tensor w has dtype F64"},
      {R"({"w":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", "tensor w needs \"shape\""},
      {R"({"w":{"dtype":"U8","shape":[1.5],"data_offsets":[0,1]}})", "tensor w needs \"shape\""},
      {R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", "tensor w needs \"data_offsets\""},
      {R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})", "needs \"data_offsets\""},
      {R"({"w":{"dtype":"U8","shape":[2],"data_offsets":[0,1]}})", "does not fill its 1 bytes"},
      {R"({"w":{"dtype":"U8","shape":[1,1,1,1,1],"data_offsets":[0,1]}})", "has 5 dimensions"},
      {R"({"w":{"dtype":"I64","shape":[4294967296,4294967296],"data_offsets":[0,0]}})",
       "does not fill its 0 bytes"},
      {R"({"w":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}})", "tensor w ends at byte 9"},
      {R"({"__metadata__":{"k":1}})", "__metadata__.k must be a string"}};
  for (const auto& [header, expected] : cases) {
    EXPECT_THAT(error_with_header(header, 1), HasSubstr(expected)) << header;
  }
}

TEST(SafetensorsTest, RejectsOverlapAndGaps) {
  const std::string two = R"({{"v":{{"dtype":"U8","shape":[2],"data_offsets":[0,2]}},)"
                          R"("w":{{"dtype":"U8","shape":[2],"data_offsets":[{},{}]}}}})";
  EXPECT_EQ(error_with_header(fmt::format(fmt::runtime(two), 2, 4), 4), "");
  EXPECT_THAT(error_with_header(fmt::format(fmt::runtime(two), 1, 3), 3),
              HasSubstr("tensors v and w overlap"));
  EXPECT_THAT(error_with_header(fmt::format(fmt::runtime(two), 3, 5), 5),
              HasSubstr("1 bytes before tensor w belong to no tensor"));
  EXPECT_THAT(error_with_header(fmt::format(fmt::runtime(two), 2, 4), 7),
              HasSubstr("3 bytes after the last tensor"));
}

// Any bytes give tensors inside the file or an Error, never a crash or a read outside (the
// sanitizer build proves the second half).
TEST(SafetensorsTest, SurvivesRandomCorruption) {
  const std::string whole = safetensors_bytes(kSmall);
  const TempFolder folder;
  const std::string path = folder.file("x.safetensors");
  std::mt19937 random(20250131);
  int accepted = 0;
  for (int round = 0; round < 400; ++round) {
    std::string bytes = whole;
    const int edits = 1 + static_cast<int>(random() % 4);
    for (int i = 0; i < edits; ++i) {
      const size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes.erase(at, 1 + random() % 8);
          break;
        case 2:
          bytes.insert(at, std::string(1 + random() % 8, static_cast<char>(random())));
          break;
        default:  // digits and brackets: what the parser cares about
          bytes[at] = "0123456789[]{},:\"-.eE"[random() % 21];
      }
      if (bytes.empty()) bytes = "x";
    }
    folder.write("x.safetensors", bytes);
    try {
      const SafetensorsFile file(path);
      unsigned sum = 0;
      for (const auto& [name, tensor] : file.tensors()) {
        const auto* data = static_cast<const unsigned char*>(tensor.raw());
        for (size_t i = 0; i < tensor.bytes(); ++i) sum += data[i];
      }
      accepted += sum < ~0u;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("x.safetensors"));
    }
  }
  EXPECT_GT(accepted, 0);  // edits of the data alone leave a valid file
}

}  // namespace
}  // namespace eyrie::checkpoint
