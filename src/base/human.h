// Numbers as people read them: "1.21 GiB", "3m 05s", tables that line up.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace eyrie {

std::string human_bytes(double bytes);      // 1536 → "1.50 KiB"
std::string human_seconds(double seconds);  // 0.0123 → "12.3 ms", 185 → "3m 05s"

// Plain-text table: first row is the header, first column left-aligned, the rest right-aligned.
// The same rows as GitHub Markdown when markdown is true.
std::string format_table(const std::vector<std::vector<std::string>>& rows, bool markdown = false);

bool stdout_is_terminal();
bool stderr_is_terminal();

}  // namespace eyrie
