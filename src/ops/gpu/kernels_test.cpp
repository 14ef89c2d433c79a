// Kernels launched by themselves: the programs with a GPU backend have them.
#include "ops/gpu/gpu_test_support.h"
#include "ops/gpu/kernels_linear.h"
#include "ops/gpu/linear.h"
#include "ops/weight_test_support.h"

namespace eyrie::ops::gpu {
namespace {

class GpuKernelsTest : public GpuTest {};

// Hopper's kernel and its twin, on the same launch arguments.
TEST_F(GpuKernelsTest, EveryKernelAgrees) {
  for (const formats::WeightFormat* format : formats::all_formats()) {
    const Owned weight = encoded(*format, 256, 768, 5);
    const PreparedWeight w = ops::prepare(ctx(), {&weight.weight, 1}, ActivationQuantization::kOff);
    const Matrix x = rounded(Matrix::random(19, 768, 3), DType::kBF16);
    const DeviceMatrix x_device(x, DType::kBF16);
    Multiply m = multiply_of(w);
    m.x = x_device.tensor().raw();
    m.x_stride = 768;
    m.out_is_f32 = true;
    m.out_stride = 256;
    m.num_tokens = 19;
    const auto run = [&](void (*launch)(const Multiply&, void*)) {
      const DeviceMatrix out(19, 256, DType::kF32);
      m.out = out.tensor().raw();
      launch(m, ctx().stream);
      return out.to_host();
    };
    const Matrix generic = run(launch_multiply_generic);
    if (can_multiply_sm90(m)) {
      expect_close("linear sm90 / generic", run(launch_multiply_sm90), generic, 1e-5);
    }
  }
}

}  // namespace
}  // namespace eyrie::ops::gpu
