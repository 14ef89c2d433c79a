#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/reference/reference.h"

namespace eyrie::ops::reference {
namespace {

void round_fp8(std::span<float> row) {
  float largest = 0;
  for (float x : row) largest = std::max(largest, std::fabs(x));
  const float scale = largest / 448.0f;
  for (float& x : row) {
    x = scale == 0 ? 0 : formats::decode_fp8_e4m3(formats::encode_fp8_e4m3(x / scale)) * scale;
  }
}

void round_mxfp4(std::span<float> row) {
  for (size_t begin = 0; begin < row.size(); begin += 32) {
    const auto block = row.subspan(begin, std::min<size_t>(32, row.size() - begin));
    float largest = 0;
    for (float x : block) largest = std::max(largest, std::fabs(x));
    const int exponent = formats::mxfp4_scale(largest) - 127;
    for (float& x : block) {
      const uint8_t code = formats::encode_fp4_e2m1(std::ldexp(x, -exponent));
      x = std::ldexp(formats::decode_fp4_e2m1(code), exponent);
    }
  }
}

// out[O] = weight[O, I] · x[I]
void matvec(const PreparedWeight& weight, const float* x, float* out) {
  const auto in = static_cast<size_t>(weight.in);
  std::vector<float> input(x, x + in);
  if (weight.activation == formats::ActivationRounding::kInt8) {
    round_int8(weight.format->block_in, input);
  } else {
    round_activation(weight.activation, weight.input_scale, input);
  }
  std::vector<float> row(in);
  for (const formats::Weight& source : weight.source) {
    for (int64_t o = 0; o < source.out; ++o) {
      source.format->decode_row(source, o, row);
      double sum = 0;
      for (size_t i = 0; i < in; ++i) sum += static_cast<double>(row[i]) * input[i];
      *out++ = static_cast<float>(sum);
    }
  }
}

}  // namespace

void round_activation(formats::ActivationRounding rounding, float input_scale,
                      std::span<float> row) {
  switch (rounding) {
    case formats::ActivationRounding::kNone:
      return;
    case formats::ActivationRounding::kFp8PerToken:
      return round_fp8(row);
    case formats::ActivationRounding::kMxfp4:
      return round_mxfp4(row);
    case formats::ActivationRounding::kNvfp4:
      return formats::round_activation_nvfp4(row, input_scale);
    case formats::ActivationRounding::kFp8Blocks:
      return formats::round_activation_fp8_blocks(row);
    case formats::ActivationRounding::kBf16:
      for (float& x : row) x = to_float(to_bf16(x));
      return;
    case formats::ActivationRounding::kInt8:
      CHECK(false, "int8 activations are rounded by round_int8()");
  }
}

void round_int8(int group, std::span<float> row) {
  for (size_t begin = 0; begin < row.size(); begin += static_cast<size_t>(group)) {
    const auto block = row.subspan(begin, static_cast<size_t>(group));
    float largest = 0;
    bool finite = true;
    for (const float x : block) {
      finite = finite && std::isfinite(x);
      largest = std::max(largest, std::fabs(x));
    }
    const float inverse = 127.0f / largest, scale = largest / 127.0f;
    for (float& x : block) {
      if (!finite) {
        x = std::nanf("");
      } else if (largest < 0x1p-100f) {
        x = 0;
      } else {
        x = std::nearbyint(x * inverse) * scale;
      }
    }
  }
}

PreparedWeight prepare(const Ctx&, std::span<const formats::Weight> rows_concatenated,
                       ActivationQuantization activation) {
  PreparedWeight prepared;
  prepared.in = rows_concatenated.front().in;
  prepared.format = rows_concatenated.front().format;
  prepared.activation = activation_rounding(*prepared.format, activation);
  for (const formats::Weight& weight : rows_concatenated) {
    prepared.out += weight.out;
    prepared.source.push_back(weight);
  }
  return prepared;
}

void linear(const Ctx&, const LinearArgs& a) {
  for (int64_t t = 0; t < a.x.dim(0); ++t) {
    matvec(*a.weight, a.x.data<float>() + t * a.x.stride(0),
           a.out.data<float>() + t * a.out.stride(0));
  }
}

void head_linear(const Ctx&, const HeadLinearArgs& a) {
  for (int64_t t = 0; t < a.x.dim(0); ++t) {
    for (int64_t h = 0; h < a.x.dim(1); ++h) {
      matvec(a.weights[static_cast<size_t>(h)],
             a.x.data<float>() + t * a.x.stride(0) + h * a.x.stride(1),
             a.out.data<float>() + t * a.out.stride(0) + h * a.out.stride(1));
    }
  }
}

void experts(const Ctx&, const ExpertsArgs& a) {
  const int64_t hidden = a.x.dim(1), top_k = a.ids.dim(1), width = a.down[0].in;
  std::vector<float> gate_up(static_cast<size_t>(2 * width)), act(static_cast<size_t>(width)),
      down(static_cast<size_t>(hidden));
  for (int64_t t = 0; t < a.x.dim(0); ++t) {
    std::vector<double> sum(static_cast<size_t>(hidden), 0.0);
    for (int64_t slot = 0; slot < top_k; ++slot) {
      const auto expert = static_cast<size_t>(a.ids.data<int32_t>()[t * top_k + slot]);
      matvec(a.gate_up[expert], a.x.data<float>() + t * a.x.stride(0), gate_up.data());
      for (size_t i = 0; i < act.size(); ++i) {
        const double gate = gate_up[i];
        act[i] = static_cast<float>(gate / (1.0 + std::exp(-gate)) * gate_up[act.size() + i]);
      }
      matvec(a.down[expert], act.data(), down.data());
      const double weight = a.weights.data<float>()[t * top_k + slot];
      for (size_t h = 0; h < down.size(); ++h) sum[h] += weight * down[h];
    }
    for (size_t h = 0; h < sum.size(); ++h) {
      a.out.data<float>()[t * a.out.stride(0) + static_cast<int64_t>(h)] =
          static_cast<float>(sum[h]);
    }
  }
}

}  // namespace eyrie::ops::reference
