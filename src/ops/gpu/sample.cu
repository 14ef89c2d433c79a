#include "ops/gpu/compat.h"
#include "ops/gpu/kernels_plain.h"

// argmax and sampling: a row is cut into parts, a block finds the best token of one, and a second
// kernel the best part. "Best" is the highest score, then the lowest token, so the result does not
// depend on how a row was cut.
//
// The race (runtime/sampler.h) in logarithms: p_t / e_t with p_t = exp((l_t - max) / T) and
// e_t = -log u_t has its maximum where l_t / T - log e_t has, and needs no pass for the maximum.
// Tokens are compared by a float32 estimate whose error is bounded; only those that it cannot tell
// apart, and the best of each block in the end, are computed in float64.
namespace eyrie::ops::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kLoads = 4;                          // of 16 bytes, in flight in every thread
constexpr int kPartWidth = 4 * kLoads * kThreads;  // what one pass of a block takes
constexpr uint64_t kNoScore = 0;                   // below every score

// Philox4x32-10, as base/rng.h has it.
struct Noise {
  uint32_t word[4];
};
__device__ __forceinline__ Noise philox(uint64_t lane, uint64_t position, uint64_t seed) {
  uint32_t c0 = static_cast<uint32_t>(lane), c1 = static_cast<uint32_t>(lane >> 32);
  uint32_t c2 = static_cast<uint32_t>(position), c3 = static_cast<uint32_t>(position >> 32);
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
    const uint32_t high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
    c0 = high1 ^ c1 ^ k0;
    c1 = low1;
    c2 = high0 ^ c3 ^ k1;
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

__device__ __forceinline__ uint64_t ordered_score(double x) {
  const auto u = static_cast<uint64_t>(__double_as_longlong(x + 0.0));
  return (u >> 63) != 0 ? ~u : u | (uint64_t{1} << 63);
}

__device__ __forceinline__ bool is_better(const Candidate& a, const Candidate& b) {
  return a.score > b.score || (a.score == b.score && a.token < b.token);
}
__device__ __forceinline__ Candidate best_of_warp(Candidate mine) {
#pragma unroll
  for (int mask = kWarpSize / 2; mask > 0; mask /= 2) {
    Candidate other;
    other.score = shuffle_xor(mine.score, mask);
    other.token = shuffle_xor(mine.token, mask);
    other.is_fault = shuffle_xor(mine.is_fault, mask);
    const int32_t is_fault = mine.is_fault | other.is_fault;
    if (is_better(other, mine)) mine = other;
    mine.is_fault = is_fault;
  }
  return mine;
}

// u and 1 - u of a word of noise, each exact to float32's rounding.
__device__ __forceinline__ float uniform_of(uint32_t word) {
  return (static_cast<float>(word) + 0.5f) * 0x1p-32f;
}
__device__ __forceinline__ float rest_of(uint32_t word) { return uniform_of(~word); }
// -log e for e = -log u: at most -log(1 - u), as -log(1 - x) >= x. Near u = 1, where the winners
// are, by e's series in 1 - u.
__device__ __forceinline__ float noise_estimate(uint32_t word) {
  const float rest = rest_of(word);
  const float series =
      rest * (1.0f + rest * (0.5f + rest * (1.0f / 3.0f + rest * 0.25f)));  // to 2e-7 below 2^-5
  return -__logf(rest < 0.03125f ? series : -__logf(uniform_of(word)));
}
// What the estimates may be wrong by: 1.2e-5 of e from __logf where the series is not used, and
// float32's rounding of the scaled logit; several times both.
__device__ __forceinline__ float margin_of(float scaled) { return 1e-4f + 2e-6f * fabsf(scaled); }

__device__ __forceinline__ double race_score(double scaled, uint32_t word) {
  const double u = (static_cast<double>(word) + 0.5) * 0x1p-32;
  return scaled - log(-log(u));
}

// The best of the tokens that one thread sees, in ascending order.
class Racer {
 public:
  __device__ Racer(const Select& a, int64_t row) : a_(a) {
    if (a.rows == nullptr) return;
    const SampleParams params = a.rows[row];
    is_race_ = params.temperature >= 1e-5f;
    seed_ = params.seed;
    position_ = static_cast<uint64_t>(params.position);
    inverse_ = 1.0 / fmax(static_cast<double>(params.temperature), 0.01);
    inverse_f_ = static_cast<float>(inverse_);
  }

  // `count` neighbours from a multiple of four on; what is outside the row is -infinity.
  __device__ __forceinline__ void see(int64_t first, const float (&logits)[4], int count) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i < count) note_fault(logits[i]);
    }
    const float largest = fmaxf(fmaxf(logits[0], logits[1]), fmaxf(logits[2], logits[3]));
    if (!is_race_) {
      if (!(largest > best_)) return;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (logits[i] > best_) {
          best_ = logits[i];
          token_ = static_cast<int32_t>(first + i);
        }
      }
      return;
    }
    // No noise lifts a score by more than -log(-log(1 - 2^-33)) = 22.9.
    const float scaled = largest * inverse_f_;
    if (!(scaled + 23.0f + margin_of(scaled) >= bar_)) return;
    if (a_.id_map != nullptr) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i >= count) break;
        const auto id = static_cast<uint64_t>(a_.id_map[first + i]);
        const Noise noise = philox(id >> 2, position_, seed_);
        const uint32_t low = (id & 1) != 0 ? noise.word[1] : noise.word[0];
        const uint32_t high = (id & 1) != 0 ? noise.word[3] : noise.word[2];
        race(first + i, logits[i], (id & 2) != 0 ? high : low);
      }
      return;
    }
    const Noise noise = philox(static_cast<uint64_t>(first) >> 2, position_, seed_);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i < count) race(first + i, logits[i], noise.word[i]);
    }
  }

  // All lanes of a warp: what any has reached bars the way for the others' lesser tokens.
  __device__ __forceinline__ void share_bar() {
    if (!is_race_) return;
    const uint32_t highest = warp_max(ordered_bits(bar_));
    bar_ = as_float((highest & 0x80000000u) != 0 ? highest & 0x7fffffffu : ~highest);
  }

  // All lanes of a warp: the thread's best, if it may be the warp's.
  __device__ Candidate candidate() {
    share_bar();
    Candidate mine{kNoScore, INT32_MAX, is_fault_};
    if (token_ == INT32_MAX) return mine;
    if (!is_race_) {
      mine.score = ordered_score(static_cast<double>(best_));
      mine.token = token_;
    } else if (best_ + margin_of(scaled_) >= bar_) {
      mine.score = ordered_score(race_score(static_cast<double>(logit_) * inverse_, word_));
      mine.token = token_;
    }
    return mine;
  }

 private:
  __device__ __forceinline__ void note_fault(float x) {
    // An infinity and NaN have all bits of the exponent.
    const bool is_number = (as_bits(x) & 0x7f800000u) != 0x7f800000u;
    if (!is_number && (a_.rows != nullptr || x != x)) is_fault_ = 1;
  }
  __device__ __forceinline__ void race(int64_t token, float logit, uint32_t word) {
    const float scaled = logit * inverse_f_, margin = margin_of(scaled);
    if (!(scaled - __logf(rest_of(word)) + margin >= bar_)) return;
    const float estimate = scaled + noise_estimate(word);
    if (estimate + margin < bar_) return;
    const float unsure = margin + margin_of(scaled_);
    if (estimate < best_ - unsure) return;
    if (estimate <= best_ + unsure &&
        race_score(static_cast<double>(logit) * inverse_, word) <=
            race_score(static_cast<double>(logit_) * inverse_, word_)) {
      return;
    }
    best_ = estimate;
    scaled_ = scaled;
    logit_ = logit;
    word_ = word;
    token_ = static_cast<int32_t>(token);
    bar_ = fmaxf(bar_, estimate - margin);
  }

  const Select& a_;
  bool is_race_ = false;
  int32_t is_fault_ = 0;
  uint64_t seed_ = 0, position_ = 0;
  double inverse_ = 1.0;
  float inverse_f_ = 1.0f;
  // The best so far: its logit, or the estimate of its score and what the score is made from.
  float best_ = -INFINITY;
  int32_t token_ = INT32_MAX;
  float scaled_ = 0.0f, logit_ = 0.0f;
  uint32_t word_ = 0;
  float bar_ = -INFINITY;  // some token of the warp has at least this score
};

// Block (row, part). A warp reads 512 bytes at once, kLoads times before it looks at them.
__global__ void __launch_bounds__(kThreads) select_part_kernel(Select a, int64_t part_width) {
  __shared__ Candidate shared[kThreads / kWarpSize];
  start_dependents();
  wait_for_inputs();
  const int64_t row = blockIdx.x;
  const float* const logits = a.logits + row * a.logits_stride;
  const bool packed = reinterpret_cast<uintptr_t>(logits) % 16 == 0;
  const int64_t begin = blockIdx.y * part_width;
  const int64_t end = begin + part_width < a.width ? begin + part_width : a.width;
  Racer racer(a, row);
  for (int64_t base = begin; base < end; base += kPartWidth) {
    float x[kLoads][4];
#pragma unroll
    for (int load = 0; load < kLoads; ++load) {
      const int64_t first = base + (load * kThreads + threadIdx.x) * 4;
      if (first + 4 <= end && packed) {
        load_floats(logits + first, x[load]);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) x[load][i] = first + i < end ? logits[first + i] : -INFINITY;
      }
    }
#pragma unroll
    for (int load = 0; load < kLoads; ++load) {
      const int64_t first = base + (load * kThreads + threadIdx.x) * 4;
      const int64_t left = end - first;
      if (left > 0) racer.see(first, x[load], left >= 4 ? 4 : static_cast<int>(left));
      racer.share_bar();
    }
  }
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  Candidate best = best_of_warp(racer.candidate());
  if (lane == 0) shared[warp] = best;
  __syncthreads();
  if (warp != 0) return;
  best = lane < kThreads / kWarpSize ? shared[lane] : Candidate{kNoScore, INT32_MAX, 0};
  best = best_of_warp(best);
  if (lane == 0) a.scratch[row * gridDim.y + blockIdx.y] = best;
}

// One warp a row.
__global__ void select_row_kernel(Select a, int64_t num_parts) {
  start_dependents();
  wait_for_inputs();
  const int64_t row = blockIdx.x;
  const int lane = static_cast<int>(threadIdx.x);
  Candidate best{kNoScore, INT32_MAX, 0};
  int32_t is_fault = 0;
  for (int64_t p = lane; p < num_parts; p += kWarpSize) {
    const Candidate other = a.scratch[row * num_parts + p];
    is_fault |= other.is_fault;
    if (is_better(other, best)) best = other;
  }
  best.is_fault = is_fault;
  best = best_of_warp(best);
  if (lane != 0) return;
  int32_t id = -1;
  if (best.is_fault == 0) {
    // Where every logit is -infinity there is no best, and the first token is the answer.
    const int32_t choice = best.token == INT32_MAX ? 0 : best.token;
    id = a.id_map == nullptr ? choice : a.id_map[choice];
  }
  a.ids[row * a.ids_stride] = id;
}

}  // namespace

// Enough blocks for every multiprocessor to read from several places at once, and no part so short
// that its block is all set-up.
int64_t select_splits(int64_t num_rows, int64_t width) {
  constexpr int64_t kBlocks = 1056;  // 8 for each of an H200's 132 multiprocessors
  const int64_t most = (width + kPartWidth - 1) / kPartWidth;
  const int64_t wanted = num_rows == 0 ? 1 : (kBlocks + num_rows - 1) / num_rows;
  return wanted < 1 ? 1 : wanted < most ? wanted : most;
}

void launch_select(const Select& a, void* stream) {
  if (a.num_rows == 0) return;
  const int64_t splits = select_splits(a.num_rows, a.width);
  const int64_t passes = (a.width + kPartWidth - 1) / kPartWidth;
  const int64_t part_width = (passes + splits - 1) / splits * kPartWidth;
  launch("sample", select_part_kernel,
         dim3(static_cast<unsigned>(a.num_rows), static_cast<unsigned>(splits)), dim3(kThreads), 0,
         stream, a, part_width);
  launch("sample", select_row_kernel, dim3(static_cast<unsigned>(a.num_rows)), dim3(kWarpSize), 0,
         stream, a, splits);
}

}  // namespace eyrie::ops::gpu
