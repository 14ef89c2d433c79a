// The pieces both models are built from: weights named as in the checkpoint, each with a forward
// that takes its output from the step's arena and returns a view. Weights are owned by the block
// (ops::PreparedWeight) or borrowed from the mapped checkpoint, which outlives the model.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "model/config.h"
#include "model/step.h"

namespace eyrie::model {

// What loading needs besides names: where weights come from and how they are prepared.
struct Loader {
  ops::Ctx ctx;
  checkpoint::Checkpoint& files;
  ops::ActivationQuantization activation = ops::ActivationQuantization::kOff;
};

struct RmsNorm {
  ops::PlacedTensor weight;  // [N] F32
  float eps = 0;

  static RmsNorm load(const Loader& loader, const std::string& prefix, int64_t size, double eps);
  Tensor forward(const Step& s, Tensor x) const;  // [T, N] → [T, N]
  void forward_in_place(const Step& s, Tensor x) const;
  void forward_into(const Step& s, Tensor out, Tensor x) const;
  // residual += x, then residual normalised into out.
  void add_and_forward_into(const Step& s, Tensor out, Tensor residual, Tensor x) const;
};

// One or several linear layers over the same input; outputs lie side by side in the row.
struct Linear {
  ops::PreparedWeight weight;

  struct Part {
    std::string name;
    int64_t out;
  };
  static Linear load(const Loader& loader, const std::vector<Part>& parts, int64_t in);
  static Linear load(const Loader& loader, const std::string& prefix, int64_t out, int64_t in) {
    return load(loader, {{prefix, out}}, in);
  }
  Tensor forward(const Step& s, Tensor x) const;  // [T, in] → [T, out]
};

// Of rope, one a pair of values, where the ops read them.
class Frequencies {
 public:
  Frequencies() = default;
  Frequencies(const ops::Ctx& ctx, std::vector<double> values);
  std::span<const double> values() const {
    return {placed_.view.data<double>(), static_cast<size_t>(placed_.view.num_elements())};
  }

 private:
  std::vector<double> host_;
  ops::PlacedTensor placed_;
};

// down(silu(gate x) · up x)
struct Mlp {
  Linear gate_up;  // [2·I, H], gate first
  Linear down;     // [H, I]

  static Mlp load(const Loader& loader, const std::string& prefix, int64_t hidden,
                  int64_t intermediate);
  Tensor forward(const Step& s, Tensor x) const;
};

}  // namespace eyrie::model
