// What this machine can do, measured: the limits that kernel benchmarks are shares of.
#pragma once

#include "base/threads.h"

namespace eyrie::bench {

struct Peaks {
  double read_bytes_per_s = 0;  // streaming read of memory far larger than the caches, all threads
  double flops_per_s = 0;       // independent float32 multiply-adds in registers, all threads
  double int8_ops_per_s = 0;    // 8-bit dot products of registers with broadcast words, all threads
};

Peaks measure_peaks(ThreadPool& pool);

}  // namespace eyrie::bench
