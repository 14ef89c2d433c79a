#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "ops/gpu/backend.h"
#include "ops/gpu/cublaslt.h"
#include "ops/gpu/linear.h"
#include "ops/gpu/weights.h"

namespace eyrie::ops::gpu {
namespace {

constexpr int64_t kSmallElements = int64_t{1} << 20;
constexpr int64_t kUnpackTokens = 128;
constexpr int64_t kUnpackElements = int64_t{1} << 28;  // half a gigabyte of scratch

bool is_forced(std::string_view name) {
  static const std::string_view forced = [] {
    const char* const value = std::getenv("EYRIE_GPU_KERNELS");
    return std::string_view(value == nullptr ? "" : value);
  }();
  if (!forced.empty() && forced != "generic" && forced != "sm90" && forced != "cublaslt") {
    fail("EYRIE_GPU_KERNELS is '{}', expected generic, sm90 or cublaslt", forced);
  }
  return forced == name;
}
bool is_free() { return !is_forced("generic") && !is_forced("sm90") && !is_forced("cublaslt"); }

bool can_run_library(const Multiply& m) {
  return m.layout == Layout::kBF16 && m.tiles == nullptr && m.num_matrices == 1 && !m.paired &&
         m.x_rows == nullptr && !m.fixed_order && (is_forced("cublaslt") || is_free()) &&
         open_cublaslt();
}
bool run_library(const Multiply& m, void* stream) {
  return multiply_cublaslt({.tokens = m.num_tokens,
                            .rows = m.rows,
                            .inputs = m.inputs,
                            .x = m.x,
                            .x_stride = m.x_stride,
                            .w = m.matrix.data,
                            .w_stride = m.stride,
                            .out = m.out,
                            .out_stride = m.out_stride,
                            .out_is_f32 = m.out_is_f32},
                           stream);
}

struct Choice {
  std::string_view name;
  bool (*can_run)(const Multiply&);
  bool (*run)(const Multiply&, void* stream);  // false: it could not after all
};
// In order of preference. The last one runs everything.
constexpr std::array kChoices = {
    Choice{"cublaslt", can_run_library, run_library},
    Choice{"sm90", [](const Multiply& m) { return !is_forced("generic") && can_multiply_sm90(m); },
           [](const Multiply& m, void* stream) {
             launch_multiply_sm90(m, stream);
             return true;
           }},
    Choice{"generic", [](const Multiply&) { return true; },
           [](const Multiply& m, void* stream) {
             launch_multiply_generic(m, stream);
             return true;
           }},
};

// Rows as kernels read them: bf16, 16-byte aligned. A copy in the arena where they are not.
Tensor as_bf16(const Ctx& ctx, const Tensor& x) {
  const int64_t width = x.dim(1);
  const bool is_aligned = reinterpret_cast<uintptr_t>(x.raw()) % 16 == 0 && x.stride(0) % 8 == 0;
  if (x.dtype() == DType::kBF16 && (is_aligned || width % 8 != 0)) return x;
  const Tensor all = ctx.arena->empty(DType::kBF16, {x.dim(0), align_up(width, int64_t{8})});
  const Tensor copy = all.columns(0, width);
  gpu::copy_rows(ctx, {.out = copy, .x = x});
  return copy;
}

// Bytes from matrix to matrix where they are laid out evenly, as weights prepared in turn are; 0
// where they are not.
int64_t even_stride(const WeightSpan& weights) {
  if (weights.size() < 2) return 0;
  const int64_t step = weights[1].storage.data() - weights[0].storage.data();
  for (size_t i = 1; i < weights.size(); ++i) {
    if (weights[i].storage.data() - weights[i - 1].storage.data() != step) return 0;
  }
  return std::max<int64_t>(step, 0);
}

// For many rows a packed matrix is worth decoding first: arithmetic is then all that counts.
bool is_worth_unpacking(const Multiply& m) {
  return m.layout != Layout::kBF16 && !m.fixed_order && is_free() &&
         m.num_tokens >= kUnpackTokens && m.rows * m.inputs <= kUnpackElements && open_cublaslt();
}

}  // namespace

bool are_products_generic() { return is_forced("generic"); }

bool is_order_fixed(const Ctx& ctx, const Multiply& m) {
  return ctx.deterministic || m.num_matrices * m.rows * m.inputs <= kSmallElements;
}

std::string_view multiply(const Multiply& m, void* stream) {
  for (const Choice& choice : kChoices) {
    if (choice.can_run(m) && choice.run(m, stream)) return choice.name;
  }
  return {};
}

void multiply_chain(const Multiply& first, const Chained& second, void* stream) {
  if (!is_forced("generic") && first.layout == second.m.layout && can_multiply_sm90(first) &&
      can_multiply_sm90(second.m)) {
    launch_chain_sm90(first, second, stream);
    return;
  }
  multiply(first, stream);
  multiply(second.m, stream);
}

Multiply multiply_of(const PreparedWeight& weight) {
  Multiply m{};
  m.layout = layout_of(*weight.format);
  m.matrix = packed_matrix(weight);
  m.rows = weight.out;
  m.inputs = weight.in;
  m.stride = packed_stride(m.layout, weight.in);
  m.num_matrices = 1;
  m.tile_tokens = kMaxTokenTile;
  return m;
}

void linear(const Ctx& ctx, const LinearArgs& a) {
  if (a.x.dim(0) == 0) return;
  const ArenaScope scratch(*ctx.arena);
  const Tensor x = as_bf16(ctx, a.x);
  Multiply m = multiply_of(*a.weight);
  m.x = x.raw();
  m.x_stride = x.stride(0);
  m.out = a.out.raw();
  m.out_is_f32 = a.out.dtype() == DType::kF32;
  m.out_stride = a.out.stride(0);
  m.num_tokens = a.x.dim(0);
  m.fixed_order = is_order_fixed(ctx, m);
  if (is_worth_unpacking(m)) {
    const Tensor plain = ctx.arena->empty(DType::kBF16, {m.rows, m.inputs});
    launch_unpack(m.matrix, m.layout, m.rows, m.inputs, m.stride, plain.raw(), m.inputs,
                  ctx.stream);
    m.layout = Layout::kBF16;
    m.matrix = {.data = static_cast<const uint8_t*>(plain.raw()), .row_scale = nullptr};
    m.stride = m.inputs;
  }
  multiply(m, ctx.stream);
}

bool multiply_heads(const Ctx& ctx, const HeadLinearArgs& a, const Rope& turned) {
#if defined(EYRIE_HIP)
  static_cast<void>(ctx), static_cast<void>(a), static_cast<void>(turned);
  return false;
#else
  // Up to so many rows our kernel of small matrices is as fast as cuBLASLt's, and one launch less.
  constexpr int64_t kHeadTokens = 16;
  const auto type_of = [](const Tensor& t) {
    return t.dtype() == DType::kF32 ? Type::kF32 : Type::kBF16;
  };
  const auto heads_of = [&](const Tensor& t) {
    return Heads{t.raw(), t.stride(0), t.stride(1), type_of(t)};
  };
  const Multiply like = multiply_of(a.weights.front());
  const HeadProduct product{.matrices = reinterpret_cast<const PackedMatrix*>(a.weights.table),
                            .stride = like.stride,
                            .rows = static_cast<int32_t>(like.rows),
                            .inputs = static_cast<int32_t>(like.inputs),
                            .x = heads_of(a.x),
                            .out = heads_of(a.out),
                            .num_tokens = static_cast<int32_t>(a.x.dim(0)),
                            .num_heads = static_cast<int32_t>(a.x.dim(1)),
                            .rope = turned};
  const bool is_wanted = is_free() && (ctx.deterministic || a.x.dim(0) <= kHeadTokens);
  if (!is_wanted || like.layout != Layout::kBF16 || !can_multiply_heads(product)) return false;
  launch_multiply_heads(product, ctx.stream);
  return true;
#endif
}

void head_linear(const Ctx& ctx, const HeadLinearArgs& a) {
  const int64_t T = a.x.dim(0), heads = a.x.dim(1), width = a.x.dim(2);
  if (T == 0 || multiply_heads(ctx, a, {})) return;
  CHECK(a.weights.table != nullptr, "head_linear: weights on a GPU come as a stack");
  const ArenaScope scratch(*ctx.arena);
  Tensor x = a.x;
  if (x.dtype() != DType::kBF16) {
    x = ctx.arena->empty(DType::kBF16, {T, heads, width});
    for (int64_t t = 0; t < T; ++t) {
      const auto* from = a.x.data<float>() + t * a.x.stride(0);
      launch_round_rows(x.data<bf16>() + t * x.stride(0), x.stride(1), from, a.x.stride(1), heads,
                        width, ctx.stream);
    }
  }
  Multiply m = multiply_of(a.weights.front());
  m.matrices = reinterpret_cast<const PackedMatrix*>(a.weights.table);
  m.num_matrices = heads;
  m.x = x.raw();
  m.x_stride = x.stride(0);
  m.x_matrix_stride = x.stride(1);
  m.out = a.out.raw();
  m.out_is_f32 = a.out.dtype() == DType::kF32;
  m.out_stride = a.out.stride(0);
  m.out_matrix_stride = a.out.stride(1);
  m.num_tokens = T;
  m.fixed_order = is_order_fixed(ctx, m);
  const int64_t step = even_stride(a.weights);
  if (m.layout == Layout::kBF16 && step > 0 && !m.fixed_order &&
      (is_free() || is_forced("cublaslt")) &&
      multiply_cublaslt({.tokens = T,
                         .rows = m.rows,
                         .inputs = m.inputs,
                         .x = m.x,
                         .x_stride = m.x_stride,
                         .w = a.weights[0].storage.data(),
                         .w_stride = m.stride,
                         .out = m.out,
                         .out_stride = m.out_stride,
                         .out_is_f32 = m.out_is_f32,
                         .batch = heads,
                         .x_batch = m.x_matrix_stride,
                         .w_batch = step / int64_t{sizeof(bf16)},
                         .out_batch = m.out_matrix_stride},
                        ctx.stream)) {
    return;
  }
  multiply(m, ctx.stream);
}

}  // namespace eyrie::ops::gpu
