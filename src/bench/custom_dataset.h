// The `custom` dataset: a JSONL file whose lines have "prompt" and may have "output_tokens" (how
// long an answer is wanted). Shuffled and repeated as vLLM's client does with Python's generator.
#pragma once

#include "bench/dataset.h"

namespace eyrie::bench {

// Arguments as of make_dataset. Error names file and line.
Dataset make_custom_dataset(const DatasetOptions& options, const TextCodec* codec,
                            bool wrap_on_client);

}  // namespace eyrie::bench
