// Device, memory, copies and recorded steps. What needs no GPU runs everywhere: the sentence that
// says why there is none.
#include "base/error.h"
#include "ops/gpu/gpu_test_support.h"
#include "ops/gpu/nvml.h"

namespace eyrie::ops::gpu {
namespace {

using DeviceTest = GpuTest;

TEST(FindDevice, SaysWhyThereIsNone) {
  const FoundDevice found = find_device();
  if (found.info) {
    EXPECT_TRUE(found.reason.empty());
    EXPECT_FALSE(found.info->name.empty());
    EXPECT_GE(found.info->major, 8);
    return;
  }
  EXPECT_GT(found.reason.size(), 20U);
  EXPECT_EQ(found.reason.find('\n'), std::string::npos);
  EXPECT_THROW(GpuDevice(), Error);
}

TEST(FindDevice, NamesADeviceThatIsNotThere) {
  const FoundDevice found = find_device(1000);
  EXPECT_FALSE(found.info);
  if (find_device().info) {
    EXPECT_NE(found.reason.find("no GPU 1000"), std::string::npos) << found.reason;
  }
}

TEST(NvmlTest, ReadsTheDeviceOrSaysWhyNot) {
  const Nvml& nvml = Nvml::instance();
  const FoundDevice found = find_device();
  if (!nvml.ok()) {
    EXPECT_GT(nvml.reason().size(), 20U);
    EXPECT_FALSE(nvml.read("0000:00:00.0"));
    GTEST_SKIP() << nvml.reason();
  }
  EXPECT_FALSE(nvml.read("no address"));
  if (!found.info) GTEST_SKIP() << "no GPU: " << found.reason;
  const std::optional<DeviceReading> reading = nvml.read(found.info->pci_bus_id);
  ASSERT_TRUE(reading) << found.info->pci_bus_id;
  EXPECT_GE(reading->memory_total_bytes, found.info->total_bytes);
  EXPECT_GT(reading->power_w, 1.0);
}

TEST_F(DeviceTest, BlocksOfMemoryAreApartAndComeBack) {
  const size_t before = device().memory().free_bytes;
  {
    std::vector<Buffer> blocks;
    for (int i = 0; i < 2000; ++i) {
      blocks.emplace_back(static_cast<size_t>(1 + i * 37), device_memory());
      EXPECT_EQ(reinterpret_cast<uintptr_t>(blocks.back().data()) % 256, 0U);
    }
    blocks.emplace_back(size_t{300} << 20, device_memory());
    for (size_t i = 0; i < blocks.size(); ++i) {
      fill_bytes(blocks[i].data(), static_cast<uint8_t>(i), blocks[i].bytes(), ctx().stream);
    }
    for (size_t i = 0; i < blocks.size(); i += 97) {
      uint8_t first = 0, last = 0;
      copy_to_host(&first, blocks[i].data(), 1, ctx().stream);
      copy_to_host(&last, blocks[i].data() + blocks[i].bytes() - 1, 1, ctx().stream);
      synchronize(ctx().stream);
      EXPECT_EQ(first, static_cast<uint8_t>(i));
      EXPECT_EQ(last, static_cast<uint8_t>(i));
    }
    EXPECT_LT(device().memory().free_bytes + (size_t{300} << 20), before + (size_t{1} << 20));
  }
  // A slab that other tests' blocks are in may stay.
  EXPECT_GE(device().memory().free_bytes + (size_t{256} << 20), before);
}

TEST_F(DeviceTest, ShortMemoryNamesWhatItWasForAndTheFlag) {
  const AllocationPurpose purpose("the KV cache", "--gpu-memory-utilization or --max-model-len");
  try {
    const Buffer buffer(device().info().total_bytes * 2, device_memory());
    FAIL() << "more memory than there is";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("GPU memory for the KV cache"), std::string::npos) << text;
    EXPECT_NE(text.find("are free; lower --gpu-memory-utilization"), std::string::npos) << text;
  }
}

TEST_F(DeviceTest, UploadsOfAnySizeArrive) {
  Upload upload_in_pieces(4096, 3);
  ThreadPool pool(2);
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{4095}, size_t{4096}, size_t{50001}}) {
    std::vector<uint8_t> host(bytes + 1);
    for (size_t i = 0; i < bytes; ++i) host[i] = static_cast<uint8_t>(i * 7 + i / 251);
    const std::vector<uint8_t> original = host;
    const Buffer to(bytes + 1, device_memory());
    upload_in_pieces.copy(to.data(), host.data(), bytes, ctx().stream, &pool);
    std::fill(host.begin(), host.end(), uint8_t{0});  // the source may go
    std::vector<uint8_t> back(bytes + 1);
    copy_to_host(back.data(), to.data(), bytes, ctx().stream);
    synchronize(ctx().stream);
    EXPECT_TRUE(
        std::equal(back.begin(), back.begin() + static_cast<int64_t>(bytes), original.begin()))
        << bytes;
  }
}

TEST_F(DeviceTest, PlacedTensorsKeepShapeAndBytes) {
  const Matrix host = Matrix::random(37, 19, 1);
  const PlacedTensor placed = ops::place(ctx(), host.tensor());
  EXPECT_EQ(placed.view.shape_string(), host.tensor().shape_string());
  std::vector<float> back(37 * 19);
  copy_to_host(back.data(), placed.view.raw(), placed.view.bytes(), ctx().stream);
  synchronize(ctx().stream);
  EXPECT_EQ(std::memcmp(back.data(), host.tensor().raw(), placed.view.bytes()), 0);
  release_upload();
}

// Three kernels that depend on each other, recorded once, replayed on other contents.
TEST_F(DeviceTest, RecordedStepsReadWhatIsThereWhenTheyRun) {
  const int64_t rows = 5, width = 520;
  const DeviceMatrix x(rows, width, DType::kF32), sum(Matrix(rows, width), DType::kF32);
  const DeviceMatrix out(rows, width, DType::kF32);
  const auto enqueue = [&] {
    ops::copy_rows(ctx(), {.out = sum.tensor(), .x = x.tensor()});
    ops::add(ctx(), {.residual = sum.tensor(), .x = x.tensor()});
    ops::scale_rows(ctx(), {.x = sum.tensor(), .factor = 0.25f});
    ops::copy_rows(ctx(), {.out = out.tensor(), .x = sum.tensor()});
  };
  const Graph graph = Graph::record(ctx().stream, enqueue);
  EXPECT_EQ(graph.num_nodes(), 4U);
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    const Matrix values = Matrix::random(rows, width, seed);
    copy_to_device(x.tensor().raw(), values.tensor().raw(), values.tensor().bytes(), ctx().stream);
    Event begin, end;
    begin.record(ctx().stream);
    for (int i = 0; i < 20; ++i) graph.launch(ctx().stream);
    end.record(ctx().stream);
    end.synchronize();
    EXPECT_TRUE(end.is_done());
    EXPECT_GT(end.ms_since(begin), 0.0);
    const Matrix got = out.to_host();
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < width; ++c) ASSERT_EQ(got.at(r, c), 0.5f * values.at(r, c));
    }
  }
}

TEST_F(DeviceTest, AFailedRecordingLeavesTheStreamUsable) {
  EXPECT_THROW(Graph::record(ctx().stream, [] { throw Error("stop"); }), Error);
  synchronize(ctx().stream);
}

}  // namespace
}  // namespace eyrie::ops::gpu
