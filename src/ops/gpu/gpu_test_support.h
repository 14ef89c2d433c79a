// What the tests of the GPU backend share: one device for the whole program (tests are skipped,
// with the reason, where there is none), tensors that live on it, and the table of errors that is
// printed at the end.
#pragma once

#include <string>
#include <vector>

#include "ops/gpu/backend.h"
#include "ops/gpu/device.h"
#include "ops/test_support.h"

namespace eyrie::ops::gpu {

class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!found().info) GTEST_SKIP() << "no GPU: " << found().reason;
    arena().reset();
    // Scratch that an op reads before it writes it shows as NaN.
    fill_bytes(scratch().raw(), 0xff, scratch().bytes(), ctx().stream);
  }
  void TearDown() override {
    if (found().info) check_device();
  }

  static const FoundDevice& found() {
    static const FoundDevice instance = find_device();
    return instance;
  }
  static GpuDevice& device() {
    static auto* const instance = new GpuDevice;  // the driver may go before statics do
    return *instance;
  }
  static const Ctx& ctx() {
    static auto* const pool = new ThreadPool(2);
    static const Ctx instance{
        .table = &gpu_ops(), .pool = pool, .arena = &arena(), .stream = device().stream()};
    return instance;
  }
  static Backend& reference() {
    static auto* const instance = new Backend(reference_ops());
    return *instance;
  }

 private:
  static constexpr size_t kScratchBytes = size_t{256} << 20;
  static Tensor& scratch_view() {
    static Tensor instance;
    return instance;
  }
  static Tensor scratch() {
    arena();
    return scratch_view();
  }
  static Arena& arena() {
    static auto* const instance = [] {
      device();
      Buffer memory(kScratchBytes, device_memory());
      scratch_view() = Tensor(memory.data(), DType::kU8, {static_cast<int64_t>(kScratchBytes)});
      return new Arena(std::move(memory));
    }();
    return *instance;
  }
};

// A vector on the device, as ops' spans want it.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& host)
      : memory_(std::max<size_t>(host.size(), 1) * sizeof(T), device_memory()), size_(host.size()) {
    copy_to_device(memory_.data(), host.data(), size_ * sizeof(T), nullptr);
    synchronize(nullptr);
  }
  std::span<T> span() const { return {memory_.template as<T>(), size_}; }
  T* data() const { return memory_.template as<T>(); }
  std::vector<T> to_host() const {
    check_device();
    std::vector<T> host(size_);
    copy_to_host(host.data(), memory_.data(), size_ * sizeof(T), nullptr);
    synchronize(nullptr);
    return host;
  }

 private:
  Buffer memory_;
  size_t size_;
};

// A [rows, columns] F32 or BF16 tensor on the device with rows `stride` apart; what no value was
// given is NaN.
class DeviceMatrix {
 public:
  DeviceMatrix(int64_t rows, int64_t columns, DType dtype, int64_t stride = 0)
      : rows_(rows),
        columns_(columns),
        stride_(stride == 0 ? columns : stride),
        dtype_(dtype),
        memory_(static_cast<size_t>(rows * stride_ + 1) * dtype_bytes(dtype), device_memory()) {
    fill_bytes(memory_.data(), 0xff, memory_.bytes(), nullptr);
    synchronize(nullptr);
  }
  DeviceMatrix(const Matrix& host, DType dtype, int64_t stride = 0)
      : DeviceMatrix(host.rows(), host.columns(), dtype, stride) {
    std::vector<float> f32(static_cast<size_t>(rows_ * stride_), std::nanf(""));
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t c = 0; c < columns_; ++c) {
        f32[static_cast<size_t>(r * stride_ + c)] = host.at(r, c);
      }
    }
    std::vector<bf16> narrow;
    if (dtype == DType::kBF16) {
      for (const float x : f32) narrow.push_back(to_bf16(x));
    }
    copy_to_device(memory_.data(),
                   dtype == DType::kBF16 ? static_cast<const void*>(narrow.data()) : f32.data(),
                   f32.size() * dtype_bytes(dtype), nullptr);
    synchronize(nullptr);
  }

  Tensor tensor() const {
    const Tensor all(memory_.data(), dtype_, {rows_, stride_});
    return stride_ == columns_ ? all : all.columns(0, columns_);
  }
  // Waits for the device. Fails the test when something was written between the rows.
  Matrix to_host() const {
    check_device();
    std::vector<std::byte> bytes(static_cast<size_t>(rows_ * stride_) * dtype_bytes(dtype_));
    copy_to_host(bytes.data(), memory_.data(), bytes.size(), nullptr);
    synchronize(nullptr);
    Matrix host(rows_, columns_);
    const auto value = [&](int64_t i) {
      return dtype_ == DType::kBF16 ? to_float(reinterpret_cast<const bf16*>(bytes.data())[i])
                                    : reinterpret_cast<const float*>(bytes.data())[i];
    };
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t c = 0; c < columns_; ++c) host.at(r, c) = value(r * stride_ + c);
      for (int64_t c = columns_; c < stride_; ++c) {
        EXPECT_TRUE(std::isnan(value(r * stride_ + c))) << "written beside row " << r;
      }
    }
    return host;
  }

 private:
  int64_t rows_, columns_, stride_;
  DType dtype_;
  Buffer memory_;
};

// The values a BF16 tensor can hold, so that the reference starts from the same ones.
inline Matrix rounded(Matrix m, DType dtype) {
  if (dtype != DType::kBF16) return m;
  for (int64_t r = 0; r < m.rows(); ++r) {
    for (int64_t c = 0; c < m.columns(); ++c) m.at(r, c) = to_float(to_bf16(m.at(r, c)));
  }
  return m;
}

// How far a result may be from the float64 reference, relative to its largest value. F32: sums of
// float32 products. BF16: the rounding of the result (2^-9), and once more where it was rounded on
// the way.
inline double tolerance(DType dtype) { return dtype == DType::kBF16 ? 4e-3 : 1e-5; }

// Compares, and remembers the worst error by name for the table.
void expect_close(const std::string& name, const Matrix& got, const Matrix& want, double limit);
inline void expect_close(const std::string& op, const Matrix& got, const Matrix& want,
                         DType dtype) {
  expect_close(op + (dtype == DType::kBF16 ? " bf16" : " f32"), got, want, tolerance(dtype));
}

inline constexpr DType kActivationTypes[] = {DType::kF32, DType::kBF16};

}  // namespace eyrie::ops::gpu
