#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/reference/reference.h"

namespace eyrie::ops::reference {
namespace {

int64_t slot_of(const SequenceRows& sequence, int32_t block_size, int64_t position) {
  return sequence.block_table[position / block_size] * int64_t{block_size} + position % block_size;
}

// A cache as numbers.
class Cache {
 public:
  Cache(const CacheView& view, const SequenceRows& sequence) : view_(view), sequence_(sequence) {}
  float at(int64_t position, int64_t column) const {
    const int64_t slot = slot_of(sequence_, view_.block_size, position);
    const int64_t i = slot * view_.data.dim(1) + column;
    if (view_.data.dtype() == DType::kBF16) return to_float(view_.data.data<bf16>()[i]);
    return formats::decode_fp8_e4m3(static_cast<const uint8_t*>(view_.data.raw())[i]) * view_.scale;
  }
  // q · columns [first, first + count) of a position.
  double dot(const float* q, int64_t position, int64_t first, int64_t count) const {
    double sum = 0;
    for (int64_t i = 0; i < count; ++i) {
      sum += static_cast<double>(q[i]) * at(position, first + i);
    }
    return sum;
  }

 private:
  const CacheView& view_;
  const SequenceRows& sequence_;
};

void softmax(std::vector<double>& scores) {
  const double largest = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (double& s : scores) sum += s = std::exp(s - largest);
  for (double& s : scores) s /= sum;
}

}  // namespace

void cache_write(const Ctx&, const CacheWriteArgs& a) {
  const int64_t width = a.x.dim(1);
  for (const SequenceRows& sequence : a.sequences) {
    for (int32_t i = 0; i < sequence.num_rows; ++i) {
      const float* x = a.x.data<float>() + (sequence.first_row + i) * a.x.stride(0);
      const int64_t slot = slot_of(sequence, a.cache.block_size, sequence.first_position + i);
      for (int64_t c = 0; c < width; ++c) {
        if (a.cache.data.dtype() == DType::kBF16) {
          a.cache.data.data<bf16>()[slot * width + c] = to_bf16(x[c]);
        } else {
          const float value = x[c] / a.cache.scale;
          const float fault = std::copysign(std::nanf(""), value);
          static_cast<uint8_t*>(a.cache.data.raw())[slot * width + c] =
              formats::encode_fp8_e4m3(std::isinf(value) ? fault : value);
        }
      }
    }
  }
}

void mla_attention(const Ctx&, const MlaAttentionArgs& a) {
  const int64_t latent = a.q_latent.dim(2), rope = a.q_rope.dim(2);
  for (const SequenceRows& sequence : a.sequences) {
    const Cache cache(a.cache, sequence);
    for (int32_t i = 0; i < sequence.num_rows; ++i) {
      const int64_t t = sequence.first_row + i, visible = sequence.first_position + i + 1;
      for (int64_t h = 0; h < a.out.dim(1); ++h) {
        const float* q =
            a.q_latent.data<float>() + t * a.q_latent.stride(0) + h * a.q_latent.stride(1);
        const float* q_rope =
            a.q_rope.data<float>() + t * a.q_rope.stride(0) + h * a.q_rope.stride(1);
        std::vector<double> scores(static_cast<size_t>(visible));
        for (int64_t j = 0; j < visible; ++j) {
          scores[static_cast<size_t>(j)] =
              a.scale * (cache.dot(q, j, 0, latent) + cache.dot(q_rope, j, latent, rope));
        }
        softmax(scores);
        float* out = a.out.data<float>() + t * a.out.stride(0) + h * a.out.stride(1);
        for (int64_t c = 0; c < latent; ++c) {
          double sum = 0;
          for (int64_t j = 0; j < visible; ++j) {
            sum += scores[static_cast<size_t>(j)] * cache.at(j, c);
          }
          out[c] = static_cast<float>(sum);
        }
      }
    }
  }
}

void gqa_attention(const Ctx&, const GqaAttentionArgs& a) {
  const int64_t dim = a.q.dim(2), group = a.q.dim(1) / a.num_kv_heads;
  for (const SequenceRows& sequence : a.sequences) {
    const Cache keys(a.k_cache, sequence), values(a.v_cache, sequence);
    for (int32_t i = 0; i < sequence.num_rows; ++i) {
      const int64_t t = sequence.first_row + i, visible = sequence.first_position + i + 1;
      for (int64_t h = 0; h < a.out.dim(1); ++h) {
        const int64_t offset = h / group * dim;  // of this head's keys and values in a cache row
        const float* q = a.q.data<float>() + t * a.q.stride(0) + h * a.q.stride(1);
        std::vector<double> scores(static_cast<size_t>(visible));
        for (int64_t j = 0; j < visible; ++j) {
          scores[static_cast<size_t>(j)] = a.scale * keys.dot(q, j, offset, dim);
        }
        softmax(scores);
        float* out = a.out.data<float>() + t * a.out.stride(0) + h * a.out.stride(1);
        for (int64_t c = 0; c < dim; ++c) {
          double sum = 0;
          for (int64_t j = 0; j < visible; ++j) {
            sum += scores[static_cast<size_t>(j)] * values.at(j, offset + c);
          }
          out[c] = static_cast<float>(sum);
        }
      }
    }
  }
}

}  // namespace eyrie::ops::reference
