#include "bench/text_codec.h"

#include "base/error.h"
#include "chat/template.h"
#include "tokenizer/tokenizer.h"

namespace eyrie::bench {
namespace {

class CheckpointCodec final : public TextCodec {
 public:
  CheckpointCodec(const std::string& dir, const chat::RenderOptions& render)
      : tokenizer_(Tokenizer::load(dir)),
        template_(chat::load_chat_template({.tokenizer_dir = dir})),
        render_(render) {}

  int64_t vocab_size() const override { return tokenizer_.vocab_size(); }
  bool is_special(int32_t id) const override { return tokenizer_.is_special(id); }
  std::vector<int32_t> encode(std::string_view text) const override {
    return tokenizer_.encode(text, AllowSpecial::kAll);
  }
  std::string decode(const std::vector<int32_t>& ids) const override {
    return tokenizer_.decode(ids, /*skip_special=*/false);
  }
  std::string render_user_turn(std::string_view content) const override {
    chat::Message message;
    message.role = "user";
    message.content.push_back(
        {.kind = chat::ContentPart::Kind::kText, .text = std::string(content), .url = {}});
    const auto prompt = template_->render({message}, {}, render_);
    if (!prompt) fail("rendering the chat template: {}", prompt.failure().message);
    return prompt.value().text();
  }

 private:
  Tokenizer tokenizer_;
  std::unique_ptr<chat::ChatTemplate> template_;
  chat::RenderOptions render_;
};

}  // namespace

std::unique_ptr<TextCodec> load_text_codec(const std::string& dir,
                                           const nlohmann::json& template_kwargs) {
  const auto render = chat::render_options_from_json({{"chat_template_kwargs", template_kwargs}});
  if (!render) fail("--chat-template-kwargs: {}", render.failure().message);
  return std::make_unique<CheckpointCodec>(dir, render.value());
}

}  // namespace eyrie::bench
