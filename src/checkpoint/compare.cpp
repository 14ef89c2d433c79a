#include "checkpoint/compare.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>

namespace eyrie::checkpoint {
namespace {

using formats::Weight;

// Names to compare: modules of linear weights, and other tensors that are no part of one.
std::set<std::string> units_of(const Checkpoint& files) {
  std::set<std::string> units, parts;
  for (const std::string& name : files.names()) {
    const std::string module(module_of(name));
    if (module.empty() || files.find(name)->rank() > 2) continue;
    units.insert(module);
    for (std::string& part : files.weight_tensors(module)) parts.insert(std::move(part));
  }
  for (const std::string& name : files.names()) {
    if (!parts.contains(name)) units.insert(name);
  }
  return units;
}

bool is_plain(const Tensor& tensor) {
  return tensor.dtype() == DType::kF32 || tensor.dtype() == DType::kBF16 ||
         tensor.dtype() == DType::kF16;
}

// The unit as a matrix; empty when it is no floating-point one.
Weight weight_of(Checkpoint* files, const std::string& unit) {
  const std::string name = files->contains(unit) ? unit : unit + ".weight";
  const Tensor* tensor = files->find(name);
  if (tensor != nullptr && tensor->rank() == 2 && files->format_of(unit) != nullptr) {
    return files->stored_weight(unit);
  }
  if (tensor == nullptr) return files->stored_weight(unit);  // packed
  if (!is_plain(*tensor) || tensor->rank() == 0) return {};
  const int64_t columns = tensor->dim(tensor->rank() - 1);
  const int64_t rows = columns == 0 ? 0 : tensor->num_elements() / columns;
  return formats::plain_weight(files->require(name).reshape({rows, columns}));
}

TensorDifference difference(const std::string& name, const Weight& a, const Weight& b) {
  TensorDifference result;
  result.name = name;
  result.format_a = a.format->name;
  result.format_b = b.format->name;
  result.elements = a.out * a.in;
  std::vector<float> x(static_cast<size_t>(a.in)), y(x.size());
  double squares = 0, aa = 0, bb = 0, ab = 0;
  for (int64_t row = 0; row < a.out; ++row) {
    a.format->decode_row(a, row, x);
    b.format->decode_row(b, row, y);
    for (size_t i = 0; i < x.size(); ++i) {
      const double p = x[i], q = y[i];
      result.max_error = std::max(result.max_error, std::fabs(p - q));
      squares += (p - q) * (p - q);
      aa += p * p;
      bb += q * q;
      ab += p * q;
    }
  }
  const double count = std::max<double>(1, static_cast<double>(result.elements));
  result.rms_error = std::sqrt(squares / count);
  result.relative_rms = aa > 0 ? std::sqrt(squares / aa) : squares > 0 ? INFINITY : 0;
  result.cosine = aa > 0 && bb > 0 ? ab / std::sqrt(aa * bb) : squares > 0 ? 0 : 1;
  return result;
}

}  // namespace

Comparison compare(Checkpoint* a, Checkpoint* b) {
  Comparison result;
  const std::set<std::string> in_a = units_of(*a), in_b = units_of(*b);
  std::set_difference(in_b.begin(), in_b.end(), in_a.begin(), in_a.end(),
                      std::back_inserter(result.only_b));
  for (const std::string& name : in_a) {
    if (!in_b.contains(name)) {
      result.only_a.push_back(name);
      continue;
    }
    const Weight x = weight_of(a, name), y = weight_of(b, name);
    if (!x.empty() && !y.empty()) {
      if (x.out == y.out && x.in == y.in) {
        result.tensors.push_back(difference(name, x, y));
      } else {
        result.other_shape.push_back(name);
      }
    }
    a->drop_copies();
    b->drop_copies();
  }
  return result;
}

}  // namespace eyrie::checkpoint
