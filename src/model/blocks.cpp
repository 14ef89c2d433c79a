#include "model/blocks.h"

#include <cstring>

#include "base/log.h"

namespace eyrie::model {

RmsNorm RmsNorm::load(const Loader& loader, const std::string& prefix, int64_t size, double eps) {
  return {.weight = loader.files.tensor_f32(prefix + ".weight", {size}),
          .eps = static_cast<float>(eps)};
}

Tensor RmsNorm::forward(const Step& s, Tensor x) const {
  const Tensor out = s.f32({x.dim(0), x.dim(1)});
  ops::rms_norm(s.ctx, {.out = out, .x = x, .weight = weight, .eps = eps});
  return out;
}

void RmsNorm::forward_in_place(const Step& s, Tensor x) const {
  ops::rms_norm(s.ctx, {.out = x, .x = x, .weight = weight, .eps = eps});
}

Linear Linear::load(const Loader& loader, const std::vector<Part>& parts, int64_t in) {
  std::vector<formats::Weight> weights;
  for (const Part& part : parts) {
    weights.push_back(loader.files.weight(part.name, part.out, in));
    if (weights.back().format != weights.front().format) {
      log::info("[model] {} is {} and {} is {}: together they are float32 in memory",
                parts.front().name, weights.front().format->name, part.name,
                weights.back().format->name);
    }
  }
  Linear linear{.weight = ops::prepare(loader.ctx, weights, loader.activation)};
  if (linear.weight.source.empty()) {  // the kernels have their own layout
    for (const formats::Weight& weight : weights) loader.files.done_with(weight);
  }
  return linear;
}

Tensor Linear::forward(const Step& s, Tensor x) const {
  const Tensor out = s.f32({x.dim(0), weight.out});
  ops::linear(s.ctx, {.out = out, .x = x, .weight = &weight});
  return out;
}

Mlp Mlp::load(const Loader& loader, const std::string& prefix, int64_t hidden,
              int64_t intermediate) {
  return {.gate_up = Linear::load(
              loader, {{prefix + ".gate_proj", intermediate}, {prefix + ".up_proj", intermediate}},
              hidden),
          .down = Linear::load(loader, prefix + ".down_proj", hidden, intermediate)};
}

Tensor Mlp::forward(const Step& s, Tensor x) const {
  const Tensor gate_up_out = gate_up.forward(s, x);         // [T, 2·I]
  const Tensor hidden = s.f32({x.dim(0), down.weight.in});  // [T, I]
  ops::silu_mul(s.ctx, {.out = hidden, .gate_up = gate_up_out});
  return down.forward(s, hidden);  // [T, H]
}

void gather_rows(Tensor out, Tensor x, std::span<const int32_t> rows) {
  CHECK_EQ(out.dim(0), static_cast<int64_t>(rows.size()));
  CHECK_EQ(out.dim(1), x.dim(1));
  for (size_t i = 0; i < rows.size(); ++i) {
    CHECK(rows[i] >= 0 && rows[i] < x.dim(0), "row {} of {}", rows[i], x.shape_string());
    std::memcpy(out.data<float>() + static_cast<int64_t>(i) * out.stride(0),
                x.data<float>() + rows[i] * x.stride(0),
                static_cast<size_t>(x.dim(1)) * sizeof(float));
  }
}

void copy_rows(Tensor out, Tensor x) {
  CHECK_EQ(out.dim(0), x.dim(0));
  CHECK_EQ(out.dim(1), x.dim(1));
  for (int64_t t = 0; t < x.dim(0); ++t) {
    std::memcpy(out.data<float>() + t * out.stride(0), x.data<float>() + t * x.stride(0),
                static_cast<size_t>(x.dim(1)) * sizeof(float));
  }
}

void scale_rows(Tensor x, float factor) {
  if (factor == 1.0F) return;
  for (int64_t t = 0; t < x.dim(0); ++t) {
    float* row = x.data<float>() + t * x.stride(0);
    for (int64_t i = 0; i < x.dim(1); ++i) row[i] *= factor;
  }
}

}  // namespace eyrie::model
