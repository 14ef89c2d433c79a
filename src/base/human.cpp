#include "base/human.h"

#include <fmt/format.h>
#include <unistd.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

namespace eyrie {
namespace {

// Columns a terminal gives the text (wide characters count two).
size_t display_width(const std::string& text) {
  size_t width = 0;
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  for (utf8proc_ssize_t pos = 0; pos < static_cast<utf8proc_ssize_t>(text.size());) {
    utf8proc_int32_t code = 0;
    const auto used =
        utf8proc_iterate(bytes + pos, static_cast<utf8proc_ssize_t>(text.size()) - pos, &code);
    if (used <= 0) return text.size();
    width += static_cast<size_t>(std::max(0, utf8proc_charwidth(code)));
    pos += used;
  }
  return width;
}

}  // namespace

std::string human_bytes(double bytes) {
  static constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (std::fabs(bytes) >= 1024.0 && unit + 1 < kUnits.size()) {
    bytes /= 1024.0;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.2f} {}", bytes, kUnits[unit]);
}

std::string human_seconds(double seconds) {
  if (seconds < 0) return "-" + human_seconds(-seconds);
  if (seconds < 1e-3) return fmt::format("{:.0f} us", seconds * 1e6);
  if (seconds < 1.0) return fmt::format("{:.1f} ms", seconds * 1e3);
  if (seconds < 60.0) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 3600) return fmt::format("{}m {:02}s", whole / 60, whole % 60);
  return fmt::format("{}h {:02}m", whole / 3600, (whole % 3600) / 60);
}

std::string format_table(const std::vector<std::vector<std::string>>& rows, bool markdown) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], display_width(row[i]));
  }
  std::string out;
  for (size_t r = 0; r < rows.size(); ++r) {
    for (size_t i = 0; i < widths.size(); ++i) {
      const std::string cell = i < rows[r].size() ? rows[r][i] : "";
      const std::string pad(widths[i] - display_width(cell), ' ');
      if (markdown) {
        out += i == 0 ? "| " : " | ";
      } else if (i > 0) {
        out += "  ";
      }
      out += i == 0 ? cell + pad : pad + cell;
    }
    while (!markdown && !out.empty() && out.back() == ' ') out.pop_back();
    out += markdown ? " |\n" : "\n";
    if (r == 0) {
      for (size_t i = 0; i < widths.size(); ++i) {
        if (markdown) {
          out += i == 0 ? "|:" + std::string(widths[i] + 1, '-')
                        : "|" + std::string(widths[i] + 1, '-') + ":";
        } else {
          out += (i == 0 ? "" : "  ") + std::string(widths[i], '-');
        }
      }
      out += markdown ? "|\n" : "\n";
    }
  }
  return out;
}

bool stdout_is_terminal() { return ::isatty(STDOUT_FILENO) == 1; }
bool stderr_is_terminal() { return ::isatty(STDERR_FILENO) == 1; }

}  // namespace eyrie
