// Live progress on stderr: one line rewritten in place on a terminal, else a plain line every ten
// seconds, so that a log file stays readable.
#pragma once

#include <string>

#include "bench/load.h"

namespace eyrie::bench {

// "12/40 requests · 4 running · 1234 tok/s · 12.0 s left"
std::string progress_text(const Progress& progress);

class ProgressLine {
 public:
  // prefix stands in front of every line ("fp8 C=4: ").
  explicit ProgressLine(std::string prefix = "");
  ~ProgressLine();  // takes the line away
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void show(const Progress& progress);
  void show_text(const std::string& text);  // any other state, e.g. "waiting for the server"
  void clear();

 private:
  std::string prefix_;
  bool live_;
  bool drawn_ = false;
  double last_plain_s_ = 0.0;
};

}  // namespace eyrie::bench
