// Four-bit weights × int8 activations. A panel is decoded once for all rows of a tile, group by
// group: eight vectors of bytes that each row's codes are multiplied with, then one fused
// multiply-add of the exact integer sum into the row's float sums. Lanes are outputs, so nothing
// depends on how many rows share a tile.
//
// Per group of 32 k, 16 outputs and row, in vectors of 16 lanes: 8 integer dot products of 64, and
// three float operations. One row reads 272 bytes of MXFP4 for it.
#include "ops/cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/int8_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <bit>

#include "ops/cpu/int8-inl.h"
#include "ops/cpu/isa.h"

HWY_BEFORE_NAMESPACE();
namespace eyrie::ops::cpu {
namespace HWY_NAMESPACE {

// ---- activations --------------------------------------------------------------------------------

// One by one, so that each goes from memory into all lanes at once.
HWY_INLINE VI correction_in_every_lane(const std::byte* p) {
  int32_t correction;
  std::memcpy(&correction, p + offsetof(Int8Scale, correction), sizeof correction);
  return hn::Set(di, correction);
}
HWY_INLINE VF scale_in_every_lane(const std::byte* p) {
  float scale;
  std::memcpy(&scale, p + offsetof(Int8Scale, scale), sizeof scale);
  return hn::Set(df, scale);
}

template <int kGroup>
HWY_INLINE Int8Scale round_group(const float* x, const Int8Geometry& g, std::byte* codes) {
  constexpr uint32_t kSmallest = std::bit_cast<uint32_t>(0x1p-100f);
  constexpr uint32_t kInfinity = 0x7f800000;
  VU bits = hn::Zero(du);
#pragma GCC unroll 8
  for (int i = 0; i < kGroup; i += kLanes) {
    const VU magnitude = hn::And(hn::BitCast(du, hn::LoadU(df, x + i)), hn::Set(du, 0x7fffffffu));
    bits = hn::Max(bits, magnitude);
  }
  const uint32_t largest_bits = hn::GetLane(hn::MaxOfLanes(du, bits));
  if (largest_bits < kSmallest || largest_bits >= kInfinity) {
    std::memset(codes, 0, kGroup);
    return {.scale = largest_bits < kSmallest ? 0.0f : std::nanf(""), .correction = 0};
  }
  const float largest = std::bit_cast<float>(largest_bits);
  const VF inverse = hn::Set(df, 127.0f / largest);
  VI sum = hn::Zero(di);
#pragma GCC unroll 8
  for (int i = 0; i < kGroup; i += kLanes) {
    const hn::Rebind<int8_t, F> di8;
    const VI q = hn::NearestInt(hn::Mul(hn::LoadU(df, x + i), inverse));
    sum = hn::Add(sum, q);
    hn::StoreU(hn::DemoteTo(di8, q), di8, reinterpret_cast<int8_t*>(codes + i));
  }
  return {.scale = largest / 127.0f * g.unit,
          .correction = -g.offset * hn::GetLane(hn::SumOfLanes(di, sum))};
}

template <int kGroup>
void round_groups(const Int8Geometry& g, const float* x, int64_t n, std::byte* record) {
  for (int64_t k = 0; k < n; k += kGroup, record += g.record_bytes()) {
    const Int8Scale scale = round_group<kGroup>(x + k, g, record);
    std::memcpy(record + kGroup, &scale, sizeof scale);
  }
}

void round(Encoding encoding, const float* x, int64_t n, std::byte* record) {
  const Int8Geometry g = int8_geometry(encoding);
  if (g.group == 16) {
    round_groups<16>(g, x, n, record);
  } else {
    round_groups<32>(g, x, n, record);
  }
}

// ---- a panel ------------------------------------------------------------------------------------

HWY_INLINE void store_outputs(VF v, float* out, int64_t column, int64_t columns) {
  if (column + kLanes <= columns) {
    hn::StoreU(v, df, out + column);
  } else if (column < columns) {
    store_some(v, out + column, static_cast<int>(columns - column));
  }
}

// The float sums of a panel's 16 outputs: in registers for one row, in memory for more, where
// enough other work lies between two uses.
template <bool kOneRow>
struct Sums;

template <>
struct Sums<true> {
  VF v[kVecs];
  HWY_INLINE void clear(int) {
    for (int i = 0; i < kVecs; ++i) v[i] = hn::Zero(df);
  }
  HWY_INLINE VF get(int, int i) const { return v[i]; }
  HWY_INLINE void set(int, int i, VF value) { v[i] = value; }
};

template <>
struct Sums<false> {
  HWY_ALIGN float v[kMaxTileRows][kInt8Panel];
  HWY_INLINE void clear(int num_rows) {
    std::memset(v, 0, static_cast<size_t>(num_rows) * sizeof v[0]);
  }
  HWY_INLINE VF get(int row, int i) const { return hn::Load(df, v[row] + i * kLanes); }
  HWY_INLINE void set(int row, int i, VF value) { hn::Store(value, df, v[row] + i * kLanes); }
};

// How many panels a tile reads side by side, and how many bytes ahead it asks for what comes next,
// into which cache. For a row or two, several streams let the hardware read ahead: eight panels
// come to 75 to 95 % of a plain read in some processes, but to 40 to 55 % in others of the same
// minute (a virtual machine; why is not known). Asked for one run (a line of scales and its codes)
// ahead, into the second cache, they are as fast in the former and 1.4 to 1.7 times as fast in the
// latter. The first cache is slower with AVX-512, and so is further ahead.
template <bool kOne, int kPanelCount, int kPrefetchBytes, int kPrefetchCache = 1>
struct Tile {
  static constexpr bool kOneRow = kOne;
  static constexpr int kPanels = kPanelCount, kAhead = kPrefetchBytes, kCache = kPrefetchCache;
  static HWY_INLINE void ask_for(const std::byte* p) {
    if constexpr (kAhead > 0) __builtin_prefetch(p + kAhead, 0, 4 - kCache);
  }
};

template <typename D, bool kVnni, bool kOneRow>
HWY_INLINE void add_group(const std::byte* codes, const std::byte* scales,
                          const std::byte* const* records, int64_t offset, int num_rows,
                          Sums<kOneRow>& sums) {
#pragma GCC unroll 4
  for (int i = 0; i < kVecs; ++i) {
    VB w[D::kSteps];
    decode_group<D>(codes + i * kLanes * 4, w);
    const VF scale_w = D::scales(scales + i * kLanes * (D::kGeometry.scale_bytes / kInt8Panel));
    for (int r = 0; r < (kOneRow ? 1 : num_rows); ++r) {
      const std::byte* x = records[r] + offset;
      const std::byte* scale_x = x + D::kGeometry.group;
      const VI sum =
          dot_steps<kVnni, D::kSteps, D::kSafeSteps>(correction_in_every_lane(scale_x), w, x);
      const VF scale = hn::Mul(scale_w, scale_in_every_lane(scale_x));
      sums.set(r, i, hn::MulAdd(hn::ConvertTo(df, sum), scale, sums.get(r, i)));
    }
  }
}

template <bool kOneRow>
HWY_INLINE void store_panel(const PanelMatrix& m, const Sums<kOneRow>& sums, int num_rows,
                            int64_t panel, float* const* out) {
  for (int r = 0; r < (kOneRow ? 1 : num_rows); ++r) {
#pragma GCC unroll 4
    for (int i = 0; i < kVecs; ++i) {
      const int64_t column = panel * kInt8Panel + i * kLanes;
      VF v = sums.get(r, i);
      if (m.row_scales != nullptr) v = hn::Mul(v, hn::LoadU(df, m.row_scales + column));
      store_outputs(v, out[r], column, m.out);
    }
  }
}

// T::kPanels panels from the first on.
template <typename D, bool kVnni, typename T>
void multiply(const PanelMatrix& m, const std::byte* const* records, int num_rows, int64_t panel,
              float* const* out) {
  constexpr Int8Geometry g = D::kGeometry;
  Sums<T::kOneRow> sums[T::kPanels];
#pragma GCC unroll 8
  for (int n = 0; n < T::kPanels; ++n) sums[n].clear(num_rows);
  const std::byte* p = m.panels + panel * m.panel_bytes;
  const int64_t num_groups = m.in / g.group;
  int64_t offset = 0;
  for (int64_t group = 0; group < num_groups; group += g.groups_per_line()) {
    const std::byte* scales = p;
    p += kLineBytes;
#pragma GCC unroll 8
    for (int n = 0; n < T::kPanels; ++n) T::ask_for(scales + n * m.panel_bytes);
    const auto count = static_cast<int>(HWY_MIN(g.groups_per_line(), num_groups - group));
    for (int i = 0; i < count; ++i, scales += g.scale_bytes) {
#pragma GCC unroll 8
      for (int n = 0; n < T::kPanels; ++n) {
        const std::byte* codes = p + n * m.panel_bytes;
        for (int b = 0; b < g.group_bytes(); b += kLineBytes) T::ask_for(codes + b);
        add_group<D, kVnni>(codes, scales + n * m.panel_bytes, records, offset, num_rows, sums[n]);
      }
      p += g.group_bytes();
      offset += g.record_bytes();
    }
  }
#pragma GCC unroll 8
  for (int n = 0; n < T::kPanels; ++n) store_panel(m, sums[n], num_rows, panel + n, out);
}

// Panels in tiles of T while there are enough, the rest one by one.
template <typename D, bool kVnni, typename T>
void multiply_all(const PanelMatrix& m, const std::byte* const* records, int num_rows,
                  int64_t panel, int64_t end, float* const* out) {
  using One = Tile<T::kOneRow, 1, T::kAhead, T::kCache>;
  for (; panel + T::kPanels <= end; panel += T::kPanels) {
    multiply<D, kVnni, T>(m, records, num_rows, panel, out);
  }
  for (; panel < end; ++panel) multiply<D, kVnni, One>(m, records, num_rows, panel, out);
}

template <typename D, bool kVnni>
void panels_of(const PanelMatrix& m, const std::byte* const* records, int num_rows, int64_t begin,
               int64_t end, float* const* out) {
  constexpr Int8Geometry g = D::kGeometry;
  constexpr int kRun = kLineBytes + g.groups_per_line() * g.group_bytes();
  if (num_rows == 1) {
    return multiply_all<D, kVnni, Tile<true, 8, kRun, 2>>(m, records, num_rows, begin, end, out);
  }
  if (num_rows == 2) {
    return multiply_all<D, kVnni, Tile<false, 8, kRun, 2>>(m, records, num_rows, begin, end, out);
  }
  if (num_rows <= 8) {
    return multiply_all<D, kVnni, Tile<false, 4, 2048>>(m, records, num_rows, begin, end, out);
  }
  multiply_all<D, kVnni, Tile<false, 1, 2048>>(m, records, num_rows, begin, end, out);
}

template <bool kVnni>
void panels(const PanelMatrix& m, const std::byte* const* records, int num_rows,
            int64_t panel_begin, int64_t panel_end, float* const* out) {
  switch (m.encoding) {
    case Encoding::kNvfp4Int8:
      return panels_of<Nvfp4Int8, kVnni>(m, records, num_rows, panel_begin, panel_end, out);
    case Encoding::kInt4Int8:
      return panels_of<Int4Int8, kVnni>(m, records, num_rows, panel_begin, panel_end, out);
    default:
      return panels_of<Mxfp4Int8, kVnni>(m, records, num_rows, panel_begin, panel_end, out);
  }
}

const Int8Kernels* int8_table() {
  static constexpr Int8Kernels kTable{
      .max_rows = kMaxTileRows, .round = round, .panels = panels<false>};
#if HWY_TARGET == HWY_AVX2
  static constexpr Int8Kernels kVnniTable{
      .max_rows = kMaxTileRows, .round = round, .panels = panels<true>};
  if (uses_avx_vnni()) return &kVnniTable;
#endif
  return &kTable;
}

}  // namespace HWY_NAMESPACE
}  // namespace eyrie::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eyrie::ops::cpu {
HWY_EXPORT(int8_table);
const Int8Kernels& int8_kernels() {
  init_isa();
  return *HWY_DYNAMIC_DISPATCH(int8_table)();
}
}  // namespace eyrie::ops::cpu
#endif
