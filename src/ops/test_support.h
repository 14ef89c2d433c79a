// What the op tests share: a context per backend and thread count, random tensors that own their
// memory, weights encoded through the formats table, paged caches with shuffled blocks.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "ops/cpu/isa.h"
#include "ops/ops.h"

namespace eyrie::ops {

class Backend {
 public:
  explicit Backend(const OpTable& table, int threads = 1)
      : pool_(threads), ctx_{.table = &table, .pool = &pool_, .arena = &arena_} {}
  const Ctx& ctx() const { return ctx_; }

 private:
  ThreadPool pool_;
  Arena arena_;
  Ctx ctx_;
};

// A [rows, columns] float32 tensor whose rows lie `stride` apart; the gaps hold NaN, so an op that
// strays into them shows.
class Matrix {
 public:
  Matrix(int64_t rows, int64_t columns, int64_t stride = 0)
      : rows_(rows),
        columns_(columns),
        stride_(stride == 0 ? columns : stride),
        values_(static_cast<size_t>(rows * stride_ + 1), std::nanf("")) {}

  static Matrix random(int64_t rows, int64_t columns, uint32_t seed, int64_t stride = 0) {
    Matrix m(rows, columns, stride);
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) m.at(r, c) = normal(generator);
    }
    return m;
  }

  float& at(int64_t r, int64_t c) { return values_[static_cast<size_t>(r * stride_ + c)]; }
  float at(int64_t r, int64_t c) const { return values_[static_cast<size_t>(r * stride_ + c)]; }
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }

  Tensor tensor() const {
    Tensor all = Tensor::of(values_.data(), {rows_, stride_});
    return stride_ == columns_ ? all : all.columns(0, columns_);
  }

 private:
  int64_t rows_, columns_, stride_;
  std::vector<float> values_;
};

// A random weight in the format's own bytes.
class EncodedWeight {
 public:
  EncodedWeight(const formats::WeightFormat& format, int64_t out, int64_t in, uint32_t seed) {
    const auto data_bytes =
        static_cast<size_t>(format.data_columns(in)) * dtype_bytes(format.data_dtype);
    const auto scale_bytes = format.block_in == 0 ? 0
                                                  : static_cast<size_t>(format.scale_columns(in)) *
                                                        dtype_bytes(format.scale_dtype);
    data_ = Buffer(data_bytes * static_cast<size_t>(out));
    scales_ = Buffer(scale_bytes * static_cast<size_t>(out));
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal(0.0f, 0.05f);
    std::vector<float> row(static_cast<size_t>(in));
    for (int64_t o = 0; o < out; ++o) {
      for (float& x : row) x = normal(generator);
      const auto i = static_cast<size_t>(o);
      format.encode_row(row, {data_.data() + i * data_bytes, data_bytes},
                        {scales_.data() + i * scale_bytes, scale_bytes});
    }
    weight = {.format = &format,
              .out = out,
              .in = in,
              .data = Tensor(data_.data(), format.data_dtype, {out, format.data_columns(in)}),
              .scales = {}};
    if (scale_bytes > 0) {
      weight.scales = Tensor(scales_.data(), format.scale_dtype, {out, format.scale_columns(in)});
    }
  }
  formats::Weight weight;

 private:
  Buffer data_, scales_;
};

inline PreparedWeight prepared(const Backend& backend, const EncodedWeight& weight,
                               ActivationQuantization activation = ActivationQuantization::kOff) {
  return prepare(backend.ctx(), {&weight.weight, 1}, activation);
}

// max |a - b| over max |b|: the error relative to the size of the result.
inline double normalised_error(const Matrix& a, const Matrix& b) {
  double difference = 0, size = 1e-30;
  for (int64_t r = 0; r < b.rows(); ++r) {
    for (int64_t c = 0; c < b.columns(); ++c) {
      const double d = std::fabs(double{a.at(r, c)} - double{b.at(r, c)});
      difference = std::isnan(d) ? INFINITY : std::max(difference, d);
      size = std::max(size, std::fabs(double{b.at(r, c)}));
    }
  }
  return difference / size;
}

inline bool same_bits(const Matrix& a, int64_t row_a, const Matrix& b, int64_t row_b) {
  for (int64_t c = 0; c < a.columns(); ++c) {
    const float x = a.at(row_a, c), y = b.at(row_b, c);
    if (std::memcmp(&x, &y, sizeof x) != 0) return false;
  }
  return true;
}

inline bool same_bits(const Matrix& a, const Matrix& b) {
  if (a.rows() != b.rows() || a.columns() != b.columns()) return false;
  for (int64_t r = 0; r < a.rows(); ++r) {
    if (!same_bits(a, r, b, r)) return false;
  }
  return true;
}

// Sequences over one paged cache: lengths[i] positions, of which the last rows[i] are in the batch.
// Blocks are dealt from a shuffled deck.
class PagedBatch {
 public:
  PagedBatch(std::vector<int> lengths, std::vector<int> rows, int block_size, uint32_t seed)
      : block_size_(block_size), lengths_(std::move(lengths)) {
    int64_t blocks = 0;
    for (int length : lengths_) blocks += (length + block_size - 1) / block_size;
    num_blocks_ = blocks + 3;  // some belong to nobody
    std::vector<int32_t> deck(static_cast<size_t>(num_blocks_));
    std::iota(deck.begin(), deck.end(), 0);
    std::mt19937 generator(seed);
    std::shuffle(deck.begin(), deck.end(), generator);
    tables_.resize(lengths_.size());
    size_t next = 0;
    for (size_t i = 0; i < lengths_.size(); ++i) {
      for (int p = 0; p < lengths_[i]; p += block_size) tables_[i].push_back(deck[next++]);
      sequences_.push_back({.first_row = num_rows_,
                            .num_rows = rows[i],
                            .first_position = lengths_[i] - rows[i],
                            .block_table = tables_[i].data()});
      num_rows_ += rows[i];
    }
  }

  int32_t num_rows() const { return num_rows_; }
  std::span<const SequenceRows> sequences() const { return sequences_; }
  int64_t num_slots() const { return num_blocks_ * block_size_; }

  // A cache of NaN in which each sequence's positions hold values that depend on (sequence,
  // position, column, seed) only, not on where its blocks are.
  std::vector<bf16> fill(int64_t width, uint32_t seed) const {
    std::vector<bf16> cache(static_cast<size_t>(num_slots() * width), bf16{0x7fc0});
    for (size_t i = 0; i < lengths_.size(); ++i) {
      std::mt19937 generator(seed + static_cast<uint32_t>(i));
      std::normal_distribution<float> normal;
      for (int p = 0; p < lengths_[i]; ++p) {
        const int64_t slot =
            int64_t{tables_[i][static_cast<size_t>(p / block_size_)]} * block_size_ +
            p % block_size_;
        for (int64_t c = 0; c < width; ++c) {
          cache[static_cast<size_t>(slot * width + c)] = to_bf16(normal(generator));
        }
      }
    }
    return cache;
  }
  CacheView view(const std::vector<bf16>& cache, int64_t width) const {
    return {.data = Tensor::of(cache.data(), {num_slots(), width}), .block_size = block_size_};
  }
  // The same as E4M3 codes of value / scale.
  std::vector<uint8_t> fill_fp8(int64_t width, uint32_t seed, float scale) const {
    std::vector<uint8_t> codes;
    for (const bf16 x : fill(width, seed)) {
      codes.push_back(formats::encode_fp8_e4m3(to_float(x) / scale));
    }
    return codes;
  }
  CacheView view(const std::vector<uint8_t>& codes, int64_t width, float scale) const {
    auto* data = const_cast<uint8_t*>(codes.data());
    return {.data = Tensor(data, DType::kF8E4M3, {num_slots(), width}),
            .block_size = block_size_,
            .scale = scale};
  }

 private:
  int block_size_;
  std::vector<int> lengths_;
  int64_t num_blocks_ = 0;
  int32_t num_rows_ = 0;
  std::vector<std::vector<int32_t>> tables_;
  std::vector<SequenceRows> sequences_;
};

// Runs a test on every instruction set this machine has.
class EveryIsa : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { cpu::use_isa(GetParam()); }
  void TearDown() override { cpu::use_isa(cpu::available_isas().front()); }
};

inline std::string isa_name(const testing::TestParamInfo<std::string>& info) { return info.param; }

}  // namespace eyrie::ops
