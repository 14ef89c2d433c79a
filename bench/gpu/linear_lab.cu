// Linear layers and experts on a GPU, without the rest of the program: every kernel against sums in
// double on the host, then times. `linear_lab check` and `linear_lab bench [seconds]`.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "ops/gpu/compat.h"
#include "ops/gpu/cublaslt.h"
#include "ops/gpu/kernels_linear.h"
#include "ops/gpu/linear_codes.h"

namespace eyrie::ops::gpu {

void fail_runtime(const char* what, int code) {
  std::printf("FAILED %s: %s\n", what, cudaGetErrorString(static_cast<cudaError_t>(code)));
  std::exit(1);
}
bool overlaps_launches() {
  static const bool on = [] {
    const char* value = std::getenv("EYRIE_GPU_PDL");
    return value == nullptr || std::strcmp(value, "0") != 0;
  }();
  return on;
}

namespace {

constexpr double kCopyRate = 4.26e12;
int num_failed = 0, num_cases = 0;

// ---- memory -------------------------------------------------------------------------------------

template <typename T>
struct Device {
  T* data = nullptr;
  size_t count = 0;
  explicit Device(size_t n, int fill = 0xff) : count(n) {
    check_runtime(cudaMalloc(&data, n * sizeof(T) + 256), "cudaMalloc");
    check_runtime(cudaMemset(data, fill, n * sizeof(T)), "cudaMemset");
  }
  explicit Device(const std::vector<T>& host) : Device(host.size()) {
    check_runtime(cudaMemcpy(data, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice),
                  "copy");
  }
  Device(Device&& o) noexcept : data(o.data), count(o.count) { o.data = nullptr; }
  Device(const Device&) = delete;
  ~Device() { cudaFree(data); }
  std::vector<T> host() const {
    std::vector<T> h(count);
    check_runtime(cudaMemcpy(h.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost), "copy");
    return h;
  }
};

float bf16_value(uint16_t bits) {
  const uint32_t u = uint32_t{bits} << 16;
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}
uint16_t bf16_bits(float f) {
  uint32_t u;
  std::memcpy(&u, &f, 4);
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
double e2m1(uint32_t c) {
  static const double v[8] = {0, .5, 1, 1.5, 2, 3, 4, 6};
  return (c & 8) ? -v[c & 7] : v[c & 7];
}
double e4m3(uint32_t c) {
  const int e = (c >> 3) & 15, m = c & 7;
  const double v = e == 0 ? std::ldexp(m, -9) : std::ldexp(8 + m, e - 10);
  return (c & 128) ? -v : v;
}

// ---- weights as they lie in files ---------------------------------------------------------------

struct Raw {
  Encoding encoding;
  Layout layout;
  int64_t rows, inputs, scale_columns = 0;
  float global = 1.0f;
  std::vector<uint8_t> codes, scales;

  double value(int64_t r, int64_t k) const {
    const auto* f = reinterpret_cast<const float*>(scales.data());
    const auto* h = reinterpret_cast<const uint16_t*>(scales.data());
    const int64_t i = r * inputs + k;
    if (encoding == Encoding::kBF16)
      return bf16_value(reinterpret_cast<const uint16_t*>(codes.data())[i]);
    if (encoding == Encoding::kFp8) return e4m3(codes[i]) * f[r];
    if (encoding == Encoding::kFp8Block)
      return e4m3(codes[i]) * f[r / 128 * scale_columns + k / 128];
    const uint32_t c = (codes[i / 2] >> (4 * (i & 1))) & 15;
    if (encoding == Encoding::kMxfp4)
      return e2m1(c) * std::ldexp(1.0, scales[r * scale_columns + k / 32] - 127);
    if (encoding == Encoding::kNvfp4)
      return e2m1(c) * (e4m3(scales[r * scale_columns + k / 16]) * double{global});
    return (static_cast<int>(c) - 8) * double{bf16_value(h[r * scale_columns + k / 32])};
  }
  std::vector<double> decoded() const {
    std::vector<double> all(static_cast<size_t>(rows * inputs));
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t k = 0; k < inputs; ++k) all[static_cast<size_t>(r * inputs + k)] = value(r, k);
    return all;
  }
};

Raw make_raw(Layout layout, int64_t rows, int64_t inputs, uint32_t seed) {
  static const Encoding encodings[] = {Encoding::kBF16, Encoding::kMxfp4, Encoding::kNvfp4,
                                       Encoding::kInt4, Encoding::kFp8,   Encoding::kFp8Block};
  Raw raw{encodings[static_cast<int>(layout)], layout, rows, inputs, 0, 1.0f, {}, {}};
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  const auto n = static_cast<size_t>(rows * inputs);
  if (layout == Layout::kBF16) {
    raw.codes.resize(n * 2);
    for (size_t i = 0; i < n; ++i)
      reinterpret_cast<uint16_t*>(raw.codes.data())[i] = bf16_bits(normal(rng) * 0.05f);
    return raw;
  }
  const bool is_fp8 = layout == Layout::kFp8 || layout == Layout::kFp8Block;
  raw.codes.resize(is_fp8 ? n : n / 2);
  for (auto& c : raw.codes) {
    c = static_cast<uint8_t>(rng());
    if (is_fp8 && (c & 0x7f) == 0x7f) c ^= 1;
  }
  const auto scale = [&](size_t count, size_t bytes) { raw.scales.resize(count * bytes); };
  if (layout == Layout::kMxfp4) {
    raw.scale_columns = inputs / 32;
    scale(static_cast<size_t>(rows * raw.scale_columns), 1);
    for (auto& s : raw.scales) s = static_cast<uint8_t>(118 + rng() % 6);
  } else if (layout == Layout::kNvfp4) {
    raw.scale_columns = inputs / 16;
    raw.global = 3e-4f;
    scale(static_cast<size_t>(rows * raw.scale_columns), 1);
    for (auto& s : raw.scales) s = rng() % 16 == 0 ? rng() % 8 : 0x30 + rng() % 0x48;
  } else if (layout == Layout::kInt4) {
    raw.scale_columns = inputs / 32;
    scale(static_cast<size_t>(rows * raw.scale_columns), 2);
    for (size_t i = 0; i < raw.scales.size() / 2; ++i)
      reinterpret_cast<uint16_t*>(raw.scales.data())[i] = bf16_bits(0.01f + 0.01f * (rng() % 100) / 100);
  } else if (layout == Layout::kFp8) {
    scale(static_cast<size_t>(rows), 4);
    for (int64_t i = 0; i < rows; ++i)
      reinterpret_cast<float*>(raw.scales.data())[i] = 1e-3f * (1 + rng() % 100 / 50.0f);
  } else {
    raw.scale_columns = (inputs + 127) / 128;
    scale(static_cast<size_t>((rows + 127) / 128 * raw.scale_columns), 4);
    for (size_t i = 0; i < raw.scales.size() / 4; ++i)
      reinterpret_cast<float*>(raw.scales.data())[i] = 1e-3f * (1 + rng() % 100 / 50.0f);
  }
  return raw;
}

struct Packed {
  Device<uint8_t> data;
  Device<float> row_scale;
  int64_t stride;
  Layout layout;
  PackedMatrix matrix() const {
    const bool has = layout == Layout::kFp8 || layout == Layout::kNvfp4;
    return {data.data, has ? row_scale.data : nullptr};
  }
};
int64_t stride_of(Layout layout, int64_t inputs) {
  const int64_t unit = unit_inputs(layout);
  const int64_t units = (inputs + unit - 1) / unit;
  return layout == Layout::kBF16 ? units * 64 : units;
}
size_t packed_bytes(Layout layout, int64_t rows, int64_t inputs) {
  const int64_t tiles = (rows + 15) / 16;
  return static_cast<size_t>(layout == Layout::kBF16
                                 ? tiles * 16 * stride_of(layout, inputs) * 2
                                 : tiles * stride_of(layout, inputs) * unit_bytes(layout));
}
void pack_into(const Raw& raw, const Device<uint8_t>& codes, const Device<uint8_t>& scales,
               uint8_t* to, float* row_scale, int64_t first_row) {
  PackWeight a{};
  a.encoding = raw.encoding;
  a.layout = raw.layout;
  a.codes = codes.data;
  a.scales = scales.data;
  a.scale_columns = raw.scale_columns;
  a.global_scale = raw.global;
  a.rows = raw.rows;
  a.inputs = raw.inputs;
  a.to = to;
  a.row_scale = row_scale;
  a.first_row = first_row;
  a.stride = stride_of(raw.layout, raw.inputs);

  launch_pack(a, nullptr);
}
Packed pack(const Raw& raw) {
  Packed p{Device<uint8_t>(packed_bytes(raw.layout, raw.rows, raw.inputs), 0),
           Device<float>(static_cast<size_t>(raw.rows)), stride_of(raw.layout, raw.inputs),
           raw.layout};
  const Device<uint8_t> codes(raw.codes);
  const Device<uint8_t> scales(raw.scales.empty() ? std::vector<uint8_t>(16) : raw.scales);
  pack_into(raw, codes, scales, p.data.data, p.row_scale.data, 0);
  check_runtime(cudaDeviceSynchronize(), "pack");
  return p;
}

const char* name_of(Layout layout) {
  static const char* names[] = {"bf16", "mxfp4", "nvfp4", "int4", "fp8", "fp8-block"};
  return names[static_cast<int>(layout)];
}

// ---- checks -------------------------------------------------------------------------------------

void report(const std::string& what, double error, double limit) {
  ++num_cases;
  const bool ok = error <= limit;  // NaN fails
  if (!ok) ++num_failed;
  if (!ok || std::getenv("VERBOSE") != nullptr)
    std::printf("%s %-60s error %.2e (limit %.1e)\n", ok ? "ok  " : "FAIL", what.c_str(), error,
                limit);
}

std::vector<uint16_t> random_bf16(size_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> v(n);
  for (auto& x : v) x = bf16_bits(normal(rng));
  return v;
}

double silu(double x) { return x / (1 + std::exp(-x)); }

// ‖out − right‖ / ‖right‖
struct Norm {
  double difference = 0, size = 0;
  void add(double got, double right) {
    difference += (got - right) * (got - right);
    size += right * right;
  }
  double error() const { return std::sqrt(difference / std::max(size, 1e-300)); }
};

using Launch = void (*)(const Multiply&, void*);

void check_multiply(Layout layout, int64_t rows, int64_t inputs, int64_t tokens, bool paired,
                    bool f32_out, bool fixed_order) {
  if ((layout != Layout::kBF16) && inputs % 32 != 0) return;
  const Raw raw = make_raw(layout, rows, inputs, static_cast<uint32_t>(rows * 31 + inputs));
  const Packed packed = pack(raw);
  const int64_t x_stride = (inputs + 7) / 8 * 8 + 16;
  const auto x = random_bf16(static_cast<size_t>(tokens * x_stride), 7);
  const Device<uint16_t> x_device(x);
  const int64_t outputs = paired ? rows / 2 : rows, out_stride = outputs + 5;
  std::vector<double> right(static_cast<size_t>(tokens * outputs));
  std::vector<double> row(static_cast<size_t>(inputs));
  std::vector<double> sums(static_cast<size_t>(tokens * rows));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t k = 0; k < inputs; ++k) row[k] = raw.value(r, k);
    for (int64_t t = 0; t < tokens; ++t) {
      double s = 0;
      for (int64_t k = 0; k < inputs; ++k) s += row[k] * bf16_value(x[t * x_stride + k]);
      sums[t * rows + r] = s;
    }
  }
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t r = 0; r < outputs; ++r)
      right[t * outputs + r] =
          paired ? silu(sums[t * rows + r]) * sums[t * rows + r + outputs] : sums[t * rows + r];
  Multiply m{};
  m.layout = layout;
  m.matrix = packed.matrix();
  m.rows = rows;
  m.inputs = inputs;
  m.stride = packed.stride;
  m.paired = paired;
  m.x = x_device.data;
  m.x_stride = x_stride;
  m.out_is_f32 = f32_out;
  m.out_stride = out_stride;
  m.num_matrices = 1;
  m.num_tokens = tokens;
  m.tile_tokens = kMaxTokenTile;
  m.fixed_order = fixed_order;
  for (int kernel = 0; kernel < 2; ++kernel) {
    if (kernel == 1 && !can_multiply_sm90(m)) continue;
    const Device<uint8_t> out(static_cast<size_t>(tokens * out_stride * (f32_out ? 4 : 2)));
    m.out = out.data;
    (kernel == 0 ? launch_multiply_generic : launch_multiply_sm90)(m, nullptr);
    check_runtime(cudaDeviceSynchronize(), "multiply");
    const auto bytes = out.host();
    Norm norm;
    bool spilled = false;
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t r = 0; r < out_stride; ++r) {
        const size_t i = static_cast<size_t>(t * out_stride + r);
        float got;
        if (f32_out) {
          std::memcpy(&got, &bytes[i * 4], 4);
        } else {
          uint16_t b;
          std::memcpy(&b, &bytes[i * 2], 2);
          got = bf16_value(b);
        }
        if (r < outputs) {
          norm.add(got, right[t * outputs + r]);
        } else if (!std::isnan(got)) {
          spilled = true;
        }
      }
    }
    char what[200];
    std::snprintf(what, sizeof what, "%s %s [%ld, %ld] x %ld%s%s%s", kernel == 0 ? "generic" : "sm90",
                  name_of(layout), static_cast<long>(rows), static_cast<long>(inputs),
                  static_cast<long>(tokens), paired ? " paired" : "", f32_out ? " f32" : "",
                  fixed_order ? " fixed" : "");
    const double limit = (f32_out ? 1e-5 : 4e-3) + (layout == Layout::kInt4 ? 3e-3 : 0);
    report(what, spilled ? NAN : norm.error(), limit);
  }
}

// Experts as the op runs them: sort, gate/up, down, combine.
struct ExpertsRun {
  Layout layout;
  int64_t hidden, width;
  int32_t num_experts, top_k;
  bool shared;
  std::vector<PackedMatrix> gate_up, down;
  int64_t gate_up_stride, down_stride;
  Device<PackedMatrix> gate_up_table, down_table;

  ExpertsRun(Layout l, int64_t h, int64_t w, int32_t e, int32_t k, bool s,
             std::vector<PackedMatrix> gu, std::vector<PackedMatrix> d)
      : layout(l), hidden(h), width(w), num_experts(e), top_k(k), shared(s), gate_up(std::move(gu)),
        down(std::move(d)), gate_up_stride(stride_of(l, h)), down_stride(stride_of(l, w)),
        gate_up_table(gate_up), down_table(down) {}
};
struct ExpertsScratch {
  Device<TokenTile> tiles;
  Device<int32_t> counters, token_of, position_of;
  Device<uint16_t> hidden, y;
  ExpertsScratch(const ExpertsRun& e, int64_t tokens)
      : tiles(static_cast<size_t>(tokens * e.top_k + tokens + e.num_experts)), counters(3),
        token_of(static_cast<size_t>(tokens * (e.top_k + 1))),
        position_of(static_cast<size_t>(tokens * e.top_k)),
        hidden(static_cast<size_t>(tokens * (e.top_k + 1) * e.width)),
        y(static_cast<size_t>(tokens * (e.top_k + 1) * e.hidden)) {}
};
void run_experts(const ExpertsRun& e, ExpertsScratch& s, int64_t tokens, const uint16_t* x,
                 const int32_t* ids, const float* weights, void* out, bool f32_out, int32_t tile,
                 Launch multiply, void* stream, int only = 15) {
  Sort sort{ids, static_cast<int32_t>(tokens), e.top_k, e.num_experts, e.shared, tile, s.tiles.data,
            s.counters.data + 2, s.counters.data, s.token_of.data, s.position_of.data};
  if (only & 1) launch_sort(sort, stream);
  Multiply m{};
  m.layout = e.layout;
  m.matrices = e.gate_up_table.data;
  m.rows = 2 * e.width;
  m.inputs = e.hidden;
  m.stride = e.gate_up_stride;
  m.paired = true;
  m.x = x;
  m.x_stride = e.hidden;
  m.x_rows = s.token_of.data;
  m.out = s.hidden.data;
  m.out_stride = e.width;
  m.num_matrices = e.num_experts + (e.shared ? 1 : 0);
  m.tiles = s.tiles.data;
  m.num_tiles = s.counters.data + 2;
  m.next_task = s.counters.data;
  m.max_tiles = static_cast<int64_t>(s.tiles.count);
  m.tile_tokens = tile;
  if (only & 2) multiply(m, stream);
  m.matrices = e.down_table.data;
  m.rows = e.hidden;
  m.inputs = e.width;
  m.stride = e.down_stride;
  m.paired = false;
  m.x = s.hidden.data;
  m.x_stride = e.width;
  m.x_rows = nullptr;
  m.out = s.y.data;
  m.out_stride = e.hidden;
  m.next_task = s.counters.data + 1;
  if (only & 4) multiply(m, stream);
  Combine c{};
  c.out = out;
  c.out_is_f32 = f32_out;
  c.out_stride = e.hidden;
  c.y = s.y.data;
  c.y_stride = e.hidden;
  c.position_of = s.position_of.data;
  c.weights = weights;
  c.shared = e.shared ? s.y.data + tokens * e.top_k * e.hidden : nullptr;
  c.shared_stride = e.hidden;
  c.num_tokens = static_cast<int32_t>(tokens);
  c.top_k = e.top_k;
  c.width = e.hidden;
  if (only & 8) launch_combine(c, stream);
}

void check_experts(Layout layout, int64_t hidden, int64_t width, int32_t num_experts, int32_t top_k,
                   int64_t tokens, bool shared, int32_t tile) {
  std::vector<std::vector<double>> gate_up, down;
  std::vector<Packed> packed;
  std::vector<PackedMatrix> gu, d;
  const int32_t total = num_experts + (shared ? 1 : 0);
  for (int32_t e = 0; e < total; ++e) {
    const Raw gu_raw = make_raw(layout, 2 * width, hidden, static_cast<uint32_t>(100 + e));
    const Raw d_raw = make_raw(layout, hidden, width, static_cast<uint32_t>(900 + e));
    gate_up.push_back(gu_raw.decoded());
    down.push_back(d_raw.decoded());
    packed.push_back(pack(gu_raw));
    gu.push_back(packed.back().matrix());
    packed.push_back(pack(d_raw));
    d.push_back(packed.back().matrix());
  }
  const ExpertsRun run(layout, hidden, width, num_experts, top_k, shared, gu, d);
  const auto x = random_bf16(static_cast<size_t>(tokens * hidden), 3);
  std::mt19937 rng(5);
  std::vector<int32_t> ids(static_cast<size_t>(tokens * top_k));
  std::vector<float> weights(ids.size());
  for (int64_t t = 0; t < tokens; ++t) {
    for (int32_t s = 0; s < top_k; ++s) {
      ids[t * top_k + s] = static_cast<int32_t>((rng() % 3 == 0 ? 0 : rng()) % num_experts);
      if (t % 7 == 6) ids[t * top_k + s] = -1;
      weights[t * top_k + s] = 0.1f + static_cast<float>(rng() % 100) / 100;
    }
  }
  std::vector<double> right(static_cast<size_t>(tokens * hidden), 0.0);
  const auto visit = [&](int64_t t, int32_t e, double weight) {
    std::vector<double> sums(2 * width), act(width);
    for (int64_t r = 0; r < 2 * width; ++r)
      for (int64_t k = 0; k < hidden; ++k)
        sums[r] += gate_up[e][r * hidden + k] * bf16_value(x[t * hidden + k]);
    for (int64_t i = 0; i < width; ++i) act[i] = silu(sums[i]) * sums[width + i];
    for (int64_t r = 0; r < hidden; ++r) {
      double s = 0;
      for (int64_t k = 0; k < width; ++k) s += down[e][r * width + k] * act[k];
      right[t * hidden + r] += weight * s;
    }
  };
  for (int64_t t = 0; t < tokens; ++t) {
    for (int32_t s = 0; s < top_k; ++s)
      if (ids[t * top_k + s] >= 0) visit(t, ids[t * top_k + s], weights[t * top_k + s]);
    if (shared) visit(t, num_experts, 1.0);
  }
  const Device<uint16_t> x_device(x);
  const Device<int32_t> ids_device(ids);
  const Device<float> weights_device(weights);
  ExpertsScratch scratch(run, tokens);
  for (int kernel = 0; kernel < 2; ++kernel) {
    const Device<float> out(static_cast<size_t>(tokens * hidden));
    run_experts(run, scratch, tokens, x_device.data, ids_device.data, weights_device.data, out.data,
                true, tile, kernel == 0 ? launch_multiply_generic : launch_multiply_sm90, nullptr);
    check_runtime(cudaDeviceSynchronize(), "experts");
    const auto got = out.host();
    Norm norm;
    for (size_t i = 0; i < got.size(); ++i) norm.add(got[i], right[i]);
    char what[200];
    std::snprintf(what, sizeof what, "%s %s experts %d of %d, [%ld, %ld] x %ld%s tiles of %d",
                  kernel == 0 ? "generic" : "sm90", name_of(layout), top_k, num_experts,
                  static_cast<long>(hidden), static_cast<long>(width), static_cast<long>(tokens),
                  shared ? " shared" : "", tile);
    report(what, norm.error(), 8e-3);
  }
}

void check_plain(int64_t rows, int64_t inputs, int64_t tokens) {
  const Raw raw = make_raw(Layout::kBF16, rows, inputs, 11);
  const Packed packed = pack(raw);
  const auto x = random_bf16(static_cast<size_t>(tokens * inputs), 7);
  const Device<uint16_t> xd(x);
  const Device<float> out(static_cast<size_t>(tokens * rows));
  PlainProduct p{tokens, rows, inputs, xd.data, inputs, packed.data.data, packed.stride, out.data, rows, true};
  if (!multiply_cublaslt(p, nullptr)) {
    std::printf("cublasLt: not there or no algorithm for [%ld, %ld] x %ld\n", long(rows), long(inputs), long(tokens));
    return;
  }
  check_runtime(cudaDeviceSynchronize(), "cublasLt");
  const auto got = out.host();
  Norm norm;
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t r = 0; r < rows; ++r) {
      double s = 0;
      for (int64_t k = 0; k < inputs; ++k) s += raw.value(r, k) * bf16_value(x[t * inputs + k]);
      norm.add(got[t * rows + r], s);
    }
  report("cublasLt", norm.error(), 1e-5);
}

void check_all() {
  for (int l = 0; l < kNumLayouts; ++l) {
    const auto layout = static_cast<Layout>(l);
    const std::pair<int64_t, int64_t> shapes[] = {{64, 512},  {128, 1024}, {16, 32},   {100, 96},
                                                  {160, 256}, {384, 2304}, {2112, 768}, {72, 160}};
    for (const auto& [rows, inputs] : shapes) {
      for (const int64_t tokens : {1, 7, 8, 9, 16, 17, 33, 64, 100}) {
        if (rows > 1000 && tokens % 8 != 1 && tokens != 64) continue;
        check_multiply(layout, rows, inputs, tokens, false, true, false);
      }
      check_multiply(layout, rows, inputs, 5, false, false, false);
      check_multiply(layout, rows, inputs, 37, false, true, true);
    }
    for (const int64_t tokens : {1, 12, 50}) {
      check_multiply(layout, 192, 256, tokens, true, true, false);
      check_multiply(layout, 512, 1024, tokens, true, false, false);
    }
    for (const int32_t tile : {8, 16, 64}) {
      check_experts(layout, 256, 96, 16, 4, 1, false, tile);
      check_experts(layout, 256, 96, 16, 4, 23, true, tile);
      check_experts(layout, 512, 128, 5, 3, 150, true, tile);
    }
    std::printf("%-10s %d cases so far, %d failed\n", name_of(layout), num_cases, num_failed);
    std::fflush(stdout);
  }
  check_multiply(Layout::kBF16, 40, 77, 9, false, true, false);
  check_plain(384, 512, 100);
  check_plain(160, 96, 300);
  std::printf("%s: %d cases, %d failed\n", num_failed == 0 ? "PASS" : "FAIL", num_cases, num_failed);
}

// ---- times --------------------------------------------------------------------------------------

// Median time of one call in microseconds: graphs of `calls` calls, replayed.
double time_us(const std::function<void(int, cudaStream_t)>& call, int calls) {
  cudaStream_t stream;
  check_runtime(cudaStreamCreate(&stream), "stream");
  call(0, stream);
  check_runtime(cudaStreamSynchronize(stream), "warm up");
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  check_runtime(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (int i = 0; i < calls; ++i) call(i, stream);
  check_runtime(cudaStreamEndCapture(stream, &graph), "capture");
  check_runtime(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  std::vector<double> times;
  for (int i = 0; i < 7; ++i) {
    cudaEventRecord(begin, stream);
    check_runtime(cudaGraphLaunch(exec, stream), "launch");
    cudaEventRecord(end, stream);
    check_runtime(cudaStreamSynchronize(stream), "replay");
    float ms = 0;
    cudaEventElapsedTime(&ms, begin, end);
    if (i > 1) times.push_back(1e3 * ms / calls);
  }
  std::sort(times.begin(), times.end());
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaStreamDestroy(stream);
  return times[times.size() / 2];
}

// Packed matrices of random codes, enough of them that none is in the L2 when its turn comes.
struct Matrices {
  std::vector<Packed> packed;
  Matrices(Layout layout, int64_t rows, int64_t inputs, int count) {
    Raw raw = make_raw(layout, 128, inputs, 1);
    const Device<uint8_t> codes(raw.codes);
    const Device<uint8_t> scales(raw.scales.empty() ? std::vector<uint8_t>(16) : raw.scales);
    for (int i = 0; i < count; ++i) {
      packed.push_back({Device<uint8_t>(packed_bytes(layout, rows, inputs), 0),
                        Device<float>(static_cast<size_t>(rows), 0), stride_of(layout, inputs), layout});
      for (int64_t r = 0; r < rows; r += 128) {
        raw.rows = std::min<int64_t>(128, rows - r);
        pack_into(raw, codes, scales, packed.back().data.data, packed.back().row_scale.data,
                  r);
      }
    }
    check_runtime(cudaDeviceSynchronize(), "matrices");
  }
};

void bench_dense(Layout layout, int64_t rows, int64_t inputs, bool f32_out) {
  const size_t bytes = packed_bytes(layout, rows, inputs);
  const int count = static_cast<int>(std::clamp<size_t>((size_t{400} << 20) / bytes, 1, 40));
  const Matrices w(layout, rows, inputs, std::max(count, 2));
  std::printf("%-6s [%6ld, %5ld] %6.1f MB:", name_of(layout), long(rows), long(inputs), bytes / 1e6);
  for (const int64_t tokens : {1, 4, 8, 16, 28, 64}) {
    const Device<uint16_t> x(random_bf16(static_cast<size_t>(tokens * inputs), 3));
    const Device<float> out(static_cast<size_t>(tokens * rows));
    Multiply m{};
    m.layout = layout;
    m.rows = rows;
    m.inputs = inputs;
    m.x = x.data;
    m.x_stride = inputs;
    m.out = out.data;
    m.out_is_f32 = f32_out;
    m.out_stride = rows;
    m.num_matrices = 1;
    m.num_tokens = tokens;
    m.tile_tokens = kMaxTokenTile;
    const int calls = std::max<int>(2 * static_cast<int>(w.packed.size()), 4);
    const double ours = time_us(
        [&](int i, cudaStream_t stream) {
          const Packed& p = w.packed[static_cast<size_t>(i) % w.packed.size()];
          m.matrix = p.matrix();
          m.stride = p.stride;
          launch_multiply_sm90(m, stream);
        },
        calls);
    std::printf("  T%ld %.1f us %.0f%%", long(tokens), ours, 100 * bytes / (ours * 1e-6) / kCopyRate);
    if (layout == Layout::kBF16 && has_cublaslt()) {
      const double theirs = time_us(
          [&](int i, cudaStream_t stream) {
            const Packed& p = w.packed[static_cast<size_t>(i) % w.packed.size()];
            const PlainProduct product{tokens, rows, inputs, x.data, inputs, p.data.data,
                                       p.stride, out.data, rows, f32_out};
            multiply_cublaslt(product, stream);
          },
          calls);
      std::printf(" (Lt %.1f)", theirs);
    }
    std::fflush(stdout);
  }
  std::printf("\n");
}

void bench_experts(Layout layout, int32_t num_experts, bool shared) {
  const int64_t hidden = 7168, width = 2048;
  const int32_t top_k = 8;
  const int32_t total = num_experts + (shared ? 1 : 0);
  const Matrices gate_up(layout, 2 * width, hidden, total), down(layout, hidden, width, total);
  std::vector<PackedMatrix> gu, d;
  for (int32_t e = 0; e < total; ++e) {
    gu.push_back(gate_up.packed[static_cast<size_t>(e)].matrix());
    d.push_back(down.packed[static_cast<size_t>(e)].matrix());
  }
  const ExpertsRun run(layout, hidden, width, num_experts, top_k, shared, gu, d);
  const double expert_bytes = static_cast<double>(packed_bytes(layout, 2 * width, hidden)) +
                              static_cast<double>(packed_bytes(layout, hidden, width));
  for (const int64_t tokens : {1, 4, 8, 16, 32, 64, 448, 2048}) {
    const int sets = 4;
    std::mt19937 rng(9);
    std::vector<Device<int32_t>> ids;
    double touched = 0;
    for (int s = 0; s < sets; ++s) {
      std::vector<int32_t> h;
      std::vector<bool> seen(static_cast<size_t>(num_experts));
      for (int64_t t = 0; t < tokens; ++t) {
        std::vector<int32_t> deck(static_cast<size_t>(num_experts));
        for (int32_t e = 0; e < num_experts; ++e) deck[static_cast<size_t>(e)] = e;
        for (int32_t k = 0; k < top_k; ++k) {
          std::swap(deck[static_cast<size_t>(k)],
                    deck[static_cast<size_t>(k) + rng() % static_cast<size_t>(num_experts - k)]);
          h.push_back(deck[static_cast<size_t>(k)]);
          seen[static_cast<size_t>(deck[static_cast<size_t>(k)])] = true;
        }
      }
      touched += static_cast<double>(std::count(seen.begin(), seen.end(), true)) / sets;
      ids.emplace_back(h);
    }
    const double bytes = (touched + (shared ? 1 : 0)) * expert_bytes;
    const Device<uint16_t> x(random_bf16(static_cast<size_t>(tokens * hidden), 3));
    const Device<float> weights(std::vector<float>(static_cast<size_t>(tokens * top_k), 0.3f));
    const Device<uint16_t> out(static_cast<size_t>(tokens * hidden));
    ExpertsScratch scratch(run, tokens);
    std::printf("%s experts%s T %4ld touched %5.1f %6.2f GB limit %7.1f us:", name_of(layout),
                shared ? " + shared" : "", long(tokens), touched, bytes / 1e9, bytes / kCopyRate * 1e6);
    for (const int32_t tile : {8, 16, 64}) {
      if (tile == 8 && tokens > 64) continue;
      if (tile == 64 && tokens < 64) continue;
      const auto part = [&](int only) {
        return time_us(
            [&](int i, cudaStream_t stream) {
              // Parts walk the tiles of the last whole run; their counters must be reset.
              if (only != 15) cudaMemsetAsync(scratch.counters.data, 0, 8, stream);
              run_experts(run, scratch, tokens, x.data, ids[static_cast<size_t>(i % sets)].data,
                          weights.data, out.data, false, tile, launch_multiply_sm90, stream, only);
            },
            sets);
      };
      const double all = part(15);
      std::printf("  tile %d: %.1f us %.0f%%", tile, all, 100 * bytes / (all * 1e-6) / kCopyRate);
      if (tile == (tokens > 64 ? 64 : 16) || tokens == 8) {
        std::printf(" [sort %.1f gu %.1f down %.1f comb %.1f]", part(1), part(2), part(4), part(8));
      }
      std::fflush(stdout);
    }
    std::printf("\n");
  }
}

void bench_all(bool is_long) {
  bench_dense(Layout::kBF16, 2112, 7168, false);
  bench_dense(Layout::kBF16, 12288, 1536, false);
  bench_dense(Layout::kBF16, 7168, 8192, false);
  bench_dense(Layout::kBF16, 384, 7168, true);
  bench_dense(Layout::kBF16, 163840, 7168, true);
  bench_dense(Layout::kFp8, 7168, 8192, false);
  bench_dense(Layout::kFp8, 163840, 7168, true);
  bench_dense(Layout::kMxfp4, 4096, 7168, false);
  bench_dense(Layout::kMxfp4, 7168, 2048, false);
  bench_experts(Layout::kMxfp4, 384, false);
  bench_experts(Layout::kMxfp4, 384, true);
  bench_experts(Layout::kNvfp4, 384, false);
  if (is_long) bench_experts(Layout::kInt4, 384, false);
}

}  // namespace
}  // namespace eyrie::ops::gpu

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "check";
  if (mode == "check") eyrie::ops::gpu::check_all();
  if (mode == "bench") eyrie::ops::gpu::bench_all(argc > 2);
  return eyrie::ops::gpu::num_failed == 0 ? 0 : 1;
}
