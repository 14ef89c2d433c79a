#include "bench/sse.h"

namespace eyrie::bench {

void SseParser::feed(std::string_view bytes) {
  while (!bytes.empty()) {
    if (after_cr_) {
      after_cr_ = false;
      if (bytes.front() == '\n') {
        bytes.remove_prefix(1);
        continue;
      }
    }
    const size_t end = bytes.find_first_of("\r\n");
    if (end == std::string_view::npos) {
      partial_ += bytes;
      return;
    }
    after_cr_ = bytes[end] == '\r';
    if (partial_.empty()) {
      line(bytes.substr(0, end));
    } else {
      partial_ += bytes.substr(0, end);
      line(partial_);
      partial_.clear();
    }
    bytes.remove_prefix(end + 1);
  }
}

void SseParser::finish() {
  if (!partial_.empty()) {
    line(partial_);
    partial_.clear();
  }
  dispatch();
}

void SseParser::line(std::string_view text) {
  if (text.empty()) {
    dispatch();
    return;
  }
  constexpr std::string_view kField = "data:";
  if (!text.starts_with(kField)) return;
  text.remove_prefix(kField.size());
  if (text.starts_with(' ')) text.remove_prefix(1);
  if (has_data_) data_ += '\n';
  data_ += text;
  has_data_ = true;
}

void SseParser::dispatch() {
  if (has_data_) on_data_(data_);
  data_.clear();
  has_data_ = false;
}

}  // namespace eyrie::bench
