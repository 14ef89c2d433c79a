#include "ops/cpu/isa.h"

#include <hwy/highway.h>

#include <cstdlib>

#include "base/error.h"

namespace eyrie::ops::cpu {
namespace {

// Targets compiled into this build, as bits; HWY_TARGETS is the same in every kernel file.
int64_t usable_targets() { return hwy::SupportedTargets() & HWY_TARGETS; }

}  // namespace

std::vector<std::string> available_isas() {
  static const int64_t targets = usable_targets();
  std::vector<std::string> names;
  for (int bit = 0; bit < 63; ++bit) {  // lower bits are better targets
    if ((targets >> bit) & 1) names.emplace_back(hwy::TargetName(int64_t{1} << bit));
  }
  return names;
}

void use_isa(std::string_view name) {
  static const int64_t targets = usable_targets();
  for (int bit = 0; bit < 63; ++bit) {
    const int64_t target = int64_t{1} << bit;
    if ((targets & target) != 0 && name == hwy::TargetName(target)) {
      hwy::SetSupportedTargetsForTest(target);
      hwy::GetChosenTarget().Update(target);
      return;
    }
  }
  std::string accepted;
  for (const std::string& isa : available_isas()) accepted += " " + isa;
  fail("EYRIE_CPU_ISA is '{}'; this machine can run:{}", name, accepted);
}

void init_isa() {
  static const bool done = [] {
    available_isas();
    const char* forced = std::getenv("EYRIE_CPU_ISA");
    if (forced != nullptr && *forced != '\0') {
      use_isa(forced);
    } else {
      hwy::GetChosenTarget().Update(usable_targets());
    }
    return true;
  }();
  (void)done;
}

std::string_view current_isa() {
  init_isa();
  const int64_t targets = usable_targets();
  return hwy::TargetName(targets & -targets);
}

}  // namespace eyrie::ops::cpu
