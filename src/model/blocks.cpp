#include "model/blocks.h"

#include "base/log.h"

namespace eyrie::model {

RmsNorm RmsNorm::load(const Loader& loader, const std::string& prefix, int64_t size, double eps) {
  return {.weight = ops::place(loader.ctx, loader.files.tensor_f32(prefix + ".weight", {size})),
          .eps = static_cast<float>(eps)};
}

Tensor RmsNorm::forward(const Step& s, Tensor x) const {
  const Tensor out = s.act({x.dim(0), x.dim(1)});
  forward_into(s, out, x);
  return out;
}

void RmsNorm::forward_in_place(const Step& s, Tensor x) const { forward_into(s, x, x); }

void RmsNorm::forward_into(const Step& s, Tensor out, Tensor x) const {
  ops::rms_norm(s.ctx, {.out = out, .x = x, .weight = weight.view, .eps = eps});
}

void RmsNorm::add_and_forward_into(const Step& s, Tensor out, Tensor residual, Tensor x) const {
  ops::add_rms_norm(s.ctx,
                    {.residual = residual, .x = x, .weight = weight.view, .eps = eps, .out = out});
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
  const Tensor out = s.act({x.dim(0), weight.out});
  ops::linear(s.ctx, {.out = out, .x = x, .weight = &weight});
  return out;
}

Frequencies::Frequencies(const ops::Ctx& ctx, std::vector<double> values)
    : host_(std::move(values)),
      placed_(ops::place(ctx, Tensor::of(host_.data(), {static_cast<int64_t>(host_.size())}))) {}

Mlp Mlp::load(const Loader& loader, const std::string& prefix, int64_t hidden,
              int64_t intermediate) {
  return {.gate_up = Linear::load(
              loader, {{prefix + ".gate_proj", intermediate}, {prefix + ".up_proj", intermediate}},
              hidden),
          .down = Linear::load(loader, prefix + ".down_proj", hidden, intermediate)};
}

Tensor Mlp::forward(const Step& s, Tensor x) const {
  const Tensor gate_up_out = gate_up.forward(s, x);         // [T, 2·I]
  const Tensor hidden = s.act({x.dim(0), down.weight.in});  // [T, I]
  ops::silu_mul(s.ctx, {.out = hidden, .gate_up = gate_up_out});
  return down.forward(s, hidden);  // [T, H]
}

}  // namespace eyrie::model
