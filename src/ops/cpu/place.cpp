#include "ops/cpu/place.h"

#include <hwy/highway.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/math.h"
#include "ops/cpu/int8_layout.h"

HWY_BEFORE_NAMESPACE();
namespace eyrie::ops::cpu {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int kWords = 16;  // 32-bit words of a line: lanes, each one or two columns
constexpr int kChunk = 16;  // bytes that a vector takes of a row

using Words = hn::Full128<uint32_t>;
using Bytes = hn::Full128<uint8_t>;
using VW = hn::Vec<Words>;
constexpr Words dw;
constexpr Bytes db;

// The rows of a panel; nullptr beyond the last one.
struct Rows {
  const std::byte* data[kPanel] = {};
  int count = 0;
  int64_t bytes = 0;  // of each
};

HWY_INLINE VW load_chunk(const std::byte* row, int64_t at, int64_t bytes) {
  if (row == nullptr) return hn::Zero(dw);
  if (at + kChunk <= bytes) {
    return hn::BitCast(dw, hn::LoadU(db, reinterpret_cast<const uint8_t*>(row + at)));
  }
  HWY_ALIGN uint8_t rest[kChunk] = {};
  std::memcpy(rest, row + at, static_cast<size_t>(bytes - at));
  return hn::BitCast(dw, hn::Load(db, rest));
}

template <typename Test>
HWY_INLINE bool any_chunk(const std::byte* row, int64_t bytes, const Test& test) {
  auto found = hn::Zero(dw);
  for (int64_t at = 0; at < bytes; at += kChunk) {
    found = hn::Or(found, test(load_chunk(row, at, bytes)));
  }
  return !hn::AllTrue(dw, hn::Eq(found, hn::Zero(dw)));
}

const std::byte* bytes_of(const WeightRow& row) {
  const Tensor& data = row.weight->data;
  return static_cast<const std::byte*>(data.raw()) +
         row.row * data.stride(0) * static_cast<int64_t>(dtype_bytes(data.dtype()));
}

// ---- elements -----------------------------------------------------------------------------------

// How words of rows become words of lines. From the same chunk of kRowsPerLane rows (columns i and,
// if two, i + 16) combine() makes kParts vectors for lane i; word w of part p belongs to the
// chunk's line line_of(p, w).

struct Halves {  // a line is one k
  static constexpr int kRowsPerLane = 2, kParts = 2;
  static constexpr int line_of(int part, int word) { return 2 * word + part; }
  static HWY_INLINE void combine(const VW (&row)[2], VW (&parts)[2]) {
    const VW low = hn::Set(dw, 0xffffu);
    parts[0] = hn::Or(hn::And(row[0], low), hn::ShiftLeft<16>(row[1]));
    parts[1] = hn::Or(hn::ShiftRight<16>(row[0]), hn::AndNot(low, row[1]));
  }
};

struct WordPairs {  // a line is two k of half the columns
  static constexpr int kRowsPerLane = 2, kParts = 2;
  static constexpr int line_of(int part, int word) { return 2 * word + part; }
  static HWY_INLINE void combine(const VW (&row)[2], VW (&parts)[2]) {
    parts[0] = row[0];
    parts[1] = row[1];
  }
};

struct BytePairs {  // a line is two k
  static constexpr int kRowsPerLane = 2, kParts = 2;
  static constexpr int line_of(int part, int word) { return 4 * part + word; }
  static HWY_INLINE void combine(const VW (&row)[2], VW (&parts)[2]) {
    const auto a = hn::BitCast(db, row[0]), b = hn::BitCast(db, row[1]);
    parts[0] = hn::BitCast(dw, hn::InterleaveLower(db, a, b));
    parts[1] = hn::BitCast(dw, hn::InterleaveUpper(db, a, b));
  }
};

// Nibbles 0…3 of a word's lower half into the low nibbles of four bytes.
HWY_INLINE VW spread(VW w) {
  const auto nibble = [&](uint32_t mask) HWY_ATTR { return hn::And(w, hn::Set(dw, mask)); };
  return hn::Or(hn::Or(nibble(0xf), hn::ShiftLeft<4>(nibble(0xf0))),
                hn::Or(hn::ShiftLeft<8>(nibble(0xf00)), hn::ShiftLeft<12>(nibble(0xf000))));
}

struct NibblePairs {  // a line is four k
  static constexpr int kRowsPerLane = 2, kParts = 2;
  static constexpr int line_of(int part, int word) { return 2 * word + part; }
  static HWY_INLINE void combine(const VW (&row)[2], VW (&parts)[2]) {
    parts[0] = hn::Or(spread(row[0]), hn::ShiftLeft<4>(spread(row[1])));
    parts[1] = hn::Or(spread(hn::ShiftRight<16>(row[0])),
                      hn::ShiftLeft<4>(spread(hn::ShiftRight<16>(row[1]))));
  }
};

struct Int8Nibbles {  // a line is eight k: 0x76543210 → 0x73625140
  static constexpr int kRowsPerLane = 1, kParts = 1;
  static constexpr int line_of(int, int word) { return word; }
  static HWY_INLINE void combine(const VW (&row)[1], VW (&parts)[1]) {
    parts[0] = hn::Or(spread(row[0]), hn::ShiftLeft<4>(spread(hn::ShiftRight<16>(row[0]))));
  }
};

// A panel's lines of elements; after every 2^run_shift of them lies a line of something else.
struct Lines {
  std::byte* first;
  int64_t count;
  int run_shift = 62;
  uint32_t* at(int64_t line) const {
    return reinterpret_cast<uint32_t*>(first + (line + (line >> run_shift)) * kLineBytes);
  }
};

HWY_INLINE void transpose(VW (&v)[4]) {
  const VW ac0 = hn::InterleaveLower(dw, v[0], v[2]), ac1 = hn::InterleaveUpper(dw, v[0], v[2]);
  const VW bd0 = hn::InterleaveLower(dw, v[1], v[3]), bd1 = hn::InterleaveUpper(dw, v[1], v[3]);
  v[0] = hn::InterleaveLower(dw, ac0, bd0);
  v[1] = hn::InterleaveUpper(dw, ac0, bd0);
  v[2] = hn::InterleaveLower(dw, ac1, bd1);
  v[3] = hn::InterleaveUpper(dw, ac1, bd1);
}

// The chunk at byte `at` of the rows of lanes [lane, lane + 4).
template <typename L>
HWY_INLINE void place_chunk(const Rows& rows, int lane, int64_t at, const Lines& lines) {
  VW parts[L::kParts][4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    VW row[L::kRowsPerLane];
#pragma GCC unroll 2
    for (int r = 0; r < L::kRowsPerLane; ++r) {
      row[r] = load_chunk(rows.data[lane + i + r * kWords], at, rows.bytes);
    }
    VW made[L::kParts];
    L::combine(row, made);
#pragma GCC unroll 2
    for (int p = 0; p < L::kParts; ++p) parts[p][i] = made[p];
  }
  const int64_t first_line = at / kChunk * (4 * L::kParts);
#pragma GCC unroll 2
  for (int p = 0; p < L::kParts; ++p) {
    transpose(parts[p]);
#pragma GCC unroll 4
    for (int w = 0; w < 4; ++w) {
      const int64_t line = first_line + L::line_of(p, w);
      if (line < lines.count) hn::Store(parts[p][w], dw, lines.at(line) + lane);
    }
  }
}

// Reads the rows front to back, as they usually lie in the file: pages are mapped in order, and the
// loads wait for nothing but memory. In the panel's order each would wait alone.
void read_ahead(const Rows& rows) {
  auto seen = std::byte{0};
  for (int c = 0; c < rows.count; ++c) {
    for (int64_t at = 0; at < rows.bytes; at += 64) seen ^= rows.data[c][at];
  }
  asm volatile("" ::"r"(std::to_integer<int>(seen)));  // counts as a use
}

// A cache line of every row at a time: rows lie a power of two apart and would push each other out
// of the cache.
template <typename L>
void place_lines(const Rows& rows, const Lines& lines) {
  constexpr int64_t kBlock = 64;
  read_ahead(rows);
  for (int64_t begin = 0; begin < rows.bytes; begin += kBlock) {
    const int64_t end = HWY_MIN(begin + kBlock, rows.bytes);
    for (int lane = 0; lane < HWY_MIN(kWords, rows.count); lane += 4) {
      for (int64_t at = begin; at < end; at += kChunk) place_chunk<L>(rows, lane, at, lines);
    }
  }
}

// Lane i of a pair of lines: the float32 of column i, and of column i + 16.
void place_floats(const formats::Weight& weight, int64_t row, int column, std::byte* panel) {
  std::vector<float> values(static_cast<size_t>(weight.in));
  weight.format->decode_row(weight, row, values);
  float* out = reinterpret_cast<float*>(panel) + column;
  for (const float value : values) {
    *out = value;
    out += kPanel;
  }
}

void check_f16(const WeightRow& row, const std::byte* data, int64_t bytes) {
  const hn::Full128<uint16_t> dh;
  const auto exponent = hn::Set(dh, uint16_t{0x7c00});
  if (any_chunk(data, bytes, [&](VW v) HWY_ATTR {
        const auto halves = hn::And(hn::BitCast(dh, v), exponent);
        return hn::BitCast(dw, hn::VecFromMask(dh, hn::Eq(halves, exponent)));
      })) {
    reject(*row.weight, row.row, "number that is not finite");
  }
}

void check_fp8(const WeightRow& row, const std::byte* data, int64_t bytes) {
  const auto nan = hn::Set(db, uint8_t{0x7f});
  if (any_chunk(data, bytes, [&](VW v) HWY_ATTR {
        const auto codes = hn::And(hn::BitCast(db, v), nan);
        return hn::BitCast(dw, hn::VecFromMask(db, hn::Eq(codes, nan)));
      })) {
    reject(*row.weight, row.row, "NaN");
  }
}

// ---- scales -------------------------------------------------------------------------------------

// Where the scales of a column's blocks lie: runs of 2^run_shift blocks side by side.
struct Scales {
  std::byte* first;
  int64_t block_bytes, run_bytes;
  int run_shift = 0;
  std::byte* at(int64_t block) const {
    const int64_t run = block >> run_shift;
    return first + run * run_bytes + (block - (run << run_shift)) * block_bytes;
  }
};

int64_t num_scales(const WeightRow& row) {
  return row.weight->format->scale_columns(row.weight->in);
}

void place_e8m0(const WeightRow& row, const Scales& scales) {
  const auto* source = formats::row_of<uint8_t>(row.weight->scales, row.row);
  const int64_t count = num_scales(row);
  bool nan = false;
  for (int64_t b = 0; b < count; ++b) {
    nan |= source[b] == 255;
    *scales.at(b) = std::byte{source[b]};
  }
  if (nan) reject(*row.weight, row.row, "NaN scale");
}

void place_bf16(const WeightRow& row, const Scales& scales) {
  const auto* source = formats::row_of<bf16>(row.weight->scales, row.row);
  const int64_t count = num_scales(row);
  for (int64_t b = 0; b < count; ++b) {
    if (!std::isfinite(to_float(source[b]))) {
      reject(*row.weight, row.row, "scale that is not finite");
    }
    std::memcpy(scales.at(b), source + b, sizeof(bf16));
  }
}

void place_block_floats(const WeightRow& row, const Scales& scales) {
  const formats::Weight& weight = *row.weight;
  const int64_t block_row = (weight.first_row + row.row) / weight.format->block_out;
  const auto* source = formats::row_of<float>(weight.scales, block_row);
  const int64_t count = num_scales(row);
  for (int64_t b = 0; b < count; ++b) {
    const float scale = source[b] * kFp8OutputScale;
    if (!std::isfinite(scale)) reject(weight, row.row, "scale that is NaN or beyond 2^72");
    std::memcpy(scales.at(b), &scale, sizeof scale);
  }
}

// What an NVFP4 scale code puts into the panel and does to its block's sixteen nibbles.
struct Nvfp4Scale {
  uint8_t byte = 0;
  uint64_t keep = ~uint64_t{0}, flip = 0;
};

const std::array<Nvfp4Scale, 256>& nvfp4_scales() {
  static const std::array<Nvfp4Scale, 256> table = [] {
    std::array<Nvfp4Scale, 256> made;
    constexpr uint64_t kSigns = 0x8888888888888888;
    for (size_t code = 0; code < made.size(); ++code) {
      const auto magnitude = static_cast<uint8_t>(code & 0x7f);
      if (magnitude == 0) {
        made[code].keep = 0;
      } else if (magnitude != 0x7f) {
        made[code] = {.byte = nvfp4_scale_byte(magnitude), .flip = code >= 0x80 ? kSigns : 0};
      }
    }
    return made;
  }();
  return table;
}

// Whether all blocks keep their nibbles as they are.
bool place_nvfp4(const WeightRow& row, const Scales& scales) {
  const auto& table = nvfp4_scales();
  const auto* source = formats::row_of<uint8_t>(row.weight->scales, row.row);
  bool plain = true;
  const int64_t count = num_scales(row);
  for (int64_t b = 0; b < count; ++b) {
    if ((source[b] & 0x7f) == 0x7f) reject(*row.weight, row.row, "NaN scale");
    plain &= source[b] != 0 && source[b] < 0x80;
    *scales.at(b) = std::byte{table[source[b]].byte};
  }
  return plain;
}

// The row with nibbles of zero scales zero, and of negative ones with the other sign.
void apply_signs(const WeightRow& row, const std::byte* data, std::byte* out) {
  const auto& table = nvfp4_scales();
  const auto* source = formats::row_of<uint8_t>(row.weight->scales, row.row);
  for (int64_t b = 0; b < row.weight->format->scale_columns(row.weight->in);
       ++b, data += 8, out += 8) {
    uint64_t nibbles;
    std::memcpy(&nibbles, data, sizeof nibbles);
    nibbles = (nibbles & table[source[b]].keep) ^ table[source[b]].flip;
    std::memcpy(out, &nibbles, sizeof nibbles);
  }
}

// ---- a panel ------------------------------------------------------------------------------------

Scales scales_of(const PanelMatrix& m, std::byte* panel, int column) {
  if (meets_int8(m.encoding)) {
    const Int8Geometry g = int8_geometry(m.encoding);
    const int per_line = g.groups_per_line();
    return {.first = panel + column * (g.scale_bytes / kInt8Panel),
            .block_bytes = g.scale_bytes,
            .run_bytes = kLineBytes + per_line * g.group_bytes(),
            .run_shift = std::countr_zero(static_cast<unsigned>(per_line))};
  }
  const int64_t bytes = block_scale_bytes(m.encoding);
  const int64_t each = bytes / kPanel;
  // Two columns share a word, but where a scale is one.
  const int64_t place = each == 4 ? column : 2 * (column % kWords) + column / kWords;
  return {
      .first = panel + element_bytes(m) + place * each, .block_bytes = bytes, .run_bytes = bytes};
}

Lines lines_of(const PanelMatrix& m, std::byte* panel) {
  if (!meets_int8(m.encoding)) return {.first = panel, .count = element_bytes(m) / kLineBytes};
  const Int8Geometry g = int8_geometry(m.encoding);
  const int run = g.groups_per_line() * g.group / kLineColumns;
  return {.first = panel + kLineBytes,
          .count = m.in / kLineColumns,
          .run_shift = std::countr_zero(static_cast<unsigned>(run))};
}

void place_elements(const PanelMatrix& m, const Rows& rows, const Lines& lines) {
  switch (m.encoding) {
    case Encoding::kF32:
      return;  // row by row
    case Encoding::kBf16:
    case Encoding::kF16:
      return place_lines<Halves>(rows, lines);
    case Encoding::kBf16Pairs:
      return place_lines<WordPairs>(rows, lines);
    case Encoding::kFp8:
    case Encoding::kFp8Block:
      return place_lines<BytePairs>(rows, lines);
    case Encoding::kMxfp4:
    case Encoding::kNvfp4:
    case Encoding::kInt4:
      return place_lines<NibblePairs>(rows, lines);
    case Encoding::kMxfp4Int8:
    case Encoding::kNvfp4Int8:
    case Encoding::kInt4Int8:
      return place_lines<Int8Nibbles>(rows, lines);
  }
}

}  // namespace

void place_panel(const PanelMatrix& m, std::span<const WeightRow> rows, std::byte* panel,
                 float* row_scales) {
  Rows source{.count = static_cast<int>(rows.size()),
              .bytes = m.in * rows.front().weight->format->bits_per_element / 8};
  std::vector<std::byte> changed;  // rows that are not placed as they lie
  for (int c = 0; c < source.count; ++c) {
    const WeightRow& row = rows[static_cast<size_t>(c)];
    const std::byte* data = bytes_of(row);
    const Scales scales = scales_of(m, panel, c);
    switch (m.encoding) {
      case Encoding::kF32:
        place_floats(*row.weight, row.row, c, panel);
        break;
      case Encoding::kBf16:
      case Encoding::kBf16Pairs:
        break;
      case Encoding::kF16:
        check_f16(row, data, source.bytes);
        break;
      case Encoding::kFp8:
        row_scales[c] = *formats::row_of<float>(row.weight->scales, row.row);
        check_fp8(row, data, source.bytes);
        break;
      case Encoding::kFp8Block:
        place_block_floats(row, scales);
        check_fp8(row, data, source.bytes);
        break;
      case Encoding::kMxfp4:
      case Encoding::kMxfp4Int8:
        place_e8m0(row, scales);
        break;
      case Encoding::kInt4:
      case Encoding::kInt4Int8:
        place_bf16(row, scales);
        break;
      case Encoding::kNvfp4:
      case Encoding::kNvfp4Int8:
        row_scales[c] = row.weight->global_scale;
        if (place_nvfp4(row, scales)) break;
        changed.resize(static_cast<size_t>(m.panel_columns * source.bytes));
        apply_signs(row, data, changed.data() + c * source.bytes);
        data = changed.data() + c * source.bytes;
        break;
    }
    source.data[c] = data;
  }
  place_elements(m, source, lines_of(m, panel));
}

}  // namespace eyrie::ops::cpu
HWY_AFTER_NAMESPACE();
