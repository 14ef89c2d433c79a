#include "checkpoint/dummy_pattern.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "base/check.h"
#include "base/error.h"
#include "formats/recipe.h"

namespace eyrie::checkpoint {
namespace {

// 127 pages of E8M0 scales belong to 2032 pages of MXFP4 codes, so both streams end together.
constexpr size_t kPageBytes = 4096;
constexpr size_t kDataBytes = 2032 * kPageBytes;
constexpr size_t kScaleBytes = 127 * kPageBytes;
constexpr int64_t kColumns = 2048;
// Views begin at multiples of these: a slot of codes and the scales that belong to it.
constexpr size_t kSlotBytes = 1024;
constexpr size_t kNumSlots = 1024;

// The content again and again, cut at `bytes`.
std::vector<std::byte> repeated(const std::vector<std::byte>& content, size_t bytes) {
  std::vector<std::byte> out(bytes);
  for (size_t begin = 0; begin < bytes; begin += content.size()) {
    std::memcpy(out.data() + begin, content.data(), std::min(content.size(), bytes - begin));
  }
  return out;
}

}  // namespace

RepeatedBlock::RepeatedBlock(std::span<const std::byte> content) : block_bytes_(content.size()) {
  CHECK(!content.empty() && content.size() % kPageBytes == 0);
  file_ = ::memfd_create("eyrie-dummy", MFD_CLOEXEC);
  if (file_ < 0 || ::ftruncate(file_, static_cast<off_t>(content.size())) != 0) {
    fail("no memory for made-up weights: {}", std::strerror(errno));
  }
  std::memcpy(at_least(content.size()), content.data(), content.size());
}

RepeatedBlock::~RepeatedBlock() {
  for (const Range& range : ranges_) ::munmap(range.data, range.bytes);
  if (file_ >= 0) ::close(file_);
}

std::byte* RepeatedBlock::at_least(size_t bytes) {
  for (const Range& range : ranges_) {
    if (range.bytes >= bytes) return range.data;
  }
  const size_t total = (bytes + block_bytes_ - 1) / block_bytes_ * block_bytes_;
  void* place = ::mmap(nullptr, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (place == MAP_FAILED) fail("no memory for made-up weights: {}", std::strerror(errno));
  ranges_.push_back({static_cast<std::byte*>(place), total});
  for (size_t begin = 0; begin < total; begin += block_bytes_) {
    if (::mmap(ranges_.back().data + begin, block_bytes_, PROT_READ | PROT_WRITE,
               MAP_SHARED | MAP_FIXED, file_, 0) == MAP_FAILED) {
      fail("no memory for made-up weights: {}", std::strerror(errno));
    }
  }
  return ranges_.back().data;
}

float dummy_pattern_stddev(std::string_view name) {
  return name.ends_with("embed_tokens") ? 1.0f : kDummyStddev;
}

DummyPattern::DummyPattern(const formats::WeightFormat& format, float stddev) : format_(format) {
  const size_t data_row =
      static_cast<size_t>(format.data_columns(kColumns)) * dtype_bytes(format.data_dtype);
  const size_t scale_row =
      static_cast<size_t>(format.scale_columns(kColumns)) * dtype_bytes(format.scale_dtype);
  const formats::Recipe* recipe = formats::find_recipe(format);
  const auto step = static_cast<size_t>(format.block_out);
  const size_t num_rows = kDataBytes / data_row / step * step;
  std::vector<std::byte> data(num_rows * data_row), scales(num_rows / step * scale_row);
  constexpr auto kWidth = static_cast<size_t>(kColumns);
  std::vector<float> values(step * kWidth);
  for (size_t i = 0; i < num_rows; i += step) {
    for (size_t r = 0; r < step; ++r) {
      dummy_row("pattern", static_cast<int64_t>(i + r), {values.data() + r * kWidth, kWidth});
    }
    for (float& value : values) value *= stddev / kDummyStddev;
    const std::span<std::byte> codes(data.data() + i * data_row, step * data_row);
    if (recipe == nullptr) {
      format.encode_row(values, codes, {});
    } else {
      recipe->encode({.rows = values,
                      .in = kColumns,
                      .data = codes,
                      .scales = {scales.data() + i / step * scale_row, scale_row}});
    }
  }
  data_ = std::make_unique<RepeatedBlock>(repeated(data, kDataBytes));
  if (!scales.empty()) {
    scales_ = std::make_unique<RepeatedBlock>(repeated(scales, kScaleBytes));
  }
}

formats::Weight DummyPattern::weight(std::string_view name, int64_t out, int64_t in) {
  const size_t slot = name_hash(name) % kNumSlots;
  const int64_t data_columns = format_.data_columns(in);
  const size_t data_bytes =
      static_cast<size_t>(out * data_columns) * dtype_bytes(format_.data_dtype);
  formats::Weight weight = {.format = &format_, .out = out, .in = in, .data = {}, .scales = {}};
  weight.data = Tensor(data_->at_least(data_bytes + kNumSlots * kSlotBytes) + slot * kSlotBytes,
                       format_.data_dtype, {out, data_columns});
  if (scales_ == nullptr) return weight;
  const int64_t rows = format_.scale_rows(out), columns = format_.scale_columns(in);
  const size_t scale_size = dtype_bytes(format_.scale_dtype);
  // Codes of a slot have so many scales, where these lie along the row.
  const size_t slot_scales =
      format_.block_out == 1 && format_.block_in > 0
          ? kSlotBytes * 8 / static_cast<size_t>(format_.bits_per_element * format_.block_in)
          : 0;
  const size_t offset = slot * slot_scales * scale_size;
  const size_t scale_bytes = static_cast<size_t>(rows * columns) * scale_size;
  weight.scales =
      Tensor(scales_->at_least(scale_bytes + kNumSlots * slot_scales * scale_size) + offset,
             format_.scale_dtype, {rows, columns});
  return weight;
}

}  // namespace eyrie::checkpoint
