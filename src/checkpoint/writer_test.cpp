#include "checkpoint/writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/mapped_file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/test_files.h"

namespace eyrie::checkpoint {
namespace {

using ::testing::HasSubstr;

std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

TEST(WriterTest, ReadsBackWhatWasWrittenInPieces) {
  const TempFolder folder;
  const std::string path = folder.file("model.safetensors");
  SafetensorsWriter writer(
      path,
      {{"codes", DType::kU8, {3}}, {"w", DType::kF32, {2, 2}}, {"none", DType::kBF16, {0, 4}}});
  const std::string values = bytes_of(std::vector<float>{1, 2, 3, 4});
  writer.write("w", 8, as_bytes(values).subspan(8));
  writer.write("codes", as_bytes("abc"));
  writer.write("w", 0, as_bytes(values).first(8));
  EXPECT_FALSE(std::filesystem::exists(path));
  writer.finish();
  EXPECT_EQ(writer.data_bytes(), 19u);

  folder.write("config.json", "{}");
  Checkpoint files = Checkpoint::open(folder.path());
  EXPECT_EQ(files.tensor("w", {2, 2}).data<float>()[3], 4);
  EXPECT_EQ(files.tensor("codes", {3}).data<uint8_t>()[2], 'c');
  EXPECT_EQ(files.tensor("none", {0, 4}).num_elements(), 0);
  EXPECT_FALSE(std::filesystem::exists(path + ".partial"));
}

TEST(WriterTest, AlignsEveryTensorToItsElement) {
  const TempFolder folder;
  SafetensorsWriter writer(folder.file("x"), {{"a", DType::kU8, {1}},
                                              {"b", DType::kI64, {1}},
                                              {"c", DType::kBF16, {1}},
                                              {"d", DType::kF32, {1}}});
  for (const auto& [name, size] : {std::pair("a", 1), {"b", 8}, {"c", 2}, {"d", 4}}) {
    writer.write(name, as_bytes(std::string(static_cast<size_t>(size), 'x')));
  }
  writer.finish();
  const SafetensorsFile file(folder.file("x"));
  for (const auto& [name, tensor] : file.tensors()) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.raw()) % dtype_bytes(tensor.dtype()), 0u) << name;
  }
}

TEST(WriterTest, AnUnfinishedFileLeavesNothing) {
  const TempFolder folder;
  { SafetensorsWriter writer(folder.file("x"), {{"a", DType::kU8, {1}}}); }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(WriterTest, NamesAPathThatCannotBeWritten) {
  EXPECT_THAT(error_of([] { SafetensorsWriter("/nowhere/x", {}); }),
              HasSubstr("cannot write /nowhere/x.partial"));
}

TEST(WriterTest, ShardIndexOpens) {
  const TempFolder folder;
  folder.write("config.json", "{}");
  folder.write("1.safetensors", safetensors_bytes({{"a", "U8", {1}, "x"}}));
  write_shard_index(folder.path(), {{"a", "1.safetensors"}}, 1);
  EXPECT_TRUE(Checkpoint::open(folder.path()).contains("a"));
  EXPECT_THAT(read_text_file(folder.file("model.safetensors.index.json")),
              HasSubstr("\"total_size\": 1"));
}

TEST(WriterDeathTest, MissingBytesAreABug) {
  const TempFolder folder;
  SafetensorsWriter writer(folder.file("x"), {{"a", DType::kU8, {2}}});
  writer.write("a", as_bytes("x"));
  EXPECT_DEATH(writer.finish(), "written_.load\\(\\) == data_bytes_");
  EXPECT_DEATH(writer.write("b", as_bytes("x")), "not announced");
}

}  // namespace
}  // namespace eyrie::checkpoint
