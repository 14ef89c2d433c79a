// A read-only file mapped into memory: weights are used where they lie, pages come when touched.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace eyrie {

class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::string& path);  // Error names the path and the system's reason
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  size_t size() const { return size_; }
  // Gives back the memory of the whole pages in a part of bytes(); they come again when touched.
  void drop_pages(std::span<const std::byte> part) const;

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Whole file as text; Error names the path.
std::string read_text_file(const std::string& path);

// Writes beside the target and renames, so a reader never sees half a file.
void write_file_atomically(const std::string& path, std::string_view content);

}  // namespace eyrie
