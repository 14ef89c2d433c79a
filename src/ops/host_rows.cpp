#include "ops/host_rows.h"

#include <cstring>

namespace eyrie::ops {
namespace {

float* row_of(const Tensor& x, int64_t row) { return x.data<float>() + row * x.stride(0); }

void copy_row(const Tensor& out, int64_t to, const Tensor& x, int64_t from) {
  std::memcpy(row_of(out, to), row_of(x, from), static_cast<size_t>(x.dim(1)) * sizeof(float));
}

}  // namespace

void host_gather_rows(const Ctx&, const GatherRowsArgs& a) {
  for (size_t i = 0; i < a.rows.size(); ++i)
    copy_row(a.out, static_cast<int64_t>(i), a.x, a.rows[i]);
}

void host_copy_rows(const Ctx&, const CopyRowsArgs& a) {
  for (int64_t t = 0; t < a.x.dim(0); ++t) copy_row(a.out, t, a.x, t);
}

void host_scale_rows(const Ctx&, const ScaleRowsArgs& a) {
  for (int64_t t = 0; t < a.x.dim(0); ++t) {
    float* row = row_of(a.x, t);
    for (int64_t i = 0; i < a.x.dim(1); ++i) row[i] *= a.factor;
  }
}

}  // namespace eyrie::ops
