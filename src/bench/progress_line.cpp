#include "bench/progress_line.h"

#include <fmt/format.h>

#include <cstdio>

#include "base/human.h"

namespace eyrie::bench {

std::string progress_text(const Progress& progress) {
  const double rate = progress.elapsed_s > 0.0
                          ? static_cast<double>(progress.output_tokens) / progress.elapsed_s
                          : 0.0;
  std::string text = fmt::format("{}/{} requests · {} running · {:.0f} tok/s", progress.done,
                                 progress.total, progress.running, rate);
  if (progress.failed > 0) text += fmt::format(" · {} failed", progress.failed);
  if (progress.done < progress.total && progress.fraction > 0.0) {
    text += fmt::format(" · {} left", human_seconds(progress.seconds_left()));
  }
  return text;
}

ProgressLine::ProgressLine(std::string prefix)
    : prefix_(std::move(prefix)), live_(stderr_is_terminal()) {}

ProgressLine::~ProgressLine() { clear(); }

void ProgressLine::show(const Progress& progress) {
  if (live_) {
    show_text(progress_text(progress));
    return;
  }
  constexpr double kPlainPeriod = 10.0;
  if (progress.elapsed_s < last_plain_s_ + kPlainPeriod) return;
  last_plain_s_ = progress.elapsed_s;
  fmt::print(stderr, "{}{}\n", prefix_, progress_text(progress));
}

void ProgressLine::show_text(const std::string& text) {
  if (!live_) return;
  fmt::print(stderr, "\r\x1b[2K{}{}", prefix_, text);
  std::fflush(stderr);
  drawn_ = true;
}

void ProgressLine::clear() {
  if (!drawn_) return;
  fmt::print(stderr, "\r\x1b[2K");
  std::fflush(stderr);
  drawn_ = false;
}

}  // namespace eyrie::bench
