// One safetensors file, mapped: an 8-byte little-endian header length, a JSON header (name → dtype,
// shape, data_offsets), then the tensors' bytes without gaps. The header is validated completely
// before any tensor is given out, so a view never reaches outside the file.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "tensor/tensor.h"

namespace eyrie::checkpoint {

class SafetensorsFile {
 public:
  // Error names the file and what is wrong with it (and the tensor, where there is one).
  explicit SafetensorsFile(const std::string& path);

  // Views into the mapping. Their address need not be a multiple of the element size: the file
  // format does not promise it (Checkpoint copies such a tensor before giving it out).
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  const std::string& path() const { return file_.path(); }
  size_t file_bytes() const { return file_.size(); }
  // Where one of its tensors begins, in bytes from the start of the file.
  size_t offset_of(const Tensor& tensor) const {
    return static_cast<size_t>(static_cast<const std::byte*>(tensor.raw()) - file_.bytes().data());
  }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // MappedFile::drop_pages() of what of a range of memory is the file's.
  void drop_pages(std::span<const std::byte> range) const;

 private:
  MappedFile file_;
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

// dtype as safetensors spells it; F8_E8M0 (some vendors' MX scales) is the byte it is, U8.
std::optional<DType> safetensors_dtype(std::string_view name);

// Tensor has fixed-rank constructors; a file's rank is known at run time only (0 to kMaxRank).
Tensor tensor_of_shape(void* data, DType dtype, const std::vector<int64_t>& shape);

}  // namespace eyrie::checkpoint
