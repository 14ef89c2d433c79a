// Which instruction set the kernels run on. Every kernel file is compiled once per target (Highway)
// and the best one this machine has is used; EYRIE_CPU_ISA=AVX2 in the environment, or use_isa() in
// a test, takes a lower one. Lanes are output elements everywhere, so targets with fused
// multiply-add give the same bits whatever their vector width.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace eyrie::ops::cpu {

// Names this build has kernels for and this machine can run, best first: "AVX3_BF16" (AVX3_DL with
// dot products of bfloat16), "AVX3_DL" (AVX-512 with VNNI and VBMI), "AVX3", "AVX2_VNNI", "AVX2",
// "SSE4". Only kernels of integers differ between the ones with VNNI and those without.
std::vector<std::string> available_isas();

// Reads EYRIE_CPU_ISA once; throws Error when it names none of available_isas().
void init_isa();

// Forces a target by name, for tests; not while another thread runs an op.
void use_isa(std::string_view name);

std::string_view current_isa();

// The current one is AVX2_VNNI, which Highway does not know as a target: it is its AVX2 with
// another integer dot product. After init_isa().
bool uses_avx_vnni();

// The current one is AVX3_BF16, Highway's AVX3_DL with another way for bfloat16. After init_isa().
bool uses_avx512_bf16();

}  // namespace eyrie::ops::cpu
