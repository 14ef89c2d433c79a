// Made-up weights for a model too large to make up value by value: every weight is a view of one
// block of valid codes that lies in memory again and again (the same pages, mapped many times), so
// that hundreds of gigabytes cost a few megabytes and no time. Where a weight's view begins depends
// on its name. Values look like those of dummy.h; that they repeat makes no difference to speed, as
// kernels copy them into their own layout. Owned by a Checkpoint; one thread.
//
// But for the embedding, whose values are N(0, 1). With 0.02 it is no more than what attention adds
// to it, which is much the same for all rows of a sequence: these would then meet the same experts
// (7 of them 17 of 64, where 39 are expected), and a step would read less than it should.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "checkpoint/dummy.h"
#include "formats/weight.h"

namespace eyrie::checkpoint {

// A block of whole pages that lies in memory as often as needed, one after the other.
class RepeatedBlock {
 public:
  explicit RepeatedBlock(std::span<const std::byte> content);  // Error when the system refuses
  ~RepeatedBlock();
  RepeatedBlock(const RepeatedBlock&) = delete;
  RepeatedBlock& operator=(const RepeatedBlock&) = delete;

  // The block's repetitions, at least so many bytes of them; the same memory for the same request.
  std::byte* at_least(size_t bytes);

 private:
  struct Range {
    std::byte* data;
    size_t bytes;
  };
  size_t block_bytes_;
  int file_ = -1;
  std::vector<Range> ranges_;
};

// Standard deviation of the values a weight of this name gets.
float dummy_pattern_stddev(std::string_view name);

class DummyPattern {
 public:
  explicit DummyPattern(const formats::WeightFormat& format, float stddev = kDummyStddev);

  // [out, in] of the format.
  formats::Weight weight(std::string_view name, int64_t out, int64_t in);

 private:
  const formats::WeightFormat& format_;
  std::unique_ptr<RepeatedBlock> data_, scales_;
};

}  // namespace eyrie::checkpoint
