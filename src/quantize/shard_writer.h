// Writes one shard of the output: selected layers encoded with a recipe, everything else copied.
// One thread calls it; rows are spread over its own pool.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/threads.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/writer.h"
#include "quantize/layout.h"
#include "quantize/quantize.h"
#include "quantize/read_ahead.h"

namespace eyrie::quantize {

class ShardWriter {
 public:
  // `quantized`: module names, sorted. 0 threads: all cores.
  ShardWriter(const formats::Recipe& recipe, checkpoint::Checkpoint* files,
              const std::vector<std::string>& quantized, int num_threads);

  std::function<void(const Progress&)> on_progress;
  bool share_global_scales = true;                           // Options says what it means
  const std::map<std::string, float>* input_amax = nullptr;  // Options'; must hold every layer

  // The files write() will be called with, in order; before the first of them.
  void read_ahead(const std::vector<const checkpoint::SafetensorsFile*>& files);
  // The shard with all its data; finish() is the caller's, and may wait for the disk.
  std::unique_ptr<checkpoint::SafetensorsWriter> write(const checkpoint::SafetensorsFile& file,
                                                       const std::string& path);
  // Counts a shard that is there already.
  void skip(const checkpoint::SafetensorsFile& file);
  std::vector<checkpoint::SafetensorsWriter::Item> plan(
      const checkpoint::SafetensorsFile& file) const;
  Report report() const;

 private:
  using Writer = checkpoint::SafetensorsWriter;

  bool is_quantized(const std::string& module) const;
  std::string quantized_module(const std::string& tensor_name) const;
  std::span<const std::byte> where_read(std::span<const std::byte> mapped) const;
  formats::Weight weight_of(const std::string& module);
  void run_tasks(int64_t num_tasks, const std::function<void(int64_t, int)>& task);
  // Gives mapped pages back; memory of the reader's stays.
  void release(std::span<const std::byte> bytes) const;
  void copy(const std::string& name, const Tensor& tensor, Writer* writer);
  void encode(const std::string& module, Writer* writer);
  float global_of(const std::string& module);
  float input_global_of(const std::string& module) const;
  float largest_of(const std::string& module);
  std::optional<int64_t> decode(const formats::Weight& weight, int64_t first,
                                std::span<float> values) const;
  // task(thread, first row, values of some rows), whole blocks of rows at a time, from all threads.
  using RowsTask = std::function<void(int, int64_t, std::span<const float>)>;
  void for_rows(const formats::Weight& weight, const std::string& module, const RowsTask& task);
  void advance(size_t bytes);
  double seconds() const;

  const formats::Recipe& recipe_;
  checkpoint::Checkpoint& files_;
  const std::vector<std::string>& quantized_;
  std::set<std::string> replaced_;  // tensors of quantized layers that are not their data
  ThreadPool pool_;
  std::vector<std::vector<float>> rows_;         // one a thread
  std::vector<std::vector<std::byte>> encoded_;  // one a thread
  struct AtHand {
    std::span<const std::byte> mapped = {};
    std::span<const std::byte> read = {};  // the same bytes, unless empty
  };
  AtHand at_hand_;
  std::unique_ptr<ReadAhead> read_ahead_;
  std::vector<std::byte> scales_;         // of the tensor at hand
  std::map<std::string, float> largest_;  // amax by group of layers that share a global scale
  size_t bytes_done_ = 0;
  Report report_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace eyrie::quantize
