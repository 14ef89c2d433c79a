#include "tensor/tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace eyrie {
namespace {

TEST(BF16, RoundsToNearestEven) {
  EXPECT_EQ(to_bf16(1.0f).bits, 0x3f80);
  EXPECT_EQ(to_bf16(1.00390625f).bits, 0x3f80);  // exactly half way: to even
  EXPECT_EQ(to_bf16(1.01171875f).bits, 0x3f82);  // exactly half way: to even
  EXPECT_EQ(to_bf16(1.004f).bits, 0x3f81);       // just above half way
  EXPECT_TRUE(std::isnan(to_float(to_bf16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_EQ(to_bf16(3.4e38f).bits, 0x7f80);  // past the largest bfloat16: infinity
}

TEST(Tensor, ViewsShareMemory) {
  std::vector<float> data(24);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i);
  const Tensor x = Tensor::of(data.data(), {4, 6});
  const Tensor part = x.rows(1, 2).columns(2, 4);
  EXPECT_EQ(part.dim(0), 2);
  EXPECT_EQ(part.stride(0), 6);
  EXPECT_FALSE(part.is_contiguous());
  EXPECT_EQ(part.data<float>()[0], 8.0f);
  const Tensor heads = part.split_last(2, 2);
  EXPECT_EQ(heads.rank(), 3);
  EXPECT_EQ(heads.stride(0), 6);
  EXPECT_EQ(heads.stride(1), 2);
  EXPECT_EQ(x.reshape({2, 12}).dim(1), 12);
}

TEST(TensorDeathTest, WrongTypeIsABug) {
  float value = 0;
  const Tensor x = Tensor::of(&value, {1});
  EXPECT_DEATH((void)x.data<int32_t>(), "accessed as I32");
}

TEST(Arena, StopsGrowingOnceWarm) {
  Arena arena(256);
  for (int step = 0; step < 10; ++step) {
    arena.reset();
    for (int i = 0; i < 20; ++i) {
      const Tensor x = arena.f32({33});
      EXPECT_EQ(reinterpret_cast<uintptr_t>(x.raw()) % 64, 0u);
    }
    if (step == 1) {
      EXPECT_GT(arena.num_growths(), 0);
    }
  }
  const int growths = arena.num_growths();
  arena.reset();
  for (int i = 0; i < 20; ++i) (void)arena.f32({33});
  EXPECT_EQ(arena.num_growths(), growths);
}

TEST(Arena, ScopeGivesBackAlsoWhatGrewInside) {
  Arena arena(256);
  const Tensor before = arena.f32({4});
  for (int layer = 0; layer < 50; ++layer) {
    const ArenaScope scope(arena);
    for (int i = 0; i < 8; ++i) {
      const Tensor x = arena.f32({64});
      EXPECT_NE(x.raw(), before.raw());
    }
  }
  EXPECT_LE(arena.high_water_bytes(), 64u + 8 * 256);
  EXPECT_LE(arena.num_growths(), 4);  // not once a layer
}

}  // namespace
}  // namespace eyrie
