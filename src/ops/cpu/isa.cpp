#include "ops/cpu/isa.h"

#include <hwy/highway.h>

#include <atomic>
#include <cstdlib>

#include "base/error.h"

#if HWY_ARCH_X86_64
#include <cpuid.h>
#endif

namespace eyrie::ops::cpu {
namespace {

struct Isa {
  std::string name;
  int64_t target;  // Highway's bit
  bool avx_vnni = false;
  bool avx512_bf16 = false;
};

// Of cpuid's leaf 7, subleaf 1, EAX.
constexpr unsigned kAvxVnniBit = 4, kAvx512Bf16Bit = 5;

[[maybe_unused]] bool has_feature(unsigned bit) {
#if HWY_ARCH_X86_64
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax >> bit & 1) != 0;
#else
  return bit == ~0U;
#endif
}

// Best first: lower bits are better targets.
const std::vector<Isa>& usable() {
  static const std::vector<Isa> isas = [] {
    std::vector<Isa> found;
    const int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
    for (int bit = 0; bit < 63; ++bit) {
      const int64_t target = int64_t{1} << bit;
      if ((targets & target) == 0) continue;
#if HWY_ARCH_X86_64
      if (target == HWY_AVX3_DL && has_feature(kAvx512Bf16Bit)) {
        found.push_back({.name = "AVX3_BF16", .target = target, .avx512_bf16 = true});
      }
      if (target == HWY_AVX2 && has_feature(kAvxVnniBit)) {
        found.push_back({.name = "AVX2_VNNI", .target = target, .avx_vnni = true});
      }
#endif
      found.push_back({.name = hwy::TargetName(target), .target = target});
    }
    return found;
  }();
  return isas;
}

std::atomic<const Isa*> current{nullptr};

// Worse targets stay open: a kernel file without the target itself takes the next one.
void use(const Isa& isa) {
  int64_t targets = 0;
  for (const Isa& other : usable()) {
    if (other.target >= isa.target) targets |= other.target;
  }
  hwy::GetChosenTarget().Update(targets);
  current.store(&isa);
}

}  // namespace

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const Isa& isa : usable()) names.push_back(isa.name);
  return names;
}

void use_isa(std::string_view name) {
  for (const Isa& isa : usable()) {
    if (isa.name == name) return use(isa);
  }
  std::string accepted;
  for (const std::string& isa : available_isas()) accepted += " " + isa;
  fail("EYRIE_CPU_ISA is '{}'; this machine can run:{}", name, accepted);
}

void init_isa() {
  static const bool done = [] {
    if (current.load() != nullptr) return true;  // a test was here first
    const char* forced = std::getenv("EYRIE_CPU_ISA");
    if (forced != nullptr && *forced != '\0') {
      use_isa(forced);
    } else {
      use(usable().front());
    }
    return true;
  }();
  (void)done;
}

std::string_view current_isa() {
  init_isa();
  return current.load()->name;
}

bool uses_avx_vnni() { return current.load()->avx_vnni; }

bool uses_avx512_bf16() { return current.load()->avx512_bf16; }

}  // namespace eyrie::ops::cpu
