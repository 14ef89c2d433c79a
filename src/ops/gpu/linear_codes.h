// How the packed layouts (kernels_linear.h) hold codes, as seen by the generic kernels: one value
// at a time, on any GPU and on the host (tests). The tensor-core kernels decode whole words.
#pragma once

#include <cstdint>

#include "ops/gpu/kernels_linear.h"

namespace eyrie::ops::gpu {

// A word of E2M1: each half holds four codes (even inputs in the low half), sign e e m, at bits
//   pair 0: 15, 8 7 6    pair 1: 12, 5 4 3    pair 2: 14, 2 1 0    pair 3: 13, 11 10 9
// so that a shift or two bring sign and magnitude to where bf16 has sign, low exponent and high
// mantissa bits (15, 8 7 6); the value is then 2^126 too small, subnormal codes included.
EYRIE_HOST_DEVICE int fp4_sign_bit(int pair) {
  return pair == 0 ? 15 : pair == 1 ? 12 : pair == 2 ? 14 : 13;
}
EYRIE_HOST_DEVICE int fp4_low_bit(int pair) {
  return pair == 0 ? 6 : pair == 1 ? 3 : pair == 2 ? 0 : 9;
}
// eight codes, the first in the low nibble
EYRIE_HOST_DEVICE uint32_t pack_fp4(uint32_t codes) {
  uint32_t word = 0;
  for (int i = 0; i < 8; ++i) {
    const uint32_t code = (codes >> (4 * i)) & 15u;
    const int shift = 16 * (i & 1);
    word |= ((code & 7u) << fp4_low_bit(i / 2) | (code >> 3) << fp4_sign_bit(i / 2)) << shift;
  }
  return word;
}
EYRIE_HOST_DEVICE uint32_t unpack_fp4(uint32_t word, int i) {
  const uint32_t half = word >> (16 * (i & 1));
  return ((half >> fp4_low_bit(i / 2)) & 7u) | ((half >> fp4_sign_bit(i / 2)) & 1u) << 3;
}

// A word of INT4: pair p of inputs at bits 4·p (even) and 16 + 4·p (odd).
EYRIE_HOST_DEVICE int int4_bit(int i) { return 4 * (i / 2) + 16 * (i & 1); }
EYRIE_HOST_DEVICE uint32_t pack_int4(uint32_t codes) {
  uint32_t word = 0;
  for (int i = 0; i < 8; ++i) word |= ((codes >> (4 * i)) & 15u) << int4_bit(i);
  return word;
}

// A word of FP8 holds two pairs: the first at bytes 1 and 3, the second at bytes 0 and 2.
EYRIE_HOST_DEVICE int fp8_byte(int i) { return (i < 2 ? 1 : 0) + 2 * (i & 1); }
EYRIE_HOST_DEVICE uint32_t pack_fp8(uint32_t codes) {
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i) word |= ((codes >> (8 * i)) & 255u) << (8 * fp8_byte(i));
  return word;
}

// Where the word of row r, inputs k … k + 8 (k a multiple of 8) lies: bytes from the matrix's
// begin. `stride` units make a row group. Eight-bit words come in twos.
EYRIE_HOST_DEVICE int64_t unit_of(Layout layout, int64_t r, int64_t k, int64_t stride) {
  const int64_t group_unit = r / kRowGroup * stride + k / unit_inputs(layout);
  return (group_unit * 2 + r % kRowGroup / kRowTile) * unit_bytes(layout);
}
EYRIE_HOST_DEVICE int64_t word_of(Layout layout, int64_t r, int64_t k, int64_t stride) {
  const int64_t row = r % kRowTile, input = k % unit_inputs(layout);
  const int64_t lane = (row % 8) * 4 + (input % 32) / 8;
  const int64_t word_bytes = unit_inputs(layout) == 64 ? 8 : 4;
  return unit_of(layout, r, k, stride) + (row / 8) * 512 + lane * 16 + (input / 32) * word_bytes;
}

}  // namespace eyrie::ops::gpu
