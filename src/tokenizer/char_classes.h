// What the pre-tokenizer's pattern asks of a character, as bits of one byte a code point. The table
// was read out of the tiktoken library (tools/text_golden/make_char_classes.py), so both know the
// same version of Unicode. Immutable, any thread.
#pragma once

#include <cstdint>

namespace eyrie {

enum CharBits : uint8_t {
  kHanChar = 1,      // Script=Han, whatever the category
  kUpperChar = 2,    // Lu Lt Lm Lo M, not Han: may stand in the upper-case run of a word
  kLowerChar = 4,    // Ll Lm Lo M, not Han: may stand in the lower-case run
  kLetterChar = 8,   // L
  kNumberChar = 16,  // N
  kSpaceChar = 32,   // White_Space
  kNewlineChar = 64  // \r \n, which are white space besides
};

// [code point], 0x110000 entries; 0 for punctuation, symbols and what is not assigned.
const uint8_t* char_classes();

}  // namespace eyrie
