#include <algorithm>
#include <mutex>

#include "base/error.h"
#include "ops/gpu/backend.h"
#include "ops/gpu/device.h"
#include "ops/gpu/weights.h"

// Weights come as views of mapped files. Their bytes go to the device as they are, through pinned
// buffers, into a staging area that is used again and again in the order of the stream; kernels
// there bring them into the layout.
namespace eyrie::ops::gpu {
namespace {

constexpr size_t kStagingBytes = size_t{64} << 20;
constexpr int64_t kScaleRows = 128;  // rows that share a scale at most

Encoding encoding_of(const formats::WeightFormat& format) {
  if (&format == &formats::kF32) return Encoding::kF32;
  if (&format == &formats::kBF16) return Encoding::kBF16;
  if (&format == &formats::kF16) return Encoding::kF16;
  if (&format == &formats::kFp8) return Encoding::kFp8;
  if (&format == &formats::kFp8Block) return Encoding::kFp8Block;
  if (&format == &formats::kMxfp4) return Encoding::kMxfp4;
  if (&format == &formats::kNvfp4) return Encoding::kNvfp4;
  if (&format == &formats::kInt4G32) return Encoding::kInt4;
  fail("weights in {} cannot be prepared for a GPU", format.name);
}

// What the layouts can hold as it is; the rest is decoded to bf16.
bool keeps_encoding(std::span<const formats::Weight> parts) {
  const formats::WeightFormat* format = parts.front().format;
  if (layout_of(*format) == Layout::kBF16) return true;
  int64_t rows = 0;
  for (const formats::Weight& part : parts) {
    if (part.format != format || part.in % 32 != 0) return false;
    // All rows of a tile share the scale of their block.
    if (format == &formats::kFp8Block && (rows % kRowTile != 0 || part.first_row % kRowTile != 0)) {
      return false;
    }
    rows += part.out;
  }
  return true;
}

void check_scales(const formats::Weight& weight) {
  if (weight.format != &formats::kMxfp4) return;
  const auto* scales = static_cast<const uint8_t*>(weight.scales.raw());
  int64_t num_large = 0;
  for (int64_t i = 0; i < weight.scales.num_elements(); ++i) {
    num_large += static_cast<int64_t>(scales[i] > kLargestE8m0 && scales[i] != 255);
  }
  if (num_large > 0) {
    fail("an mxfp4 weight [{}, {}] has {} scales above 2^33, which GPU kernels cannot hold",
         weight.out, weight.in, num_large);
  }
}

// Device memory that every weight passes through.
class Staging {
 public:
  std::byte* at(size_t offset, size_t bytes) {
    if (offset + bytes > memory_.bytes()) {
      check_device();  // what is enqueued still reads the old memory
      memory_ = {};
      memory_ = Buffer(std::max(offset + bytes, kStagingBytes), device_memory());
    }
    return memory_.data() + offset;
  }
  std::mutex mutex;

 private:
  Buffer memory_;
};

Staging& staging() {
  static auto* const instance = new Staging;  // the driver may be gone when statics go
  return *instance;
}

struct Target {
  Layout layout;
  uint8_t* data;
  float* row_scale;
  int64_t stride;
};

void pack_part(const Ctx& ctx, const formats::Weight& part, const Target& target,
               int64_t first_row) {
  const formats::WeightFormat& format = *part.format;
  const auto row_bytes = static_cast<size_t>(part.data.dim(1)) * dtype_bytes(format.data_dtype);
  const bool has_scales = format.block_in != 0;
  const bool shares_rows = format.block_out > 1;
  const int64_t scale_columns = has_scales ? format.scale_columns(part.in) : 0;
  const size_t scale_row_bytes =
      static_cast<size_t>(scale_columns) * dtype_bytes(format.scale_dtype);
  const int64_t chunk_rows =
      std::max(static_cast<int64_t>(kStagingBytes / 2 / std::max<size_t>(row_bytes, 1)) /
                   kScaleRows * kScaleRows,
               kScaleRows);
  const std::lock_guard lock(staging().mutex);
  for (int64_t row = 0; row < part.out; row += chunk_rows) {
    const int64_t rows = std::min(chunk_rows, part.out - row);
    const size_t code_bytes = static_cast<size_t>(rows) * row_bytes;
    const size_t scales_at = static_cast<size_t>(align_up(static_cast<int64_t>(code_bytes), 256));
    const size_t scale_bytes =
        shares_rows ? part.scales.bytes() : static_cast<size_t>(rows) * scale_row_bytes;
    std::byte* const codes = staging().at(0, scales_at + scale_bytes);
    std::byte* const scales = codes + scales_at;
    upload(codes,
           static_cast<const std::byte*>(part.data.raw()) + static_cast<size_t>(row) * row_bytes,
           code_bytes, ctx.stream, ctx.pool);
    if (scale_bytes > 0) {
      const size_t from = shares_rows ? 0 : static_cast<size_t>(row) * scale_row_bytes;
      upload(scales, static_cast<const std::byte*>(part.scales.raw()) + from, scale_bytes,
             ctx.stream, ctx.pool);
    }
    launch_pack({.encoding = encoding_of(format),
                 .layout = target.layout,
                 .codes = codes,
                 .scales = scales,
                 .scale_columns = scale_columns,
                 .global_scale = part.global_scale,
                 .source_row = part.first_row + row,
                 .rows = rows,
                 .inputs = part.in,
                 .to = target.data,
                 .row_scale = target.row_scale,
                 .first_row = first_row + row,
                 .stride = target.stride},
                ctx.stream);
  }
}

}  // namespace

Layout layout_of(const formats::WeightFormat& format) {
  if (&format == &formats::kMxfp4) return Layout::kMxfp4;
  if (&format == &formats::kNvfp4) return Layout::kNvfp4;
  if (&format == &formats::kInt4G32) return Layout::kInt4;
  if (&format == &formats::kFp8) return Layout::kFp8;
  if (&format == &formats::kFp8Block) return Layout::kFp8Block;
  return Layout::kBF16;
}

int64_t packed_stride(Layout layout, int64_t inputs) {
  const int64_t units = div_ceil(inputs, static_cast<int64_t>(unit_inputs(layout)));
  return layout == Layout::kBF16 ? units * unit_inputs(layout) : units;
}

size_t packed_bytes(Layout layout, int64_t rows, int64_t inputs) {
  const int64_t padded = align_up(rows, int64_t{kRowGroup}), stride = packed_stride(layout, inputs);
  return static_cast<size_t>(layout == Layout::kBF16
                                 ? padded * stride * 2
                                 : padded / kRowTile * stride * unit_bytes(layout));
}

bool has_row_scale(Layout layout) { return layout == Layout::kFp8 || layout == Layout::kNvfp4; }

static size_t row_scale_offset(Layout layout, int64_t rows, int64_t inputs) {
  return static_cast<size_t>(
      align_up(static_cast<int64_t>(packed_bytes(layout, rows, inputs)), 256));
}

PackedMatrix packed_matrix(const PreparedWeight& weight) {
  const Layout layout = layout_of(*weight.format);
  const auto* data = reinterpret_cast<const uint8_t*>(weight.storage.data());
  return {.data = data,
          .row_scale = has_row_scale(layout)
                           ? reinterpret_cast<const float*>(
                                 data + row_scale_offset(layout, weight.out, weight.in))
                           : nullptr};
}

// Activations are never rounded to a weight's format here: they meet all weights in bf16.
PreparedWeight prepare(const Ctx& ctx, std::span<const formats::Weight> parts,
                       ActivationQuantization) {
  PreparedWeight prepared;
  prepared.in = parts.front().in;
  for (const formats::Weight& part : parts) {
    prepared.out += part.out;
    check_scales(part);
  }
  prepared.format = keeps_encoding(parts) ? parts.front().format : &formats::kBF16;
  const Layout layout = layout_of(*prepared.format);
  if (layout == Layout::kBF16) prepared.format = &formats::kBF16;
  const size_t bytes = packed_bytes(layout, prepared.out, prepared.in);
  const size_t scales_at = row_scale_offset(layout, prepared.out, prepared.in);
  prepared.storage = Buffer(
      has_row_scale(layout) ? scales_at + static_cast<size_t>(prepared.out) * sizeof(float) : bytes,
      device_memory());
  const Target target{.layout = layout,
                      .data = reinterpret_cast<uint8_t*>(prepared.storage.data()),
                      .row_scale = reinterpret_cast<float*>(prepared.storage.data() + scales_at),
                      .stride = packed_stride(layout, prepared.in)};
  const bool is_padded = prepared.out % kRowGroup != 0 || prepared.in % unit_inputs(layout) != 0;
  if (is_padded) fill_bytes(target.data, 0, bytes, ctx.stream);
  int64_t row = 0;
  for (const formats::Weight& part : parts) {
    if (part.format == &formats::kBF16 && !is_padded && layout == Layout::kBF16) {
      upload(target.data + static_cast<size_t>(row * target.stride) * sizeof(bf16), part.data.raw(),
             part.data.bytes(), ctx.stream, ctx.pool);
    } else {
      pack_part(ctx, part, target, row);
    }
    row += part.out;
  }
  return prepared;
}

Buffer stack(const Ctx& ctx, std::span<const PreparedWeight> weights) {
  std::vector<PackedMatrix> table;
  for (const PreparedWeight& weight : weights) {
    CHECK(weight.format == weights.front().format && weight.out == weights.front().out &&
              weight.in == weights.front().in,
          "a stack of {} [{}, {}] with {} [{}, {}] in it", weights.front().format->name,
          weights.front().out, weights.front().in, weight.format->name, weight.out, weight.in);
    table.push_back(packed_matrix(weight));
  }
  const size_t bytes = table.size() * sizeof(PackedMatrix);
  Buffer memory(std::max<size_t>(bytes, 1), device_memory());
  upload(memory.data(), table.data(), bytes, ctx.stream, ctx.pool);
  return memory;
}

}  // namespace eyrie::ops::gpu
