#include "apps/eyrie/kv_plan.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "base/error.h"
#include "base/human.h"
#include "base/math.h"

namespace eyrie::apps {

KvPlan plan_kv(const KvDemand& demand) {
  if (!(demand.utilization > 0 && demand.utilization <= 1)) {
    fail("--gpu-memory-utilization is {}; it takes a share in (0, 1]", demand.utilization);
  }
  if (demand.max_model_len > demand.model_max_len) {
    fail("--max-model-len is {}; this model's positions end at {}", demand.max_model_len,
         demand.model_max_len);
  }
  if (demand.max_model_len < -1) {
    fail("--max-model-len is {}; it takes a length or auto", demand.max_model_len);
  }
  const int64_t wanted = demand.max_model_len > 0 ? demand.max_model_len : demand.model_max_len;
  const int64_t block_bytes = demand.bytes_per_token * demand.block_size;
  const auto share =
      static_cast<int64_t>(demand.utilization * static_cast<double>(demand.memory_bytes));
  const int64_t available =
      demand.kv_bytes ? *demand.kv_bytes : share - demand.weights_bytes - demand.workspace_bytes;
  const int64_t fitting =
      demand.num_blocks ? *demand.num_blocks : std::max<int64_t>(0, available / block_bytes);

  KvPlan plan{.block_size = demand.block_size};
  plan.max_model_len = wanted;
  const int64_t longest = fitting * demand.block_size;
  if (longest < wanted) {
    if (demand.max_model_len != -1 || longest == 0) {
      fail(
          "the KV cache needs {} for one context of {} tokens and {} is available; the largest "
          "context "
          "that fits is {} tokens: lower --max-model-len or raise --gpu-memory-utilization",
          human_bytes(static_cast<double>(div_ceil(wanted, demand.block_size) * block_bytes)),
          wanted, human_bytes(static_cast<double>(std::max<int64_t>(0, fitting * block_bytes))),
          longest);
    }
    plan.max_model_len = longest;
  }
  const int64_t useful = demand.max_num_seqs * div_ceil(plan.max_model_len, demand.block_size);
  plan.num_blocks = demand.num_blocks ? fitting : std::min(fitting, useful);
  plan.kv_bytes = plan.num_blocks * block_bytes;
  return plan;
}

int64_t usable_memory_bytes() {
  int64_t bytes = static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGE_SIZE);
  for (const char* path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::ifstream file(path);
    int64_t limit = 0;
    if (file >> limit && limit > 0) bytes = std::min(bytes, limit);  // "max" does not parse
  }
  return bytes;
}

}  // namespace eyrie::apps
