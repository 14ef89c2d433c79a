#include "checkpoint/writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/math.h"

namespace eyrie::checkpoint {
namespace {

constexpr int64_t kDataAlignment = 64;
constexpr size_t kLengthBytes = 8;

size_t bytes_of_item(const SafetensorsWriter::Item& item) {
  size_t bytes = dtype_bytes(item.dtype);
  for (const int64_t dim : item.shape) bytes *= static_cast<size_t>(dim);
  return bytes;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::string& path, const std::vector<Item>& items)
    : path_(path), partial_path_(path + ".partial") {
  std::vector<const Item*> order;
  for (const Item& item : items) order.push_back(&item);
  std::sort(order.begin(), order.end(), [](const Item* a, const Item* b) {
    const size_t size_a = dtype_bytes(a->dtype), size_b = dtype_bytes(b->dtype);
    return size_a != size_b ? size_a > size_b : a->name < b->name;
  });

  nlohmann::json header = {{"__metadata__", {{"format", "pt"}}}};
  for (const Item* item : order) {
    const size_t bytes = bytes_of_item(*item);
    header[item->name] = {{"dtype", dtype_name(item->dtype)},
                          {"shape", item->shape},
                          {"data_offsets", {data_bytes_, data_bytes_ + bytes}}};
    const bool is_new = places_.emplace(item->name, Place{data_bytes_, bytes}).second;
    CHECK(is_new, "tensor {} comes twice", item->name);
    data_bytes_ += bytes;
  }
  std::string text = header.dump();
  const auto start = align_up(static_cast<int64_t>(kLengthBytes + text.size()), kDataAlignment);
  text.resize(static_cast<size_t>(start) - kLengthBytes, ' ');
  for (auto& [name, place] : places_) place.begin += static_cast<size_t>(start);

  fd_ = ::open(partial_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) fail("cannot write {}: {}", partial_path_, std::strerror(errno));
  const uint64_t length = text.size();
  write_at(0, std::as_bytes(std::span(&length, 1)));
  write_at(kLengthBytes, std::as_bytes(std::span(text)));
}

SafetensorsWriter::~SafetensorsWriter() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(partial_path_.c_str());
}

void SafetensorsWriter::write_at(size_t position, std::span<const std::byte> data) {
  while (!data.empty()) {
    const ssize_t count = ::pwrite(fd_, data.data(), data.size(), static_cast<off_t>(position));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) fail("cannot write {}: {}", partial_path_, std::strerror(errno));
    position += static_cast<size_t>(count);
    data = data.subspan(static_cast<size_t>(count));
  }
}

void SafetensorsWriter::write(const std::string& name, size_t offset,
                              std::span<const std::byte> data) {
  const auto it = places_.find(name);
  CHECK(it != places_.end(), "tensor {} was not announced", name);
  CHECK_LE(offset + data.size(), it->second.bytes);
  write_at(it->second.begin + offset, data);
  written_ += data.size();
}

void SafetensorsWriter::start_writeback() { ::sync_file_range(fd_, 0, 0, SYNC_FILE_RANGE_WRITE); }

void SafetensorsWriter::finish() {
  CHECK_EQ(written_.load(), data_bytes_);
  if (::fsync(fd_) != 0) fail("cannot write {}: {}", partial_path_, std::strerror(errno));
  ::close(fd_);
  fd_ = -1;
  if (::rename(partial_path_.c_str(), path_.c_str()) != 0) {
    fail("cannot rename {} to {}: {}", partial_path_, path_, std::strerror(errno));
  }
}

void write_shard_index(const std::string& folder, const std::map<std::string, std::string>& shards,
                       size_t total_bytes) {
  const nlohmann::json index = {{"metadata", {{"total_size", total_bytes}}},
                                {"weight_map", shards}};
  write_file_atomically(folder + "/model.safetensors.index.json", index.dump(2) + "\n");
}

}  // namespace eyrie::checkpoint
