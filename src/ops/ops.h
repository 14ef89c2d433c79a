// The operations of the decoder and the draft. Callers use these free functions; each checks shapes
// once for all backends and then calls one slot of the context's backend table (ops/op_table.h).
//
// Activations are row-major; T = rows (tokens) of the step. On a CPU they are float32. On a GPU
// what flows between matrix products is bfloat16 (activation_dtype()) and sums stay float32: the
// residual stream, logits, router scores. Weights are prepared once at load time into the layout
// the backend's kernel wants (PreparedWeight). Ops write into outputs they are given; scratch comes
// from ctx.arena; nothing allocates, waits or reads a clock, so that a step can be captured as a
// graph.
//
// Where data lies: everything an op is given lies in the backend's memory, the contents of spans
// and of tensors alike (place() brings them there at load time, Upload in a step); only the args
// structs, and what they say of shapes, are read on the host. On a GPU ops are ordered by
// ctx.stream and their results exist when it has run.
//
// Numerics on a CPU: the result for a row never depends on the other rows of the batch, on the
// number of threads or on how a sequence was cut into chunks. Each output element has one fixed
// order of summation: over k ascending in a linear (over groups of k where these are summed in
// integers), over top-k slots in slot order in the experts, over cache positions in blocks of
// kAttentionTile aligned to position 0 in attention.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/threads.h"
#include "formats/weight.h"
#include "tensor/tensor.h"

namespace eyrie::ops {

struct OpTable;
class ActivationObserver;

struct Ctx {
  const OpTable* table = nullptr;  // cpu, reference or gpu
  ThreadPool* pool = nullptr;
  Arena* arena = nullptr;
  ActivationObserver* observer = nullptr;  // set by ActivationObserver::watched() only
  void* stream = nullptr;                  // of the gpu table: a cudaStream_t
  // On a GPU: a row's result depends on that row alone, as it always does on a CPU.
  bool deterministic = false;
};

// What activations between matrix products are: F32, or BF16 on a GPU.
DType activation_dtype(const Ctx& ctx);

const OpTable& cpu_ops();        // SIMD through Highway, instruction set chosen at start
const OpTable& reference_ops();  // readable float32 oracle
// Name of the instruction set the cpu table uses here, e.g. "AVX3_ZEN4".
std::string_view cpu_isa();

// ---- weights ------------------------------------------------------------------------------------

// A linear layer's weight in the backend's layout. Owns its memory (or borrows from the mapped file
// where the layout is the file's own; the checkpoint outlives it). Several weights that share an
// input are fused by passing them together: rows are concatenated in order. Weights of different
// formats become float32 in the cpu layout, and their activations are not rounded.
struct PreparedWeight {
  int64_t out = 0;
  int64_t in = 0;
  const formats::WeightFormat* format = nullptr;
  formats::ActivationRounding activation = formats::ActivationRounding::kNone;
  float input_scale = 0;                // of the activations (NVFP4); 0: found per row
  Buffer storage;                       // backend layout
  std::vector<formats::Weight> source;  // the reference backend reads these
  size_t bytes() const;                 // read by one pass over the matrix
};

// How activations meet weights. kAuto: those of four-bit weights (MXFP4, NVFP4, INT4) are rounded
// to 8 bits with a scale per group of the weight's, and multiplied in integers (cpu/int8_layout.h);
// those of bfloat16 weights to bfloat16; other weights meet float32. kEmulate: rounded as hardware
// with the format's arithmetic does it.
enum class ActivationQuantization { kOff, kAuto, kEmulate };

formats::ActivationRounding activation_rounding(const formats::WeightFormat& format,
                                                ActivationQuantization activation);

PreparedWeight prepare(const Ctx& ctx, std::span<const formats::Weight> rows_concatenated,
                       ActivationQuantization activation = ActivationQuantization::kOff);

// The kernels a weight of this format meets on the cpu table here: "mxfp4 panels · int8, AVX3_DL",
// "fp8 panels, AVX3", or "f32 panels (no kernel of its own), AVX3".
std::string kernel_name(const formats::WeightFormat& format,
                        ActivationQuantization activation = ActivationQuantization::kAuto);

// Weights of one shape and format that an op reads by index: experts of a layer, halves of
// kv_b_proj by head.
struct WeightStack {
  std::vector<PreparedWeight> weights;
  Buffer table;  // what the backend's kernel finds them by; empty on a CPU
  const PreparedWeight& operator[](size_t i) const { return weights[i]; }
};
WeightStack stack(const Ctx& ctx, std::vector<PreparedWeight> weights);

// A stack as ops are given it; on a CPU any weights side by side will do.
class WeightSpan : public std::span<const PreparedWeight> {
 public:
  WeightSpan() = default;
  WeightSpan(std::span<const PreparedWeight> weights) : span(weights) {}        // NOLINT
  WeightSpan(const std::vector<PreparedWeight>& weights) : span(weights) {}     // NOLINT
  WeightSpan(const WeightStack& s) : span(s.weights), table(s.table.data()) {}  // NOLINT
  const std::byte* table = nullptr;
};

// A tensor, and a weight that is read row by row, in the backend's memory: on a CPU the same view,
// which then still borrows what it was made from.
struct PlacedTensor {
  Buffer storage;
  Tensor view;
};
struct PlacedWeight {
  Buffer data, scales;
  formats::Weight view;
};
PlacedTensor place(const Ctx& ctx, const Tensor& host);
PlacedWeight place(const Ctx& ctx, const formats::Weight& host);

// ---- plain ops ----------------------------------------------------------------------------------

// out[T, H] = table[ids[t], :]
struct EmbeddingArgs {
  Tensor out;
  const formats::Weight* table;
  std::span<const int32_t> ids;
};
void embedding(const Ctx& ctx, const EmbeddingArgs& args);

// out[T, N] = x / sqrt(mean(x²) + eps) · weight[N] (weight float32). x may be row-strided; out may
// alias x.
struct RmsNormArgs {
  Tensor out;
  Tensor x;
  Tensor weight;
  float eps;
};
void rms_norm(const Ctx& ctx, const RmsNormArgs& args);

// residual[T, N] += x[T, N]; residual is float32 or of x's type.
struct AddArgs {
  Tensor residual;
  Tensor x;
};
void add(const Ctx& ctx, const AddArgs& args);

// add, then rms_norm of the new residual: what stands between two halves of a layer.
struct AddRmsNormArgs {
  Tensor residual;  // [T, N] F32
  Tensor x;         // [T, N]
  Tensor weight;    // [N] F32
  float eps;
  Tensor out;  // [T, N]
};
void add_rms_norm(const Ctx& ctx, const AddRmsNormArgs& args);

// out[i, :] = x[rows[i], :], rounded to out's type; either may be row-strided.
struct GatherRowsArgs {
  Tensor out;
  Tensor x;
  std::span<const int32_t> rows;
};
void gather_rows(const Ctx& ctx, const GatherRowsArgs& args);

// out[T, N] = x[T, N], rounded to out's type; either may be row-strided.
struct CopyRowsArgs {
  Tensor out;
  Tensor x;
};
void copy_rows(const Ctx& ctx, const CopyRowsArgs& args);

// x[T, N] *= factor, float32; nothing to do for 1.
struct ScaleRowsArgs {
  Tensor x;
  float factor;
};
void scale_rows(const Ctx& ctx, const ScaleRowsArgs& args);

// out[T, O] = x[T, I] · weightᵀ ; x and out may be row-strided. When the weight asks for emulated
// activation rounding, x is rounded per row first.
struct LinearArgs {
  Tensor out;
  Tensor x;
  const PreparedWeight* weight;
};
void linear(const Ctx& ctx, const LinearArgs& args);

// out[T, heads, O] = x[T, heads, I] · weight[head]ᵀ : the absorbed halves of kv_b_proj. x and out
// may be strided in T and in heads.
struct HeadLinearArgs {
  Tensor out;
  Tensor x;
  WeightSpan weights;
};
void head_linear(const Ctx& ctx, const HeadLinearArgs& args);

// out[T, I] = silu(gate_up[T, 0:I]) · gate_up[T, I:2I]
struct SiluMulArgs {
  Tensor out;
  Tensor gate_up;
};
void silu_mul(const Ctx& ctx, const SiluMulArgs& args);

// ---- rope ---------------------------------------------------------------------------------------

enum class RopeStyle { kInterleaved, kHalfSplit };  // pairs (2i, 2i+1) | (i, i + D/2)

// x[T, heads, D] rotated in place by positions[t] · inv_freq[i]; cos and sin multiplied by
// magnitude (YaRN's g(mscale)/g(mscale_all_dim), otherwise 1). x may be strided in T and heads.
// Angles are computed in float64 so that long positions keep their precision.
struct RopeArgs {
  Tensor x;
  std::span<const int32_t> positions;  // [T]
  std::span<const double> inv_freq;    // [D/2]
  float magnitude = 1.0f;
  RopeStyle style = RopeStyle::kInterleaved;
};
void rope(const Ctx& ctx, const RopeArgs& args);

// ---- paged attention ----------------------------------------------------------------------------

inline constexpr int kAttentionTile = 16;  // cache positions whose scores form one softmax step

// The rows of one sequence in the batch: tokens [first_row, first_row + num_rows) at positions
// first_position … ; position p sees 0…p. Slot of position p: block_table[p / block_size] ·
// block_size + p % block_size.
struct SequenceRows {
  int32_t first_row = 0;
  int32_t num_rows = 0;
  int32_t first_position = 0;
  const int32_t* block_table = nullptr;
};

// One layer's cache: data[num_blocks · block_size, width], BF16 or E4M3, block_size a multiple of
// kAttentionTile. What is stored is e4m3(x / scale), saturating, and it is read as code · scale; a
// BF16 cache has scale 1.
struct CacheView {
  Tensor data;
  int32_t block_size = 0;
  float scale = 1.0f;
};

// Writes x[T, width] into each row's slot, rounding to the cache's type. E4M3 has no infinity: one
// that arrives is stored as NaN, so that it stays the numeric fault it is in BF16.
struct CacheWriteArgs {
  CacheView cache;
  Tensor x;
  std::span<const SequenceRows> sequences;
};
void cache_write(const Ctx& ctx, const CacheWriteArgs& args);

// What MLA's down projections are followed by. kv[:, :latent] is normalised (rms_norm),
// kv[:, latent:] rotated, both in place, and kv is written to the cache; q, the queries before
// their up projection, is normalised in place.
struct MlaCacheWriteArgs {
  CacheView cache;
  Tensor kv;           // [T, latent + rope]
  Tensor norm_weight;  // [latent] F32
  float eps;
  std::span<const int32_t> positions;  // [T]
  std::span<const double> inv_freq;    // [rope / 2]
  float magnitude = 1.0f;
  RopeStyle style = RopeStyle::kInterleaved;
  std::span<const SequenceRows> sequences;
  Tensor q;              // [T, q_lora]
  Tensor q_norm_weight;  // [q_lora] F32
  float q_eps;
};
void mla_cache_write(const Ctx& ctx, const MlaCacheWriteArgs& args);

// What MLA's queries are made of: q_latent[t, h] = q[t, h, :nope] · weight[h]ᵀ, and q[t, h, nope:]
// rotated in place.
struct MlaQueriesArgs {
  Tensor q_latent;                     // [T, Hq, latent]
  Tensor q;                            // [T, Hq, nope + rope], may be strided
  WeightSpan weights;                  // per head [latent, nope]
  std::span<const int32_t> positions;  // [T]
  std::span<const double> inv_freq;    // [rope / 2]
  float magnitude = 1.0f;
  RopeStyle style = RopeStyle::kInterleaved;
};
void mla_queries(const Ctx& ctx, const MlaQueriesArgs& args);

// Absorbed MLA. cache width = latent + rope: key = [c_kv | k_pe], value = c_kv.
// out[T, Hq, latent] = Σ_j softmax_j(scale · (q_latent·c_j + q_rope·k_j)) · c_j
struct MlaAttentionArgs {
  Tensor out;       // [T, Hq, latent]
  Tensor q_latent;  // [T, Hq, latent]
  Tensor q_rope;    // [T, Hq, rope], may be strided
  CacheView cache;
  std::span<const SequenceRows> sequences;
  float scale;
  int32_t max_rows = 0;  // no sequence has more rows; 0: not known. A GPU cuts its work by it
};
void mla_attention(const Ctx& ctx, const MlaAttentionArgs& args);

// Grouped-query attention of a Llama-style draft; k and v caches are [slots, Hkv · D].
struct GqaAttentionArgs {
  Tensor out;  // [T, Hq, D]
  Tensor q;    // [T, Hq, D]
  CacheView k_cache, v_cache;
  std::span<const SequenceRows> sequences;
  int32_t num_kv_heads;
  float scale;
  int32_t max_rows = 0;  // as in MlaAttentionArgs
};
void gqa_attention(const Ctx& ctx, const GqaAttentionArgs& args);

// ---- mixture of experts -------------------------------------------------------------------------

// DeepSeek-V3's "noaux_tc" router (kimi-k2.5 §4): scores = sigmoid(logits); choose by
// scores + bias (ties: lower expert id); weights = scores of the chosen, normalised when
// norm_topk_prob (sum + 1e-20), times routed_scaling_factor.
struct RouteArgs {
  Tensor ids;      // [T, k] I32
  Tensor weights;  // [T, k] F32
  Tensor logits;   // [T, E] F32
  Tensor bias;     // [E] F32
  int32_t n_group = 1, topk_group = 1;
  bool norm_topk_prob = true;
  float routed_scaling_factor = 1.0f;
  // Rows from *num_valid on only fill a captured graph's batch: their ids become -1 (no expert).
  const int32_t* num_valid = nullptr;
};
void route(const Ctx& ctx, const RouteArgs& args);

// out[T, H] = Σ_slot weights[t, slot] · down_e(silu(gate_e x) · up_e x), e = ids[t, slot], and with
// shared experts + down_s(silu(gate_s x) · up_s x). gate_up[e] is [2·I, H] (gate rows first),
// down[e] is [H, I]; the shared ones may be wider and of another format.
struct ExpertsArgs {
  Tensor out;
  Tensor x;
  Tensor ids;
  Tensor weights;
  WeightSpan gate_up;
  WeightSpan down;
  const PreparedWeight* shared_gate_up = nullptr;
  const PreparedWeight* shared_down = nullptr;
};
void experts(const Ctx& ctx, const ExpertsArgs& args);

// A layer's experts with their router: linear (its logits), route of these logits, experts by
// these ids and weights.
struct MoeArgs {
  LinearArgs gate;
  RouteArgs route;
  ExpertsArgs experts;
};
void moe(const Ctx& ctx, const MoeArgs& args);

// ---- sampling help ------------------------------------------------------------------------------

// ids[t] = index of the largest logit of row t, the lowest on a tie. NaN anywhere in a row gives
// -1: the caller reports a numeric fault instead of streaming token 0.
struct ArgmaxArgs {
  std::span<int32_t> ids;
  Tensor logits;
};
void argmax(const Ctx& ctx, const ArgmaxArgs& args);

// One row's sampling on the device: the exponential race of runtime/sampler.h over the plain
// logits, with its noise; temperature 0 is argmax. Rows that ask for more (penalties, top_p, …) are
// sampled by the host.
struct SampleRow {
  uint64_t seed = 0;
  int64_t position = 0;
  float temperature = 0;
};
struct SampleArgs {
  std::span<int32_t> ids;  // [R]; -1: a numeric fault, as in argmax
  Tensor logits;           // [R, V]
  std::span<const SampleRow> rows;
  std::span<const int32_t> id_map;  // id_map[choice] is what is written; empty: the choice
  int32_t ids_stride = 1;           // ids[i · ids_stride]
};
void sample(const Ctx& ctx, const SampleArgs& args);

}  // namespace eyrie::ops
