#include "ops/gpu/cublaslt.h"

#if defined(EYRIE_HIP)

namespace eyrie::ops::gpu {

bool open_cublaslt() { return false; }
bool has_cublaslt() { return false; }
bool multiply_cublaslt(const PlainProduct&, void*) { return false; }

}  // namespace eyrie::ops::gpu

#else
#include <cublasLt.h>
#include <dlfcn.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>

#include "ops/gpu/compat.h"

namespace eyrie::ops::gpu {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;  // what NVIDIA advises for Hopper

// The few functions we call, by the names the library has them under.
struct Library {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutSetAttribute) layout_set = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  cublasLtHandle_t handle = nullptr;
  void* workspace = nullptr;
};

template <typename Fn>
bool find(void* library, const char* name, Fn* fn) {
  *fn = reinterpret_cast<Fn>(dlsym(library, name));
  return *fn != nullptr;
}

bool load(Library* lt) {
  void* library = dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) library = dlopen("libcublasLt.so", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return false;
  return find(library, "cublasLtCreate", &lt->create) &&
         find(library, "cublasLtMatmul", &lt->matmul) &&
         find(library, "cublasLtMatmulDescCreate", &lt->desc_create) &&
         find(library, "cublasLtMatmulDescSetAttribute", &lt->desc_set) &&
         find(library, "cublasLtMatrixLayoutCreate", &lt->layout_create) &&
         find(library, "cublasLtMatrixLayoutSetAttribute", &lt->layout_set) &&
         find(library, "cublasLtMatmulPreferenceCreate", &lt->preference_create) &&
         find(library, "cublasLtMatmulPreferenceSetAttribute", &lt->preference_set) &&
         find(library, "cublasLtMatmulAlgoGetHeuristic", &lt->heuristic) &&
         lt->create(&lt->handle) == CUBLAS_STATUS_SUCCESS;
}

// One per process: the program runs one rank a process on a GPU.
Library* library() {
  static Library lt;
  static const bool is_there = [] {
    if (!load(&lt)) return false;
    check_runtime(cudaMalloc(&lt.workspace, kWorkspaceBytes), "allocating cuBLASLt's workspace");
    return true;
  }();
  return is_there ? &lt : nullptr;
}

struct Plan {
  bool exists = false;
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t w = nullptr, x = nullptr, out = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
};

// Addresses decide which vector loads an algorithm may use.
uint32_t alignment_of(const void* p) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  return address == 0 ? 256u
                      : static_cast<uint32_t>(std::min<uintptr_t>(address & (~address + 1), 256));
}

using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, bool, int64_t, int64_t,
                       int64_t, int64_t, uint32_t, uint32_t, uint32_t>;
Key key_of(const PlainProduct& p) {
  return {p.tokens,          p.rows,
          p.inputs,          p.x_stride,
          p.w_stride,        p.out_stride,
          p.out_is_f32,      p.batch,
          p.x_batch,         p.w_batch,
          p.out_batch,       alignment_of(p.x),
          alignment_of(p.w), alignment_of(p.out)};
}

bool set_layout(const Library& lt, cublasLtMatrixLayout_t* layout, cudaDataType type, int64_t rows,
                int64_t columns, int64_t stride, int64_t batch, int64_t batch_stride) {
  if (lt.layout_create(layout, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns),
                       stride) != CUBLAS_STATUS_SUCCESS) {
    return false;
  }
  if (batch == 1) return true;
  const auto count = static_cast<int32_t>(batch);
  return lt.layout_set(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count) ==
             CUBLAS_STATUS_SUCCESS &&
         lt.layout_set(*layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &batch_stride,
                       sizeof batch_stride) == CUBLAS_STATUS_SUCCESS;
}

// In the library's columns-first view: out (rows x tokens) = w (inputs x rows) transposed · x.
Plan make_plan(const Library& lt, const PlainProduct& p) {
  Plan plan;
  const cublasOperation_t transposed = CUBLAS_OP_T;
  const cudaDataType out_type = p.out_is_f32 ? CUDA_R_32F : CUDA_R_16BF;
  if (lt.desc_create(&plan.desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) != CUBLAS_STATUS_SUCCESS ||
      lt.desc_set(plan.desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed) !=
          CUBLAS_STATUS_SUCCESS ||
      !set_layout(lt, &plan.w, CUDA_R_16BF, p.inputs, p.rows, p.w_stride, p.batch, p.w_batch) ||
      !set_layout(lt, &plan.x, CUDA_R_16BF, p.inputs, p.tokens, p.x_stride, p.batch, p.x_batch) ||
      !set_layout(lt, &plan.out, out_type, p.rows, p.tokens, p.out_stride, p.batch, p.out_batch)) {
    return plan;
  }
  cublasLtMatmulPreference_t preference = nullptr;
  if (lt.preference_create(&preference) != CUBLAS_STATUS_SUCCESS) return plan;
  const size_t workspace = kWorkspaceBytes;
  const uint32_t w = alignment_of(p.w), x = alignment_of(p.x), out = alignment_of(p.out);
  lt.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                    sizeof workspace);
  lt.preference_set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &w, sizeof w);
  lt.preference_set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &x, sizeof x);
  lt.preference_set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &out, sizeof out);
  lt.preference_set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &out, sizeof out);
  cublasLtMatmulHeuristicResult_t result{};
  int found = 0;
  plan.exists = lt.heuristic(lt.handle, plan.desc, plan.w, plan.x, plan.out, plan.out, preference,
                             1, &result, &found) == CUBLAS_STATUS_SUCCESS &&
                found == 1;
  plan.algorithm = result.algo;
  return plan;
}

}  // namespace

bool open_cublaslt() { return library() != nullptr; }
bool has_cublaslt() { return library() != nullptr; }

bool multiply_cublaslt(const PlainProduct& p, void* stream) {
  Library* const lt = library();
  if (lt == nullptr) return false;
  static std::mutex mutex;
  static std::map<Key, Plan> plans;
  const std::lock_guard lock(mutex);
  auto entry = plans.find(key_of(p));
  if (entry == plans.end()) entry = plans.emplace(key_of(p), make_plan(*lt, p)).first;
  const Plan& plan = entry->second;
  if (!plan.exists) return false;
  const LaunchTrace trace("cublasLt", p.rows, p.inputs, p.tokens, stream);
  const float one = 1.0f, zero = 0.0f;
  return lt->matmul(lt->handle, plan.desc, &one, p.w, plan.w, p.x, plan.x, &zero, p.out, plan.out,
                    p.out, plan.out, &plan.algorithm, lt->workspace, kWorkspaceBytes,
                    static_cast<cudaStream_t>(stream)) == CUBLAS_STATUS_SUCCESS;
}

}  // namespace eyrie::ops::gpu
#endif
