#include "quantize/quantize.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/math.h"
#include "base/threads.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/writer.h"
#include "quantize/output_folder.h"
#include "quantize/quark_config.h"

namespace eyrie::quantize {
namespace {

using checkpoint::Checkpoint;
using checkpoint::ModuleList;
using checkpoint::SafetensorsFile;
using checkpoint::SafetensorsWriter;
using formats::WeightFormat;
using nlohmann::json;

constexpr int64_t kElementsPerTask = 1 << 16;    // a task of some 100 µs
constexpr size_t kCopyPiece = size_t{16} << 20;  // bytes; bounds the pages a copy keeps

std::string module_of(const std::string& tensor_name) {
  return tensor_name.substr(0, tensor_name.size() - std::strlen(".weight"));
}

bool is_linear(const std::string& name, const Tensor& tensor) {
  return checkpoint::is_linear_weight_name(name) && tensor.rank() == 2;
}

// Which linear layers to quantize, by module name.
struct Selection {
  std::vector<std::string> quantized;  // sorted
  std::vector<std::string> kept;       // sorted

  bool has(const std::string& module) const {
    return std::binary_search(quantized.begin(), quantized.end(), module);
  }
};

// A pattern the user typed that matches nothing is a mistake: the layer it meant would silently be
// treated the other way.
void check_patterns_match(const char* flag, const std::vector<std::string>& patterns,
                          const std::vector<std::string>& modules) {
  for (const std::string& pattern : patterns) {
    const ModuleList list({pattern});
    const bool matches =
        std::any_of(modules.begin(), modules.end(),
                    [&](const std::string& module) { return list.matches(module); });
    if (!matches) fail("{} {} matches no linear layer", flag, pattern);
  }
}

void check_plain(const Checkpoint& files) {
  for (const std::string& name : files.names()) {
    const Tensor& tensor = *files.find(name);
    const bool is_packed = name.ends_with(".weight_packed") || name.ends_with(".weight_scale") ||
                           name.ends_with(".weight_scale_inv");
    const DType dtype = tensor.dtype();
    const bool is_float = dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
    if (is_packed || (is_linear(name, tensor) && !is_float)) {
      fail("{} is quantized already ({} is {}); quantize reads BF16, F16 and F32 checkpoints",
           files.path(), name, tensor.shape_string());
    }
  }
}

Selection select(const Checkpoint& files, const Options& options) {
  std::vector<std::string> modules;
  for (const std::string& name : files.names()) {
    if (is_linear(name, *files.find(name))) modules.push_back(module_of(name));
  }
  if (options.exclude) check_patterns_match("--exclude", *options.exclude, modules);
  check_patterns_match("--include", options.include, modules);

  const ModuleList exclude(
      options.exclude.value_or(default_exclude(files.config(), *options.format)));
  const ModuleList include(options.include);
  Selection selection;
  for (const std::string& module : modules) {
    const bool quantized = !exclude.matches(module) || include.matches(module);
    (quantized ? selection.quantized : selection.kept).push_back(module);
  }
  std::sort(selection.quantized.begin(), selection.quantized.end());
  std::sort(selection.kept.begin(), selection.kept.end());
  if (selection.quantized.empty()) {
    fail("nothing to quantize in {}: all {} linear layers are excluded", files.path(),
         modules.size());
  }
  const int64_t block = options.format->block_in;
  for (const std::string& module : selection.quantized) {
    const int64_t in = files.find(module + ".weight")->dim(1);
    if (block > 0 && in % block != 0) {
      fail("{}: {} has {} inputs, which {} cannot divide into blocks of {}; --exclude it",
           files.path(), module, in, options.format->name, block);
    }
  }
  return selection;
}

// Lets the kernel take back the pages of a mapped tensor that has been dealt with, so that memory
// in use does not grow with the checkpoint. Pages shared with a neighbour stay.
void release_pages(const Tensor& tensor) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<uintptr_t>(tensor.raw()) + page - 1) / page * page;
  const auto end = (reinterpret_cast<uintptr_t>(tensor.raw()) + tensor.bytes()) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

class Quantizer {
 public:
  Quantizer(const Options& options, const Checkpoint& files, const Selection& selection)
      : options_(options),
        format_(*options.format),
        files_(files),
        selection_(selection),
        pool_(options.num_threads),
        rows_(static_cast<size_t>(pool_.size())) {
    report_.bytes_in = files.total_bytes();
  }

  // Returns the bytes of the tensors written.
  size_t write_shard(const SafetensorsFile& file, const std::string& path) {
    SafetensorsWriter writer(path, plan(file));
    for (const auto& [name, tensor] : file.tensors()) {
      if (is_quantized(name, tensor)) {
        encode(name, tensor, &writer);
        ++report_.num_quantized;
      } else {
        copy(name, tensor, &writer);
        ++report_.num_kept;
      }
      release_pages(tensor);
      bytes_done_ += tensor.bytes();
      if (options_.on_progress) options_.on_progress({bytes_done_, report_.bytes_in, seconds()});
    }
    writer.finish();
    report_.bytes_out += writer.data_bytes();
    return writer.data_bytes();
  }

  std::vector<SafetensorsWriter::Item> plan(const SafetensorsFile& file) const {
    std::vector<SafetensorsWriter::Item> items;
    for (const auto& [name, tensor] : file.tensors()) {
      if (is_quantized(name, tensor)) {
        const int64_t out = tensor.dim(0), in = tensor.dim(1);
        items.push_back({name, format_.data_dtype, {out, format_.data_columns(in)}});
        // One scale a row is a vector in Quark's files.
        items.push_back({name + "_scale", format_.scale_dtype,
                         format_.block_in > 0 ? std::vector{out, format_.scale_columns(in)}
                                              : std::vector{out}});
      } else {
        std::vector<int64_t> shape;
        for (int i = 0; i < tensor.rank(); ++i) shape.push_back(tensor.dim(i));
        items.push_back({name, tensor.dtype(), shape});
      }
    }
    return items;
  }

  Report report() const {
    Report result = report_;
    result.seconds = seconds();
    return result;
  }

 private:
  bool is_quantized(const std::string& name, const Tensor& tensor) const {
    return is_linear(name, tensor) && selection_.has(module_of(name));
  }

  void copy(const std::string& name, const Tensor& tensor, SafetensorsWriter* writer) const {
    const std::span<const std::byte> bytes(static_cast<const std::byte*>(tensor.raw()),
                                           tensor.bytes());
    for (size_t begin = 0; begin < bytes.size(); begin += kCopyPiece) {
      writer->write(name, begin, bytes.subspan(begin, std::min(kCopyPiece, bytes.size() - begin)));
    }
  }

  void encode(const std::string& name, const Tensor& tensor, SafetensorsWriter* writer) {
    const Tensor source = aligned(tensor);
    const formats::Weight weight = formats::plain_weight(source);
    const int64_t in = weight.in;
    const size_t data_row =
        static_cast<size_t>(format_.data_columns(in)) * dtype_bytes(format_.data_dtype);
    const size_t scale_row =
        static_cast<size_t>(format_.scale_columns(in)) * dtype_bytes(format_.scale_dtype);
    const auto rows = static_cast<size_t>(weight.out);
    data_.resize(rows * data_row);
    scales_.resize(rows * scale_row);

    constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
    std::atomic<int64_t> bad_row{kNone};
    const int64_t rows_per_task = std::max<int64_t>(1, kElementsPerTask / std::max<int64_t>(1, in));
    pool_.run(div_ceil(weight.out, rows_per_task), [&](int64_t task, int thread) {
      std::vector<float>& row = rows_[static_cast<size_t>(thread)];
      row.resize(static_cast<size_t>(in));
      const int64_t end = std::min(weight.out, (task + 1) * rows_per_task);
      for (int64_t r = task * rows_per_task; r < end; ++r) {
        weight.format->decode_row(weight, r, row);
        if (!formats::all_finite(row)) {
          bad_row = std::min(r, bad_row.load());
          return;
        }
        const auto i = static_cast<size_t>(r);
        format_.encode_row(row, {data_.data() + i * data_row, data_row},
                           {scales_.data() + i * scale_row, scale_row});
      }
    });
    if (bad_row != kNone) {
      fail("{}: {} has a value that is not finite in row {}; such a weight cannot be quantized",
           files_.path(), name, bad_row.load());
    }
    writer->write(name, data_);
    writer->write(name + "_scale", scales_);
  }

  // The tensor itself, or a copy when the file has it misaligned.
  Tensor aligned(const Tensor& tensor) {
    if (reinterpret_cast<uintptr_t>(tensor.raw()) % dtype_bytes(tensor.dtype()) == 0) return tensor;
    copy_ = Buffer(tensor.bytes());
    std::memcpy(copy_.data(), tensor.raw(), tensor.bytes());
    return Tensor(copy_.data(), tensor.dtype(), {tensor.dim(0), tensor.dim(1)});
  }

  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

  const Options& options_;
  const WeightFormat& format_;
  const Checkpoint& files_;
  const Selection& selection_;
  ThreadPool pool_;
  std::vector<std::vector<float>> rows_;  // one a thread
  std::vector<std::byte> data_, scales_;  // of the tensor at hand
  Buffer copy_;
  size_t bytes_done_ = 0;
  Report report_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

void write_config(const Options& options, const Selection& selection, const std::string& folder) {
  // Read again with its order of keys, so that the new file differs where it should.
  auto config = nlohmann::ordered_json::parse(read_text_file(options.input + "/config.json"));
  remove_quantization_config(&config);
  const bool draft = is_draft(json(config));
  std::vector<std::string> kept = selection.kept;
  if (draft) {
    // A draft may share the target's head: engines still build one and look it up here.
    for (const char* module : {"fc", "lm_head"}) {
      const auto is_module = [&](const std::string& name) { return name.ends_with(module); };
      if (std::none_of(kept.begin(), kept.end(), is_module) &&
          std::none_of(selection.quantized.begin(), selection.quantized.end(), is_module)) {
        kept.push_back(module);
      }
    }
  }
  config["quantization_config"] = quark_config(*options.format, kept, draft);
  write_file_atomically(folder + "/config.json", config.dump(2) + "\n");
}

}  // namespace

std::vector<const WeightFormat*> schemes() {
  std::vector<const WeightFormat*> result;
  for (const WeightFormat* format : formats::all_formats()) {
    if (format->block_in != 0) result.push_back(format);
  }
  return result;
}

bool is_draft(const json& config) {
  const auto it = config.find("architectures");
  if (it == config.end() || !it->is_array() || it->empty() || !(*it)[0].is_string()) return false;
  return (*it)[0].get_ref<const std::string&>().find("Eagle3") != std::string::npos;
}

std::vector<std::string> default_exclude(const json& config, const WeightFormat& format) {
  if (is_draft(config)) return {"fc", "lm_head"};
  std::vector<std::string> exclude = {"*self_attn*", "*mlp.gate", "*lm_head", "*mm_projector*",
                                      "*vision_tower*"};
  if (&format == &formats::kMxfp4) {
    for (const char* pattern :
         {"*mlp.gate_proj", "*mlp.up_proj", "*mlp.down_proj", "*shared_experts*"}) {
      exclude.push_back(pattern);
    }
  }
  return exclude;
}

Report quantize(const Options& options) {
  CHECK(options.format != nullptr && options.format->block_in != 0);
  const Checkpoint files = Checkpoint::open(options.input);
  check_plain(files);
  const Selection selection = select(files, options);
  OutputFolder output(options.input, options.output, options.overwrite);

  Quantizer quantizer(options, files, selection);
  std::map<std::string, std::string> shards;
  size_t total_bytes = 0;
  for (const SafetensorsFile& file : files.files()) {
    const std::string shard = std::filesystem::path(file.path()).filename().string();
    total_bytes += quantizer.write_shard(file, output.partial() + "/" + shard);
    for (const SafetensorsWriter::Item& item : quantizer.plan(file)) shards[item.name] = shard;
  }
  const bool is_single = shards.empty() || shards.begin()->second == "model.safetensors";
  if (!is_single) checkpoint::write_shard_index(output.partial(), shards, total_bytes);
  output.copy_companions(options.input);
  write_config(options, selection, output.partial());
  Checkpoint::open(output.partial());  // what gets the final name has been read back once
  output.commit();
  return quantizer.report();
}

}  // namespace eyrie::quantize
