#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "ops/host_rows.h"
#include "ops/op_table.h"
#include "ops/reference/reference.h"

namespace eyrie::ops {
namespace reference {
namespace {

// The experts of the topk_group best groups; a group's score is the sum of its two best choices.
std::vector<int> allowed_experts(const RouteArgs& a, const std::vector<double>& choice) {
  const auto group_size = choice.size() / static_cast<size_t>(a.n_group);
  std::vector<double> group_score;
  for (int32_t g = 0; g < a.n_group; ++g) {
    const auto begin = choice.begin() + static_cast<std::ptrdiff_t>(g * group_size);
    std::vector<double> group(begin, begin + static_cast<std::ptrdiff_t>(group_size));
    std::sort(group.rbegin(), group.rend());
    group_score.push_back(group_size > 1 ? group[0] + group[1] : group[0]);
  }
  std::vector<int> groups(static_cast<size_t>(a.n_group));
  std::iota(groups.begin(), groups.end(), 0);
  std::stable_sort(groups.begin(), groups.end(), [&](int x, int y) {
    return group_score[static_cast<size_t>(x)] > group_score[static_cast<size_t>(y)];
  });
  groups.resize(static_cast<size_t>(a.topk_group));
  std::sort(groups.begin(), groups.end());
  std::vector<int> experts;
  for (int g : groups) {
    for (size_t i = 0; i < group_size; ++i) {
      experts.push_back(g * static_cast<int>(group_size) + static_cast<int>(i));
    }
  }
  return experts;
}

}  // namespace

void embedding(const Ctx&, const EmbeddingArgs& a) {
  for (size_t t = 0; t < a.ids.size(); ++t) {
    float* out = a.out.data<float>() + static_cast<int64_t>(t) * a.out.stride(0);
    a.table->format->decode_row(*a.table, a.ids[t], {out, static_cast<size_t>(a.table->in)});
  }
}

void rms_norm(const Ctx&, const RmsNormArgs& a) {
  const int64_t width = a.x.dim(1);
  for (int64_t t = 0; t < a.x.dim(0); ++t) {
    const float* x = a.x.data<float>() + t * a.x.stride(0);
    float* out = a.out.data<float>() + t * a.out.stride(0);
    double sum = 0;
    for (int64_t i = 0; i < width; ++i) sum += static_cast<double>(x[i]) * x[i];
    const double factor = 1.0 / std::sqrt(sum / static_cast<double>(width) + a.eps);
    for (int64_t i = 0; i < width; ++i) {
      out[i] = static_cast<float>(x[i] * factor * a.weight.data<float>()[i]);
    }
  }
}

void add(const Ctx&, const AddArgs& a) {
  for (int64_t t = 0; t < a.x.dim(0); ++t) {
    for (int64_t i = 0; i < a.x.dim(1); ++i) {
      a.residual.data<float>()[t * a.residual.stride(0) + i] +=
          a.x.data<float>()[t * a.x.stride(0) + i];
    }
  }
}

void silu_mul(const Ctx&, const SiluMulArgs& a) {
  const int64_t width = a.out.dim(1);
  for (int64_t t = 0; t < a.out.dim(0); ++t) {
    const float* gate = a.gate_up.data<float>() + t * a.gate_up.stride(0);
    for (int64_t i = 0; i < width; ++i) {
      const double g = gate[i];
      a.out.data<float>()[t * a.out.stride(0) + i] =
          static_cast<float>(g / (1.0 + std::exp(-g)) * gate[width + i]);
    }
  }
}

void rope(const Ctx&, const RopeArgs& a) {
  const auto half = static_cast<int64_t>(a.inv_freq.size());
  const bool interleaved = a.style == RopeStyle::kInterleaved;
  for (int64_t t = 0; t < a.x.dim(0); ++t) {
    for (int64_t i = 0; i < half; ++i) {
      const double angle = a.positions[static_cast<size_t>(t)] * a.inv_freq[static_cast<size_t>(i)];
      const double cosine = std::cos(angle) * a.magnitude, sine = std::sin(angle) * a.magnitude;
      for (int64_t h = 0; h < a.x.dim(1); ++h) {
        float* x = a.x.data<float>() + t * a.x.stride(0) + h * a.x.stride(1);
        float& first = x[interleaved ? 2 * i : i];
        float& second = x[interleaved ? 2 * i + 1 : i + half];
        const double u = first, v = second;
        first = static_cast<float>(u * cosine - v * sine);
        second = static_cast<float>(v * cosine + u * sine);
      }
    }
  }
}

void route(const Ctx&, const RouteArgs& a) {
  const int64_t num_experts = a.logits.dim(1), top_k = a.ids.dim(1);
  for (int64_t t = 0; t < a.logits.dim(0); ++t) {
    const float* logits = a.logits.data<float>() + t * a.logits.stride(0);
    std::vector<double> score, choice;
    for (int64_t e = 0; e < num_experts; ++e) {
      score.push_back(1.0 / (1.0 + std::exp(-static_cast<double>(logits[e]))));
      choice.push_back(score.back() + a.bias.data<float>()[e]);
    }
    std::vector<int> chosen = allowed_experts(a, choice);
    std::stable_sort(chosen.begin(), chosen.end(), [&](int x, int y) {
      return choice[static_cast<size_t>(x)] > choice[static_cast<size_t>(y)];
    });
    double sum = 1e-20;
    for (int64_t k = 0; k < top_k; ++k)
      sum += score[static_cast<size_t>(chosen[static_cast<size_t>(k)])];
    for (int64_t k = 0; k < top_k; ++k) {
      const int expert = chosen[static_cast<size_t>(k)];
      const double weight = score[static_cast<size_t>(expert)] / (a.norm_topk_prob ? sum : 1.0);
      a.ids.data<int32_t>()[t * top_k + k] = expert;
      a.weights.data<float>()[t * top_k + k] = static_cast<float>(weight * a.routed_scaling_factor);
    }
  }
}

void argmax(const Ctx&, const ArgmaxArgs& a) {
  for (int64_t t = 0; t < a.logits.dim(0); ++t) {
    const float* logits = a.logits.data<float>() + t * a.logits.stride(0);
    int32_t best = 0;
    for (int32_t i = 0; i < a.logits.dim(1) && best >= 0; ++i) {
      if (std::isnan(logits[i])) {
        best = -1;
      } else if (logits[i] > logits[best]) {
        best = i;
      }
    }
    a.ids[static_cast<size_t>(t)] = best;
  }
}

}  // namespace reference

const OpTable& reference_ops() {
  static constexpr OpTable kTable{
      .name = "reference",
      .prepare = reference::prepare,
      .embedding = reference::embedding,
      .rms_norm = reference::rms_norm,
      .add = reference::add,
      .linear = reference::linear,
      .head_linear = reference::head_linear,
      .silu_mul = reference::silu_mul,
      .rope = reference::rope,
      .cache_write = reference::cache_write,
      .mla_attention = reference::mla_attention,
      .gqa_attention = reference::gqa_attention,
      .route = reference::route,
      .experts = reference::experts,
      .argmax = reference::argmax,
      .gather_rows = host_gather_rows,
      .copy_rows = host_copy_rows,
      .scale_rows = host_scale_rows,
  };
  return kTable;
}

}  // namespace eyrie::ops
