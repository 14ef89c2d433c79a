// The prompts of `eyrie quantize --calibration FILE.jsonl` as token ids.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace eyrie::apps {

struct CalibrationFile {
  std::string path;
  std::string model;          // the folder with the tokenizer and the chat template
  int64_t max_samples = 512;  // rows, from the top
  int64_t max_tokens = 512;   // a row; what is longer is cut
  int64_t vocab_size = 0;
};

// One JSON object a line: "prompt" (a text or a list of token ids), "messages" (rendered with the
// checkpoint's chat template, "tools" beside them if there are any), "question" or "text". Error
// names file and line.
std::vector<std::vector<TokenId>> read_calibration_prompts(const CalibrationFile& file);

}  // namespace eyrie::apps
