// The folder a quantized checkpoint is written to: OUT.partial while work goes on, OUT when it is
// complete. A journal in OUT.partial names the finished shards and the work they belong to; a run
// of the same work keeps them, any other starts over. Destroyed before commit(), it leaves
// OUT.partial only if a shard was finished.
#pragma once

#include <set>
#include <string>

namespace eyrie::quantize {

class OutputFolder {
 public:
  // Error when `output` exists and may not be replaced, or lies in (or is) the input. Only a
  // checkpoint or an empty folder is ever replaced.
  // `work` says in full what is being made from what: two runs may share shards when it is equal.
  OutputFolder(const std::string& input, const std::string& output, bool overwrite,
               const std::string& work);
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  const std::string& partial() const { return partial_; }

  // Shards an interrupted run of the same work has finished, and one more of them.
  const std::set<std::string>& finished_shards() const { return finished_; }
  void shard_is_finished(const std::string& shard);

  // Everything of a checkpoint that is not weights, config or a description of either: tokenizer,
  // templates, generation config, remote code.
  void copy_companions(const std::string& input) const;

  void commit();

 private:
  void adopt_leftovers();
  void write_journal() const;

  std::string output_;
  std::string partial_;
  std::string work_;
  std::set<std::string> finished_;
  bool committed_ = false;
};

}  // namespace eyrie::quantize
