#include "ops/cpu/backend.h"

#include <fmt/format.h>

#include "ops/cpu/isa.h"
#include "ops/cpu/layout.h"
#include "ops/host_rows.h"
#include "ops/op_table.h"

namespace eyrie::ops {

const OpTable& cpu_ops() {
  static constexpr OpTable kTable{
      .name = "cpu",
      .prepare = cpu::prepare,
      .embedding = cpu::embedding,
      .rms_norm = cpu::rms_norm,
      .add = cpu::add,
      .linear = cpu::linear,
      .head_linear = cpu::head_linear,
      .silu_mul = cpu::silu_mul,
      .rope = cpu::rope,
      .cache_write = cpu::cache_write,
      .mla_attention = cpu::mla_attention,
      .gqa_attention = cpu::gqa_attention,
      .route = cpu::route,
      .experts = cpu::experts,
      .argmax = cpu::argmax,
      .gather_rows = host_gather_rows,
      .copy_rows = host_copy_rows,
      .scale_rows = host_scale_rows,
  };
  cpu::init_isa();
  return kTable;
}

std::string_view cpu_isa() { return cpu::current_isa(); }

std::string kernel_name(const formats::WeightFormat& format, ActivationQuantization activation) {
  const cpu::Encoding encoding = cpu::encoding_of(format, activation_rounding(format, activation));
  if (encoding == cpu::Encoding::kF32 && &format != &formats::kF32) {
    return fmt::format("f32 panels (no kernel of its own), {}", cpu_isa());
  }
  const std::string_view met = cpu::meets_int8(encoding)               ? " · int8"
                               : encoding == cpu::Encoding::kBf16Pairs ? " · bf16"
                                                                       : "";
  return fmt::format("{} panels{}, {}", format.name, met, cpu_isa());
}

}  // namespace eyrie::ops
