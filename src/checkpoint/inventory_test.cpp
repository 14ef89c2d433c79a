#include "checkpoint/inventory.h"

#include <gtest/gtest.h>

#include "checkpoint/test_files.h"

namespace eyrie::checkpoint {
namespace {

TEST(InventoryTest, SumsKindsOfTensorsByFormat) {
  const TempFolder folder;
  folder.write("config.json", "{}");
  const std::string codes(2 * 16, 'x'), scales(2, 'x');
  folder.write("model.safetensors",
               safetensors_bytes({{"layers.0.experts.0.up.weight", "U8", {2, 16}, codes},
                                  {"layers.0.experts.0.up.weight_scale", "U8", {2, 1}, scales},
                                  {"layers.10.experts.1.up.weight", "U8", {2, 16}, codes},
                                  {"layers.10.experts.1.up.weight_scale", "U8", {2, 1}, scales},
                                  {"layers.2.experts.0.up.weight", "BF16", {1, 2}, "abcd"},
                                  {"q.weight", "F8_E4M3", {1, 2}, "ab"},
                                  {"q.weight_scale", "BF16", {1}, "ab"},
                                  {"n4.weight", "U8", {1, 2}, "ab"},
                                  {"n4.weight_scale", "F8_E4M3", {1, 1}, "a"},
                                  {"d2t", "I64", {1}, "12345678"}}));
  const std::vector<InventoryRow> rows = inventory(Checkpoint::open(folder.path()));
  ASSERT_EQ(rows.size(), 5u);
  EXPECT_EQ(rows[0].group, "layers.*.experts.*.up.weight");
  EXPECT_EQ(rows[0].format, "mxfp4");
  EXPECT_EQ(rows[0].tensors, 2);
  EXPECT_EQ(rows[0].parameters, 2 * 64);
  EXPECT_EQ(rows[0].bytes, 2u * 34);
  EXPECT_EQ(rows[1].format, "I64");
  std::map<std::string, std::string> format_of_group;
  for (const InventoryRow& row : rows) format_of_group[row.group + "/" + row.format] = row.format;
  EXPECT_TRUE(format_of_group.contains("layers.*.experts.*.up.weight/bf16"));
  EXPECT_TRUE(format_of_group.contains("q.weight/fp8"));
  EXPECT_TRUE(format_of_group.contains("n4.weight/U8 + F8_E4M3 scales"));
}

TEST(InventoryTest, AnEmptyCheckpointHasNoRows) {
  const TempFolder folder;
  folder.write("config.json", "{}");
  folder.write("model.safetensors", safetensors_bytes({}));
  EXPECT_TRUE(inventory(Checkpoint::open(folder.path())).empty());
}

}  // namespace
}  // namespace eyrie::checkpoint
