#include "quantize/shard_writer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <exception>
#include <limits>
#include <mutex>

#include "base/error.h"
#include "base/math.h"
#include "quantize/read_ahead.h"

namespace eyrie::quantize {
namespace {

using checkpoint::SafetensorsFile;
using checkpoint::SafetensorsWriter;
using formats::Weight;
using formats::WeightFormat;

constexpr int64_t kElementsPerTask = 1 << 16;   // a task of some 100 µs
constexpr size_t kCopyPiece = size_t{1} << 20;  // bytes

std::span<const std::byte> bytes_of(const Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.raw()), tensor.bytes()};
}

// Lets the kernel take back the pages of mapped bytes that have been dealt with, so that memory in
// use does not grow with the checkpoint. Pages shared with a neighbour stay.
void release_pages(std::span<const std::byte> bytes) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<uintptr_t>(bytes.data()) + page - 1) / page * page;
  const auto end = (reinterpret_cast<uintptr_t>(bytes.data()) + bytes.size()) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

// A shard's tensors as they lie on the disk.
std::vector<std::pair<std::string, Tensor>> in_file_order(const SafetensorsFile& file) {
  std::vector<std::pair<std::string, Tensor>> tensors(file.tensors().begin(), file.tensors().end());
  std::sort(tensors.begin(), tensors.end(),
            [](const auto& a, const auto& b) { return a.second.raw() < b.second.raw(); });
  return tensors;
}

// What the decoded values count as: compressed sources become BF16, as in Quark's conversions.
DType source_dtype(const WeightFormat& format) {
  return format.block_in == 0 ? format.data_dtype : DType::kBF16;
}

// Layers over one input that engines run as one matrix: they get one global scale.
std::vector<std::string> fused_with(const std::string& module) {
  static const std::vector<std::vector<std::string>> kGroups = {{"gate_proj", "up_proj"},
                                                                {"q_proj", "k_proj", "v_proj"}};
  const size_t dot = module.rfind('.');
  if (dot == std::string::npos) return {module};
  const std::string prefix = module.substr(0, dot + 1), last = module.substr(dot + 1);
  for (const std::vector<std::string>& group : kGroups) {
    if (std::find(group.begin(), group.end(), last) == group.end()) continue;
    std::vector<std::string> modules;
    for (const std::string& part : group) modules.push_back(prefix + part);
    return modules;
  }
  return {module};
}

}  // namespace

ShardWriter::ShardWriter(const formats::Recipe& recipe, checkpoint::Checkpoint* files,
                         const std::vector<std::string>& quantized, int num_threads)
    : recipe_(recipe),
      files_(*files),
      quantized_(quantized),
      pool_(num_threads),
      rows_(static_cast<size_t>(pool_.size())),
      encoded_(static_cast<size_t>(pool_.size())) {
  report_.bytes_in = files->total_bytes();
  for (const std::string& module : quantized) {
    for (const std::string& name : files->weight_tensors(module)) {
      if (checkpoint::module_of(name).empty()) replaced_.insert(name);
    }
  }
}

bool ShardWriter::is_quantized(const std::string& module) const {
  return !module.empty() && std::binary_search(quantized_.begin(), quantized_.end(), module);
}

// The module whose weight this tensor is, when it is to be quantized.
std::string ShardWriter::quantized_module(const std::string& tensor_name) const {
  const std::string module(checkpoint::module_of(tensor_name));
  return is_quantized(module) ? module : "";
}

std::vector<ShardWriter::Writer::Item> ShardWriter::plan(const SafetensorsFile& file) const {
  std::vector<Writer::Item> items;
  for (const auto& [name, tensor] : file.tensors()) {
    if (replaced_.contains(name)) continue;
    const std::string module = quantized_module(name);
    if (module.empty()) {
      std::vector<int64_t> shape;
      for (int i = 0; i < tensor.rank(); ++i) shape.push_back(tensor.dim(i));
      items.push_back({name, tensor.dtype(), shape});
      continue;
    }
    const int64_t bits = tensor.dim(1) * 8 * static_cast<int64_t>(dtype_bytes(tensor.dtype()));
    const int64_t in = bits / files_.format_of(module)->bits_per_element;
    for (auto& item : layout_of(recipe_, module, tensor.dim(0), in, input_amax != nullptr).items())
      items.push_back(item);
  }
  return items;
}

void ShardWriter::read_ahead(const std::vector<const SafetensorsFile*>& files) {
  std::vector<std::string> paths;
  std::vector<ReadAhead::Range> ranges;
  for (const SafetensorsFile* file : files) {
    for (const auto& [name, tensor] : in_file_order(*file)) {
      ranges.push_back({paths.size(), file->offset_of(tensor), tensor.bytes()});
    }
    paths.push_back(file->path());
  }
  read_ahead_ = std::make_unique<ReadAhead>(paths, std::move(ranges));
}

std::unique_ptr<SafetensorsWriter> ShardWriter::write(const SafetensorsFile& file,
                                                      const std::string& path) {
  auto writer = std::make_unique<Writer>(path, plan(file));
  for (const auto& [name, tensor] : in_file_order(file)) {
    at_hand_ = {.mapped = bytes_of(tensor), .read = read_ahead_->next()};
    const std::string module = quantized_module(name);
    if (!module.empty()) {
      encode(module, writer.get());
      ++report_.num_quantized;
    } else if (!replaced_.contains(name)) {
      copy(name, tensor, writer.get());
      ++report_.num_kept;
    }
    release_pages(bytes_of(tensor));
    writer->start_writeback();
    advance(tensor.bytes());
  }
  at_hand_ = {};
  report_.bytes_out += writer->data_bytes();
  return writer;
}

void ShardWriter::skip(const SafetensorsFile& file) {
  for (const auto& [name, tensor] : file.tensors()) {
    if (!quantized_module(name).empty()) {
      ++report_.num_quantized;
    } else if (!replaced_.contains(name)) {
      ++report_.num_kept;
    }
    bytes_done_ += tensor.bytes();
  }
  for (const Writer::Item& item : plan(file)) {
    size_t bytes = dtype_bytes(item.dtype);
    for (const int64_t dim : item.shape) bytes *= static_cast<size_t>(dim);
    report_.bytes_out += bytes;
  }
}

Report ShardWriter::report() const {
  Report result = report_;
  result.seconds = seconds();
  return result;
}

// Mapped bytes of the tensor at hand are better taken from where they have been read to.
std::span<const std::byte> ShardWriter::where_read(std::span<const std::byte> mapped) const {
  const bool is_read = mapped.data() == at_hand_.mapped.data() &&
                       mapped.size() == at_hand_.read.size() && !mapped.empty();
  return is_read ? at_hand_.read : mapped;
}

Weight ShardWriter::weight_of(const std::string& module) {
  Weight weight = files_.stored_weight(module);
  const std::span<const std::byte> bytes = where_read(bytes_of(weight.data));
  weight.data = Tensor(const_cast<std::byte*>(bytes.data()), weight.data.dtype(),
                       {weight.data.dim(0), weight.data.dim(1)});
  return weight;
}

void ShardWriter::release(std::span<const std::byte> bytes) const {
  const std::span<const std::byte> read = at_hand_.read;
  const bool is_read =
      !read.empty() && bytes.data() >= read.data() && bytes.data() < read.data() + read.size();
  if (!is_read) release_pages(bytes);
}

// A full disk is met by whichever thread writes: its error is the caller's.
void ShardWriter::run_tasks(int64_t num_tasks, const std::function<void(int64_t, int)>& task) {
  std::mutex mutex;
  std::exception_ptr error;
  std::atomic<bool> has_failed{false};
  pool_.run(num_tasks, [&](int64_t index, int thread) {
    if (has_failed) return;
    try {
      task(index, thread);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
      has_failed = true;
    }
  });
  if (error) std::rethrow_exception(error);
}

void ShardWriter::copy(const std::string& name, const Tensor& tensor, Writer* writer) {
  const std::span<const std::byte> bytes = where_read(bytes_of(tensor));
  run_tasks(div_ceil(static_cast<int64_t>(bytes.size()), static_cast<int64_t>(kCopyPiece)),
            [&](int64_t index, int) {
              const size_t begin = static_cast<size_t>(index) * kCopyPiece;
              const auto piece = bytes.subspan(begin, std::min(kCopyPiece, bytes.size() - begin));
              writer->write(name, begin, piece);
              release(piece);
            });
}

// Rows [first, first + count) as float32, and whether all of them are finite; else the first that
// is not.
std::optional<int64_t> ShardWriter::decode(const Weight& weight, int64_t first,
                                           std::span<float> values) const {
  const bool round = source_dtype(*weight.format) != weight.format->data_dtype;
  const auto in = static_cast<size_t>(weight.in);
  for (size_t begin = 0; begin < values.size(); begin += in, ++first) {
    const std::span<float> row = values.subspan(begin, in);
    weight.format->decode_row(weight, first, row);
    if (round) {
      for (float& x : row) x = to_float(to_bf16(x));
    }
    if (!formats::all_finite(row)) return first;
  }
  return std::nullopt;
}

void ShardWriter::for_rows(const Weight& weight, const std::string& module, const RowsTask& task) {
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  std::atomic<int64_t> bad_row{kNone};
  const int64_t in = weight.in, block = recipe_.format->block_out;
  const int64_t step =
      block * std::max<int64_t>(1, kElementsPerTask / std::max<int64_t>(1, in * block));
  const size_t row_bytes =
      weight.out == 0 ? 0 : weight.data.bytes() / static_cast<size_t>(weight.out);
  run_tasks(div_ceil(weight.out, step), [&](int64_t index, int thread) {
    const int64_t first = index * step, count = std::min(step, weight.out - first);
    std::vector<float>& values = rows_[static_cast<size_t>(thread)];
    values.resize(static_cast<size_t>(count * in));
    if (const auto bad = decode(weight, first, values)) {
      int64_t seen = bad_row.load();
      while (*bad < seen && !bad_row.compare_exchange_weak(seen, *bad)) continue;
      return;
    }
    task(thread, first, values);
    release(bytes_of(weight.data)
                .subspan(static_cast<size_t>(first) * row_bytes,
                         static_cast<size_t>(count) * row_bytes));
  });
  if (bad_row != kNone) {
    fail(
        "{}: {}.weight has a value that is not finite in row {}; such a weight cannot be quantized",
        files_.path(), module, bad_row.load());
  }
}

float ShardWriter::largest_of(const std::string& module) {
  const Weight weight = weight_of(module);
  std::mutex mutex;
  float largest = 0.0f;
  for_rows(weight, module, [&](int, int64_t, std::span<const float> rows) {
    float amax = 0.0f;
    for (const float x : rows) amax = std::max(amax, std::fabs(x));
    const std::lock_guard lock(mutex);
    largest = std::max(largest, amax);
  });
  release(bytes_of(weight.data));
  files_.drop_copies();
  return largest;
}

// The second-level scale to store: one for all layers that run as one, so that engines which keep
// only one of them (vLLM takes the larger) compute with the right one.
float ShardWriter::global_of(const std::string& module) {
  const std::vector<std::string> group =
      share_global_scales ? fused_with(module) : std::vector<std::string>{module};
  const auto [place, is_new] = largest_.emplace(group.front(), 0.0f);
  DType source = DType::kBF16;
  if (const WeightFormat* format = files_.format_of(module)) source = source_dtype(*format);
  if (is_new) {
    for (const std::string& part : group) {
      if (is_quantized(part)) place->second = std::max(place->second, largest_of(part));
    }
  }
  return recipe_.stored_global(place->second, source);
}

// As global_of, of the activations: layers that run as one have one input. float32 whatever the
// weight's dtype, since the activations were.
float ShardWriter::input_global_of(const std::string& module) const {
  float largest = 0.0f;
  for (const std::string& part : fused_with(module)) {
    const auto found = input_amax->find(part);
    if (found != input_amax->end()) largest = std::max(largest, found->second);
  }
  return recipe_.stored_global(largest, DType::kF32);
}

void ShardWriter::encode(const std::string& module, Writer* writer) {
  const WeightFormat& format = *recipe_.format;
  const float global = recipe_.stored_global != nullptr ? global_of(module) : 1.0f;
  const Weight weight = weight_of(module);
  const LayerLayout layout =
      layout_of(recipe_, module, weight.out, weight.in, input_amax != nullptr);
  const auto in = static_cast<size_t>(weight.in), block = static_cast<size_t>(format.block_out);
  const size_t data_row =
      static_cast<size_t>(format.data_columns(weight.in)) * dtype_bytes(format.data_dtype);
  const size_t scale_row =
      static_cast<size_t>(format.scale_columns(weight.in)) * dtype_bytes(recipe_.scale_dtype);
  scales_.resize(static_cast<size_t>(format.scale_rows(weight.out)) * scale_row);
  for_rows(weight, module, [&](int thread, int64_t first_row, std::span<const float> rows) {
    const auto first = static_cast<size_t>(first_row);
    const size_t count = in == 0 ? 0 : rows.size() / in;
    std::vector<std::byte>& encoded = encoded_[static_cast<size_t>(thread)];
    encoded.resize(count * data_row);
    for (size_t r = 0; r < count; r += block) {
      const size_t n = std::min(block, count - r);
      recipe_.encode({.rows = rows.subspan(r * in, n * in),
                      .in = weight.in,
                      .data = {encoded.data() + r * data_row, n * data_row},
                      .scales = {scales_.data() + (first + r) / block * scale_row, scale_row},
                      .source = source_dtype(*weight.format),
                      .stored_global = global});
    }
    writer->write(layout.data.name, first * data_row, encoded);
  });
  writer->write(layout.scales.name, scales_);
  for (const Writer::Item& item : layout.global) {
    writer->write(item.name, std::as_bytes(std::span(&global, 1)));
  }
  for (const Writer::Item& item : layout.input) {
    const float input_global = input_global_of(module);
    writer->write(item.name, std::as_bytes(std::span(&input_global, 1)));
  }
  const int64_t shape[2] = {weight.out, weight.in};
  for (const Writer::Item& item : layout.shape) {
    writer->write(item.name, std::as_bytes(std::span(shape)));
  }
  files_.drop_copies();
}

void ShardWriter::advance(size_t bytes) {
  bytes_done_ += bytes;
  if (on_progress) on_progress({bytes_done_, report_.bytes_in, seconds()});
}

double ShardWriter::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

}  // namespace eyrie::quantize
