#include "checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <functional>

#include "base/error.h"
#include "checkpoint/json_file.h"

namespace eyrie::checkpoint {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

constexpr size_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit

struct Entry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // relative to the end of the header
  uint64_t end = 0;
};

std::string_view header_of(const MappedFile& file) {
  const std::span<const std::byte> bytes = file.bytes();
  if (bytes.size() < kLengthBytes) {
    fail("{} is truncated: {} bytes, a safetensors file starts with its 8-byte header length",
         file.path(), bytes.size());
  }
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  if (length > bytes.size() - kLengthBytes) {
    fail("{} is truncated or not a safetensors file: a header of {} bytes in a file of {}",
         file.path(), length, bytes.size());
  }
  if (length > kMaxHeaderBytes) {
    fail("{} has a header of {} bytes; at most {} are allowed", file.path(), length,
         kMaxHeaderBytes);
  }
  return {reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, static_cast<size_t>(length)};
}

std::map<std::string, std::string> metadata_of(const std::string& path, const json& value) {
  std::map<std::string, std::string> metadata;
  if (!value.is_object()) fail("{}: __metadata__ must be an object of strings", path);
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) fail("{}: __metadata__.{} must be a string", path, key);
    metadata[key] = text.get<std::string>();
  }
  return metadata;
}

// The list under `key` as unsigned integers.
std::vector<uint64_t> unsigned_list(const std::string& path, const std::string& name,
                                    const json& entry, const char* key) {
  const auto it = entry.find(key);
  if (it == entry.end() || !it->is_array() ||
      !std::all_of(it->begin(), it->end(), [](const json& x) { return x.is_number_unsigned(); })) {
    fail("{}: tensor {} needs \"{}\", a list of integers that are not negative", path, name, key);
  }
  return it->get<std::vector<uint64_t>>();
}

Entry parse_entry(const std::string& path, const std::string& name, const json& value) {
  Entry entry;
  entry.name = name;
  if (!value.is_object()) fail("{}: the entry of tensor {} must be an object", path, name);
  const auto dtype = value.find("dtype");
  if (dtype == value.end() || !dtype->is_string()) {
    fail("{}: tensor {} needs \"dtype\", a string", path, name);
  }
  const auto known = safetensors_dtype(dtype->get_ref<const std::string&>());
  if (!known) {
    fail(
        "{}: tensor {} has dtype {}; accepted are F32, BF16, F16, F8_E4M3, F8_E8M0, U8, I8, I32, "
        "I64 and BOOL",
        path, name, dtype->get_ref<const std::string&>());
  }
  entry.dtype = *known;

  const std::vector<uint64_t> shape = unsigned_list(path, name, value, "shape");
  if (shape.size() > static_cast<size_t>(Tensor::kMaxRank)) {
    fail("{}: tensor {} has {} dimensions; at most {} are supported", path, name, shape.size(),
         Tensor::kMaxRank);
  }
  uint64_t bytes = dtype_bytes(entry.dtype);
  bool fits = true;
  for (const uint64_t dim : shape) {
    fits = fits && dim <= uint64_t{INT64_MAX} && !__builtin_mul_overflow(bytes, dim, &bytes);
    entry.shape.push_back(static_cast<int64_t>(dim));
  }
  const std::vector<uint64_t> offsets = unsigned_list(path, name, value, "data_offsets");
  if (offsets.size() != 2 || offsets[0] > offsets[1]) {
    fail("{}: tensor {} needs \"data_offsets\", its first byte and the one after its last", path,
         name);
  }
  entry.begin = offsets[0];
  entry.end = offsets[1];
  if (!fits || entry.end - entry.begin != bytes) {
    fail("{}: tensor {} of shape [{}] {} does not fill its {} bytes", path, name,
         fmt::join(shape, ", "), dtype_name(entry.dtype), entry.end - entry.begin);
  }
  return entry;
}

// Sorted by place, the tensors must cover the data exactly.
void check_layout(const std::string& path, std::vector<Entry>& entries, uint64_t data_bytes) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  uint64_t covered = 0;
  const Entry* previous = nullptr;
  for (const Entry& entry : entries) {
    if (entry.end > data_bytes) {
      fail("{} is truncated: tensor {} ends at byte {} of the data, the file has {}", path,
           entry.name, entry.end, data_bytes);
    }
    if (entry.begin < covered) {
      fail("{}: tensors {} and {} overlap", path, previous->name, entry.name);
    }
    if (entry.begin > covered) {
      fail("{}: {} bytes before tensor {} belong to no tensor", path, entry.begin - covered,
           entry.name);
    }
    covered = entry.end;
    previous = &entry;
  }
  if (covered != data_bytes) {
    fail("{}: {} bytes after the last tensor belong to no tensor", path, data_bytes - covered);
  }
}

}  // namespace

void SafetensorsFile::drop_pages(std::span<const std::byte> range) const {
  const std::span<const std::byte> all = file_.bytes();
  const std::byte* begin = std::max(range.data(), all.data(), std::less<>());
  const std::byte* end =
      std::min(range.data() + range.size(), all.data() + all.size(), std::less<>());
  if (std::less<>()(begin, end)) file_.drop_pages({begin, end});
}

std::optional<DType> safetensors_dtype(std::string_view name) {
  if (name == "F8_E8M0") return DType::kU8;
  return dtype_from_name(name);
}

Tensor tensor_of_shape(void* data, DType dtype, const std::vector<int64_t>& shape) {
  switch (shape.size()) {
    case 0:
      return Tensor(data, dtype, {});
    case 1:
      return Tensor(data, dtype, {shape[0]});
    case 2:
      return Tensor(data, dtype, {shape[0], shape[1]});
    case 3:
      return Tensor(data, dtype, {shape[0], shape[1], shape[2]});
    default:
      CHECK_EQ(shape.size(), 4u);
      return Tensor(data, dtype, {shape[0], shape[1], shape[2], shape[3]});
  }
}

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(path) {
  const std::string_view header = header_of(file_);
  const json table = parse_json(header, "the header of " + path, DuplicateKeys::kReject);
  if (!table.is_object()) fail("the header of {} must be a JSON object", path);

  std::vector<Entry> entries;
  for (const auto& [name, value] : table.items()) {
    if (name == "__metadata__") {
      metadata_ = metadata_of(path, value);
    } else {
      entries.push_back(parse_entry(path, name, value));
    }
  }
  const size_t data_start = kLengthBytes + header.size();
  check_layout(path, entries, file_.size() - data_start);
  auto* data = const_cast<std::byte*>(file_.bytes().data()) + data_start;
  for (const Entry& entry : entries) {
    tensors_.emplace(entry.name, tensor_of_shape(data + entry.begin, entry.dtype, entry.shape));
  }
}

}  // namespace eyrie::checkpoint
