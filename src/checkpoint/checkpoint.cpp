// Opening: config, index, shards. What the tensors of one layer mean is weights.cpp.
#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/dummy.h"
#include "checkpoint/json_file.h"

namespace eyrie::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

json read_config(const std::string& folder, const json& overrides) {
  const std::string path = folder + "/config.json";
  if (!fs::is_directory(folder)) fail("{} is not a folder with a checkpoint", folder);
  if (!fs::exists(path)) fail("{} is missing; a checkpoint folder needs it", path);
  json config = read_json_file(path, DuplicateKeys::kLastWins);
  if (!config.is_object()) fail("{} must hold a JSON object", path);
  if (overrides.is_null()) return config;
  if (!overrides.is_object()) fail("overrides of config.json must be a JSON object");
  config.merge_patch(overrides);
  return config;
}

// A shard is a file in the same folder; anything else in an index is a mistake or an attack.
void check_shard_name(const std::string& index_path, const std::string& shard) {
  const bool plain = !shard.empty() && shard.find('/') == std::string::npos && shard != "..";
  if (!plain) {
    fail("{} names the shard \"{}\"; a file name in the same folder is expected", index_path,
         shard);
  }
}

bool is_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

bool same_shape(const Tensor& tensor, std::initializer_list<int64_t> shape) {
  if (static_cast<size_t>(tensor.rank()) != shape.size()) return false;
  int i = 0;
  return std::all_of(shape.begin(), shape.end(),
                     [&](int64_t dim) { return tensor.dim(i++) == dim; });
}

}  // namespace

Checkpoint Checkpoint::open(const std::string& path, const json& hf_overrides, bool load_dummy) {
  Checkpoint result;
  result.path_ = path;
  result.dummy_ = load_dummy;
  result.config_ = read_config(path, hf_overrides);
  result.quant_config_ = QuantConfig::from_config(result.config_, path);
  if (!load_dummy) {
    result.open_files();
    result.warn_of_contradictions();
    result.warn_of_idle_exclusions();
  }
  return result;
}

void Checkpoint::open_files() {
  const std::string index_path = path_ + "/model.safetensors.index.json";
  const std::string single_path = path_ + "/model.safetensors";
  if (fs::exists(index_path)) {
    open_shards(index_path);
  } else if (fs::exists(single_path)) {
    add_file(single_path);
  } else {
    fail(
        "{} has neither model.safetensors nor model.safetensors.index.json; only safetensors "
        "weights are read",
        path_);
  }
}

void Checkpoint::open_shards(const std::string& index_path) {
  const json index = read_json_file(index_path, DuplicateKeys::kReject);
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (map == index.end() || !map->is_object()) {
    fail("{} needs \"weight_map\", an object of tensor name to shard", index_path);
  }
  std::map<std::string, std::string> shard_of;
  std::set<std::string> shards;
  for (const auto& [name, shard] : map->items()) {
    if (!shard.is_string()) fail("{}: the shard of tensor {} must be a string", index_path, name);
    shard_of[name] = shard.get<std::string>();
    shards.insert(shard_of[name]);
  }
  for (const std::string& shard : shards) {
    check_shard_name(index_path, shard);
    if (!fs::exists(path_ + "/" + shard)) {
      fail("{} names the shard {}, which is not in the folder", index_path, shard);
    }
    add_file(path_ + "/" + shard);
  }
  for (const auto& [name, shard] : shard_of) {
    if (!contains(name) || fs::path(file_of(name)).filename() != shard) {
      fail("{} places tensor {} in {}, which does not have it", index_path, name, shard);
    }
  }
}

void Checkpoint::add_file(const std::string& path) {
  const size_t file_idx = files_.size();
  const SafetensorsFile& file = files_.emplace_back(path);
  for (const auto& [name, tensor] : file.tensors()) {
    const auto [it, is_new] = index_.emplace(name, std::pair(file_idx, tensor));
    if (!is_new) {
      fail("tensor {} is in both {} and {}", name, files_[it->second.first].path(), path);
    }
  }
}

// The config claims, the tensors decide; where they differ the user hears it once.
void Checkpoint::warn_of_contradictions() const {
  int count = 0;
  std::string example;
  for (const auto& [name, place] : index_) {
    if (!is_linear_weight_name(name) || place.second.rank() != 2) continue;
    const std::string module(module_of(name));
    const std::string claim = contradiction(module, place.second);
    if (claim.empty()) continue;
    if (count++ == 0) {
      const formats::WeightFormat* format = format_of(module);
      const bool quantized = format != nullptr && format->block_in != 0;
      example = fmt::format("{} is {} but {}", module,
                            quantized ? format->name : dtype_name(place.second.dtype()), claim);
    }
  }
  if (count == 0) return;
  log::warning("[checkpoint] {}: {}{}; the tensors decide", path_, example,
               count > 1 ? fmt::format(" ({} layers like it)", count) : "");
}

// A pattern that matches nothing is a misspelt one, or names a part this checkpoint may lack.
void Checkpoint::warn_of_idle_exclusions() const {
  constexpr std::array<std::string_view, 7> kOptional = {
      "vision", "projector", "lm_head", "embed", "mtp", "fc", "gate.linear"};
  const std::vector<std::string>& patterns = quant_config_.exclude.patterns();
  if (patterns.empty()) return;
  std::set<std::string> modules;
  for (const auto& [name, place] : index_) modules.insert(name.substr(0, name.rfind('.')));
  const std::vector<int64_t> counts =
      quant_config_.exclude.count_matches({modules.begin(), modules.end()}, 1);
  std::vector<std::string> idle;
  for (size_t i = 0; i < patterns.size(); ++i) {
    const bool optional = std::any_of(kOptional.begin(), kOptional.end(), [&](auto part) {
      return patterns[i].find(part) != std::string::npos;
    });
    if (counts[i] == 0 && !optional) idle.push_back(patterns[i]);
  }
  if (idle.empty()) return;
  log::warning("[checkpoint] {}: quantization_config excludes {}{}, which matches no tensor", path_,
               idle.front(),
               idle.size() > 1 ? fmt::format(" (and {} others)", idle.size() - 1) : "");
}

// What the config says against a linear layer's tensors; "" when it agrees.
std::string Checkpoint::contradiction(const std::string& module, const Tensor& tensor) const {
  const bool quantized = !is_float(tensor.dtype());
  const QuantConfig& quant = quant_config_;
  if (quantized) {
    if (quant.method.empty()) return "config.json has no quantization_config";
    if (quant.exclude.matches(module)) return "quantization_config excludes it";
    const formats::WeightFormat* claimed = quant.claimed(module);
    if (claimed != nullptr && claimed != format_of(module)) {
      return fmt::format("quantization_config says {} ({} {})", claimed->name, quant.method,
                         quant.scheme);
    }
    return "";
  }
  const bool router = module.ends_with("mlp.gate");  // never a Linear module
  if (router || !quant.lists_exclusions || quant.claimed(module) == nullptr) return "";
  return fmt::format("quantization_config ({} {}) does not exclude it", quant.method, quant.scheme);
}

const Tensor* Checkpoint::find(const std::string& name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &it->second.second;
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> names;
  names.reserve(index_.size());
  for (const auto& [name, place] : index_) names.push_back(name);
  return names;
}

size_t Checkpoint::total_bytes() const {
  size_t bytes = 0;
  for (const auto& [name, place] : index_) bytes += place.second.bytes();
  if (dummy_) {
    bytes += freed_bytes_;
    for (const Buffer& buffer : owned_) bytes += buffer.bytes();
  }
  return bytes;
}

void Checkpoint::done_with(const formats::Weight& weight) {
  constexpr size_t kManyBytes = 8 << 20;
  for (const Tensor& tensor : {weight.data, weight.scales}) {
    if (tensor.empty()) continue;
    // Usually the last one that was made.
    const auto owned = std::find_if(owned_.rbegin(), owned_.rend(), [&](const Buffer& buffer) {
      return buffer.data() == tensor.raw();
    });
    if (owned != owned_.rend()) {
      freed_bytes_ += owned->bytes();
      owned_.erase(std::next(owned).base());
      continue;
    }
    done_.emplace_back(static_cast<const std::byte*>(tensor.raw()), tensor.bytes());
    done_bytes_ += tensor.bytes();
  }
  if (done_bytes_ >= kManyBytes) drop_done_pages();
}

// Neighbours at once, as every call interrupts the other cores. What little lies between two comes
// again if someone wants it.
void Checkpoint::drop_done_pages() {
  constexpr std::ptrdiff_t kNear = 64 << 10;
  std::sort(done_.begin(), done_.end(),
            [](const auto& a, const auto& b) { return std::less<>()(a.data(), b.data()); });
  for (size_t i = 0; i < done_.size();) {
    const std::byte* const begin = done_[i].data();
    const std::byte* end = begin + done_[i].size();
    for (++i; i < done_.size() && done_[i].data() - end <= kNear; ++i) {
      end = std::max(end, done_[i].data() + done_[i].size());
    }
    for (const SafetensorsFile& file : files_) file.drop_pages({begin, end});
  }
  done_.clear();
  done_bytes_ = 0;
}

const std::string& Checkpoint::file_of(const std::string& name) const {
  return files_[index_.at(name).first].path();
}

std::byte* Checkpoint::allocate(size_t bytes) { return owned_.emplace_back(bytes).data(); }

Tensor Checkpoint::aligned(const Tensor& tensor) {
  const size_t element = dtype_bytes(tensor.dtype());
  if (reinterpret_cast<uintptr_t>(tensor.raw()) % element == 0) return tensor;
  std::byte* copy = allocate(tensor.bytes());
  std::memcpy(copy, tensor.raw(), tensor.bytes());
  std::vector<int64_t> shape;
  for (int i = 0; i < tensor.rank(); ++i) shape.push_back(tensor.dim(i));
  return tensor_of_shape(copy, tensor.dtype(), shape);
}

Tensor Checkpoint::require(const std::string& name) {
  const Tensor* found = find(name);
  if (found == nullptr) {
    fail("{}: tensor {} is missing ({} tensors in {} files)", path_, name, index_.size(),
         files_.size());
  }
  return aligned(*found);
}

Tensor Checkpoint::tensor(const std::string& name, std::initializer_list<int64_t> shape) {
  if (dummy_) {
    int64_t count = 1;
    for (const int64_t dim : shape) count *= dim;
    const Tensor made(allocate(static_cast<size_t>(count) * sizeof(bf16)), DType::kBF16, shape);
    const int64_t columns = shape.size() < 2 ? count : *(shape.end() - 1);
    std::vector<float> row(static_cast<size_t>(columns), dummy_constant(name));
    for (int64_t i = 0; columns > 0 && i < count / columns; ++i) {
      if (shape.size() >= 2) dummy_row(name, i, row);
      for (int64_t j = 0; j < columns; ++j) {
        made.data<bf16>()[i * columns + j] = to_bf16(row[static_cast<size_t>(j)]);
      }
    }
    return made;
  }
  const Tensor found = require(name);
  if (!same_shape(found, shape)) {
    fail("{}: tensor {} is {}, expected [{}]", file_of(name), name, found.shape_string(),
         fmt::join(shape, ", "));
  }
  return found;
}

Tensor Checkpoint::tensor_f32(const std::string& name, std::initializer_list<int64_t> shape) {
  const Tensor found = tensor(name, shape);
  if (!is_float(found.dtype())) {
    fail("{}: tensor {} is {}, expected F32, BF16 or F16", file_of(name), name,
         found.shape_string());
  }
  return converted_to_f32(found);
}

Tensor Checkpoint::converted_to_f32(const Tensor& tensor) {
  if (tensor.dtype() == DType::kF32) return tensor;
  const auto count = static_cast<size_t>(tensor.num_elements());
  auto* values = reinterpret_cast<float*>(allocate(count * sizeof(float)));
  for (size_t i = 0; i < count; ++i) {
    values[i] = tensor.dtype() == DType::kBF16
                    ? to_float(static_cast<const bf16*>(tensor.raw())[i])
                    : formats::decode_f16(static_cast<const uint16_t*>(tensor.raw())[i]);
  }
  std::vector<int64_t> shape;
  for (int i = 0; i < tensor.rank(); ++i) shape.push_back(tensor.dim(i));
  return tensor_of_shape(values, DType::kF32, shape);
}

}  // namespace eyrie::checkpoint
