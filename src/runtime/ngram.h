// Drafts without a draft model: what followed the last words of the text when they stood there
// before. The longest run of last tokens between min_length and max_length that occurs earlier
// counts, and of its occurrences the first. (vLLM's method "ngram".) Engine thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/sampler.h"

namespace eyrie::runtime {

struct NgramConfig {
  int32_t min_length = 5;  // vLLM: prompt_lookup_min
  int32_t max_length = 5;  // vLLM: prompt_lookup_max
};

class NgramProposer {
 public:
  explicit NgramProposer(const NgramConfig& config);

  // Appends at most num_wanted tokens to proposed; time grows with the text's length.
  void propose(std::span<const TokenId> text, int32_t num_wanted, std::vector<TokenId>& proposed);

 private:
  NgramConfig config_;
  std::vector<int32_t> borders_;  // of the text's end read backwards, [max_length]
};

}  // namespace eyrie::runtime
