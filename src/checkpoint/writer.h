// Writes safetensors piece by piece: the header is known before the first byte of data, so memory
// is never more than the piece at hand. The file has a temporary name until finish(); an unfinished
// writer removes it, so a half-written file never looks whole.
//
// Tensors lie by element size, widest first, and the data starts at a multiple of 64: every tensor
// is aligned to its element, which the format itself does not promise.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "tensor/dtype.h"

namespace eyrie::checkpoint {

class SafetensorsWriter {
 public:
  struct Item {
    std::string name;
    DType dtype;
    std::vector<int64_t> shape;
  };

  // Names are unique (a bug otherwise). Error names the path when it cannot be written.
  SafetensorsWriter(const std::string& path, const std::vector<Item>& items);
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // Bytes [offset, offset + data.size()) of a tensor; pieces in any order and from any thread, each
  // byte once.
  void write(const std::string& name, size_t offset, std::span<const std::byte> data);
  void write(const std::string& name, std::span<const std::byte> data) { write(name, 0, data); }

  // Asks the system to begin writing to disk what it holds, so that finish() has less to wait for.
  void start_writeback();

  // Every byte has been written: gives the file its name, on disk for good.
  void finish();

  size_t data_bytes() const { return data_bytes_; }

 private:
  struct Place {
    size_t begin = 0;  // in the file
    size_t bytes = 0;
  };
  void write_at(size_t position, std::span<const std::byte> data);

  std::string path_;
  std::string partial_path_;
  int fd_ = -1;
  std::map<std::string, Place> places_;
  size_t data_bytes_ = 0;
  std::atomic<size_t> written_{0};
};

// model.safetensors.index.json: which shard holds which tensor, and the bytes of all tensors.
void write_shard_index(const std::string& folder, const std::map<std::string, std::string>& shards,
                       size_t total_bytes);

}  // namespace eyrie::checkpoint
