// Server-sent events, cut out of a byte stream that may be split anywhere. Only the data of an
// event matters here: comment lines (":…"), ids and event names are skipped, several data lines of
// one event are joined by a newline, and lines may end in \n, \r\n or \r. One parser per response,
// used on the client's thread.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace eyrie::bench {

class SseParser {
 public:
  using OnData = std::function<void(std::string_view data)>;
  explicit SseParser(OnData on_data) : on_data_(std::move(on_data)) {}

  void feed(std::string_view bytes);
  void finish();  // the stream ended: an event whose blank line never came still counts

 private:
  void line(std::string_view text);
  void dispatch();

  OnData on_data_;
  std::string partial_;    // a line whose end has not come yet
  bool after_cr_ = false;  // the last line ended in \r: a \n right behind it belongs to it
  std::string data_;
  bool has_data_ = false;
};

}  // namespace eyrie::bench
