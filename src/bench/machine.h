// The machine in one line: part of every result's identity.
#pragma once

#include <string>

namespace eyrie::bench {

// "Intel(R) Xeon(R) …, 2 cores, 15.6 GiB"
std::string describe_machine();

}  // namespace eyrie::bench
