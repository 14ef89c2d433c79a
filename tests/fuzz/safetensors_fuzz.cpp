// Any bytes as a safetensors file: an Error, or tensors that lie inside the file. Option 0 takes
// the input as the file; others as its header, to which length and that many bytes of data are
// added.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "base/check.h"
#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "tests/fuzz/fuzz_input.h"

namespace eyrie::fuzz {
namespace {

std::string file_of(Input& input) {
  const unsigned num_data_bytes = input.option();
  const std::string_view part = input.part();
  if (num_data_bytes == 0) return std::string(part);
  const uint64_t length = part.size();
  std::string file(sizeof(length), '\0');
  std::memcpy(file.data(), &length, sizeof(length));
  return file.append(part).append(num_data_bytes - 1, '\x3F');
}

void read_everything(const checkpoint::SafetensorsFile& file) {
  size_t num_bytes = 0;
  unsigned sum = 0;
  for (const auto& [name, tensor] : file.tensors()) {
    const auto* bytes = static_cast<const unsigned char*>(tensor.raw());
    for (size_t i = 0; i < tensor.bytes(); ++i) sum += bytes[i];
    num_bytes += tensor.bytes();
  }
  CHECK(num_bytes + 8 <= file.file_bytes());
  volatile unsigned sink = sum;
  static_cast<void>(sink);
}

}  // namespace
}  // namespace eyrie::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace eyrie;
  fuzz::Input input(data, size);
  const std::string bytes = fuzz::file_of(input);
  static const int fd = memfd_create("safetensors", 0);
  CHECK(fd >= 0);
  CHECK_EQ(ftruncate(fd, 0), 0);
  CHECK_EQ(pwrite(fd, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  try {
    const checkpoint::SafetensorsFile file("/proc/self/fd/" + std::to_string(fd));
    CHECK_EQ(file.file_bytes(), bytes.size());
    fuzz::read_everything(file);
  } catch (const Error& error) {
    CHECK(std::strlen(error.what()) > 0);
  }
  return 0;
}
