#include "runtime/ngram.h"

#include <algorithm>

#include "base/check.h"

namespace eyrie::runtime {

NgramProposer::NgramProposer(const NgramConfig& config)
    : config_(config), borders_(static_cast<size_t>(config.max_length)) {
  CHECK(config.min_length >= 1 && config.min_length <= config.max_length, "{} … {}",
        config.min_length, config.max_length);
}

// Knuth, Morris and Pratt on the text read backwards, whose beginning is the pattern: after each
// token, `length` is the longest run of last tokens, at most max_length, that also starts here.
// Going backwards the last of equal lengths is the first in the text.
void NgramProposer::propose(std::span<const TokenId> text, int32_t num_wanted,
                            std::vector<TokenId>& proposed) {
  const auto size = static_cast<int32_t>(text.size());
  const auto backwards = [&](int32_t i) { return text[static_cast<size_t>(size - 1 - i)]; };
  int32_t length = 0, best_length = 0, best_start = 0;
  borders_[0] = 0;
  for (int32_t i = 1; i < size; ++i) {
    while (length > 0 && (length == config_.max_length || backwards(length) != backwards(i))) {
      length = borders_[static_cast<size_t>(length) - 1];
    }
    if (backwards(length) == backwards(i)) ++length;
    if (i < config_.max_length) borders_[static_cast<size_t>(i)] = length;
    if (length >= best_length) {
      best_length = length;
      best_start = size - 1 - i;
    }
  }
  if (best_length < config_.min_length) return;
  const int32_t next = best_start + best_length;
  const int32_t count = std::min(num_wanted, size - next);
  proposed.insert(proposed.end(), text.begin() + next, text.begin() + next + count);
}

}  // namespace eyrie::runtime
