// A configuration's text cut into arguments the way a shell would: blanks separate, '…' is literal,
// "…" keeps blanks and knows \" and \\, a backslash outside quotes takes the next character as it
// is. No variables, no globs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace eyrie::bench {

// Error for a quote that does not end.
std::vector<std::string> split_shell_words(std::string_view text);

// The inverse: text a reader can paste into a shell.
std::string join_shell_words(const std::vector<std::string>& words);

}  // namespace eyrie::bench
