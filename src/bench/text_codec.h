// What a dataset needs to know about a tokenizer. A seam, so that sampling is tested against a
// hand-made vocabulary and so that a run against a server whose tokenizer is not on this machine is
// possible for datasets that do not need one.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace eyrie::bench {

class TextCodec {
 public:
  virtual ~TextCodec() = default;
  virtual int64_t vocab_size() const = 0;
  virtual bool is_special(int32_t id) const = 0;
  // Spellings of control tokens in the text become those tokens; none are added.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  virtual std::string decode(const std::vector<int32_t>& ids) const = 0;
  // The prompt of a conversation that is one user message, generation prompt included.
  virtual std::string render_user_turn(std::string_view content) const = 0;
};

// The tokenizer and chat template of a checkpoint directory; Error when there is none.
// template_kwargs as in a request's chat_template_kwargs: {"thinking": false}.
std::unique_ptr<TextCodec> load_text_codec(const std::string& dir,
                                           const nlohmann::json& template_kwargs);

}  // namespace eyrie::bench
