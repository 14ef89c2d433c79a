// Which layers, which folder, which config; the bytes of a shard are shard_writer.cpp.
#include "quantize/quantize.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <set>

#include "base/error.h"
#include "base/mapped_file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/writer.h"
#include "quantize/output_folder.h"
#include "quantize/producer_config.h"
#include "quantize/shard_writer.h"

namespace eyrie::quantize {
namespace {

namespace fs = std::filesystem;
using checkpoint::Checkpoint;
using checkpoint::ModuleList;
using checkpoint::SafetensorsFile;
using checkpoint::SafetensorsWriter;
using formats::WeightFormat;
using nlohmann::json;

bool is_linear(const std::string& name, const Tensor& tensor) {
  return checkpoint::is_linear_weight_name(name) && tensor.rank() == 2;
}

std::string module_name(const std::string& tensor_name) {
  return std::string(checkpoint::module_of(tensor_name));
}

// A source that is decoded to BF16 first, as Quark does, or read as it is.
bool is_decoded_first(const WeightFormat* format) {
  return format == &formats::kInt4G32 || format == &formats::kFp8Block;
}

// One piece of work at a time beside the caller's: a shard's way to the disk while the next one is
// encoded. Whatever ends the caller's work, the piece is done before the object is gone.
class Beside {
 public:
  ~Beside() {
    if (work_.valid()) work_.wait();
  }
  // Waits for the piece before; its error is thrown here.
  void start(std::function<void()> work) {
    finish();
    work_ = std::async(std::launch::async, std::move(work));
  }
  void finish() {
    if (work_.valid()) work_.get();
  }

 private:
  std::future<void> work_;
};

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

// A layer to quantize must have a source we take: one that is quantized to 8 or 4 bits already
// would lose more than its user expects.
int64_t check_source(Checkpoint* files, const std::string& module, const WeightFormat& target) {
  const WeightFormat* format = files->format_of(module);
  if (format == nullptr) files->stored_weight(module);  // says what is wrong
  CHECK(format != nullptr);
  if (format->block_in != 0 && !is_decoded_first(format)) {
    fail(
        "{}: {} is quantized already ({}); sources are BF16, F16, F32, INT4 of compressed-tensors "
        "and FP8 in 128x128 blocks",
        files->path(), module, format->name);
  }
  if (format == &target) {
    fail("{}: {} is {} already; --exclude it to keep it", files->path(), module, target.name);
  }
  const Tensor& data = *files->find(files->weight_tensors(module).front());
  const int64_t bits = data.dim(1) * 8 * static_cast<int64_t>(dtype_bytes(data.dtype()));
  return bits / format->bits_per_element;
}

Selection select(Checkpoint* source, const Options& options) {
  const Checkpoint& files = *source;
  const WeightFormat& format = *options.recipe->format;
  std::vector<std::string> modules;
  for (const std::string& name : files.names()) {
    if (is_linear(name, *files.find(name))) modules.push_back(module_name(name));
  }
  if (options.exclude) check_patterns_match("--exclude", *options.exclude, modules);
  check_patterns_match("--include", options.include, modules);

  const ModuleList exclude(options.exclude.value_or(default_exclude(files.config(), format)));
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
  for (const std::string& module : selection.quantized) {
    const int64_t in = check_source(source, module, format);
    if (!format.fits(in)) {
      fail("{}: {} has {} inputs, which {} cannot divide into blocks of {}; --exclude it",
           files.path(), module, in, format.name, format.block_in);
    }
  }
  return selection;
}

ConfigRequest config_request(const Options& options, const Selection& selection, bool draft) {
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
  return {.recipe = options.recipe,
          .kept = std::move(kept),
          .is_draft = draft,
          .kv_cache_fp8 = options.kv_cache_fp8,
          .is_calibrated = !options.input_amax.empty()};
}

void write_config(const Options& options, const ConfigRequest& request, const std::string& folder) {
  // Read again with its order of keys, so that the new file differs where it should.
  auto config = nlohmann::ordered_json::parse(read_text_file(options.input + "/config.json"));
  remove_quantization_config(&config);
  config["quantization_config"] = producer_config(request);
  write_file_atomically(folder + "/config.json", config.dump(2) + "\n");
  if (const auto companion = companion_config(request)) {
    write_file_atomically(folder + "/hf_quant_config.json", companion->dump(2) + "\n");
  }
}

// A calibration speaks about every layer that is quantized, or its scales would be guesses.
void check_calibration(const Options& options, const Selection& selection) {
  if (options.input_amax.empty()) return;
  CHECK(options.recipe->has_input_scale(), "{} has no static scales of activations",
        options.recipe->format->name);
  for (const std::string& module : selection.quantized) {
    const auto found = options.input_amax.find(module);
    if (found == options.input_amax.end()) {
      fail("{}: calibration saw no input of {}; --exclude it, or leave --calibration out",
           options.input, module);
    }
    if (!std::isfinite(found->second)) {
      fail("{}: calibration saw an input of {} that is not finite", options.input, module);
    }
  }
}

// Everything the bytes of a shard depend on. Files are told by size and time of change.
std::string describe_work(const Options& options, const Checkpoint& files,
                          const Selection& selection) {
  json sources = json::array();
  for (const SafetensorsFile& file : files.files()) {
    sources.push_back({file.path(), fs::file_size(file.path()),
                       fs::last_write_time(file.path()).time_since_epoch().count()});
  }
  json input_amax = json::array();  // of the layers, in their order
  for (const auto& [module, amax] : options.input_amax) {
    if (selection.has(module)) input_amax.push_back(amax);
  }
  return json{{"journal", 1},
              {"sources", sources},
              {"scheme", options.recipe->format->name},
              {"producer", options.recipe->producer},
              {"share_global_scales", options.share_global_scales},
              {"input_amax", input_amax},
              {"quantized", selection.quantized}}
      .dump();
}

}  // namespace

std::vector<const WeightFormat*> schemes() {
  std::vector<const WeightFormat*> result;
  for (const WeightFormat* format : formats::all_formats()) {
    if (formats::find_recipe(*format) != nullptr) result.push_back(format);
  }
  return result;
}

std::vector<std::string> selected_modules(const Options& options) {
  CHECK(options.recipe != nullptr);
  Checkpoint files = Checkpoint::open(options.input);
  return select(&files, options).quantized;
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
  if (format.bits_per_element == 4) {
    for (const char* pattern :
         {"*mlp.gate_proj", "*mlp.up_proj", "*mlp.down_proj", "*shared_experts*"}) {
      exclude.push_back(pattern);
    }
  }
  return exclude;
}

Report quantize(const Options& options) {
  CHECK(options.recipe != nullptr);
  Checkpoint files = Checkpoint::open(options.input);
  const Selection selection = select(&files, options);
  check_calibration(options, selection);
  const ConfigRequest request = config_request(options, selection, is_draft(files.config()));
  producer_config(request);  // what cannot be written is an error before the work
  OutputFolder output(options.input, options.output, options.overwrite,
                      describe_work(options, files, selection));

  ShardWriter writer(*options.recipe, &files, selection.quantized, options.num_threads);
  writer.on_progress = options.on_progress;
  writer.share_global_scales = options.share_global_scales;
  if (!options.input_amax.empty()) writer.input_amax = &options.input_amax;
  std::map<std::string, std::string> shards;
  const std::set<std::string> resumed = output.finished_shards();
  std::vector<const SafetensorsFile*> to_write;
  for (const SafetensorsFile& file : files.files()) {
    const std::string shard = fs::path(file.path()).filename().string();
    for (const SafetensorsWriter::Item& item : writer.plan(file)) shards[item.name] = shard;
    if (resumed.contains(shard)) {
      writer.skip(file);
    } else {
      to_write.push_back(&file);
    }
  }
  writer.read_ahead(to_write);
  Beside to_disk;
  for (const SafetensorsFile* file : to_write) {
    const std::string shard = fs::path(file->path()).filename().string();
    std::shared_ptr<SafetensorsWriter> written =
        writer.write(*file, output.partial() + "/" + shard);
    to_disk.start([&output, shard, written = std::move(written)] {
      written->finish();
      output.shard_is_finished(shard);
    });
  }
  to_disk.finish();
  const bool is_single = shards.empty() || shards.begin()->second == "model.safetensors";
  Report report = writer.report();
  report.num_resumed_shards = static_cast<int>(resumed.size());
  if (!is_single) checkpoint::write_shard_index(output.partial(), shards, report.bytes_out);
  output.copy_companions(options.input);
  write_config(options, request, output.partial());
  Checkpoint::open(output.partial());  // what gets the final name has been read back once
  output.commit();
  return report;
}

}  // namespace eyrie::quantize
