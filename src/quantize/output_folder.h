// The folder a quantized checkpoint is written to: OUT.partial while work goes on, OUT when it is
// complete. Destroyed before commit(), it leaves neither.
#pragma once

#include <string>

namespace eyrie::quantize {

class OutputFolder {
 public:
  // Error when `output` exists and may not be replaced, or lies in (or is) the input. Only a
  // checkpoint or an empty folder is ever replaced.
  OutputFolder(const std::string& input, const std::string& output, bool overwrite);
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  const std::string& partial() const { return partial_; }

  // Everything of a checkpoint that is not weights, config or a description of either: tokenizer,
  // templates, generation config, remote code.
  void copy_companions(const std::string& input) const;

  void commit();

 private:
  std::string output_;
  std::string partial_;
  bool committed_ = false;
};

}  // namespace eyrie::quantize
