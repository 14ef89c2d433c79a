#include "tokenizer/tokenizer.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "tokenizer/pretokenizer.h"
#include "tokenizer/tokenizer_impl.h"
#include "tokenizer/utf8.h"

namespace eyrie {
namespace {

uint32_t start_key(std::string_view text) {
  const auto byte = [&](size_t i) {
    return i < text.size() ? uint32_t{static_cast<uint8_t>(text[i])} : 256u;
  };
  return byte(0) * 257 + byte(1);
}

}  // namespace

Tokenizer::Impl::Impl(const std::vector<std::string>& base_tokens,
                      std::vector<ControlToken> control_tokens, std::vector<TokenId> eos)
    : bpe(base_tokens), controls(std::move(control_tokens)), eos_ids(std::move(eos)) {
  for (size_t i = 0; i < controls.size(); ++i) {
    const Spelling spelling{controls[i].text, bpe.size() + static_cast<TokenId>(i)};
    CHECK(!spelling.text.empty());
    CHECK(control_ids.emplace(spelling.text, spelling.id).second, "{}", spelling.text);
    controls_by_start[start_key(spelling.text)].push_back(spelling);
    begins_control[static_cast<uint8_t>(spelling.text[0])] = true;
  }
  for (auto& [key, spellings] : controls_by_start) {
    std::sort(spellings.begin(), spellings.end(),
              [](const Spelling& a, const Spelling& b) { return a.text.size() > b.text.size(); });
  }
}

const Tokenizer::Impl::Spelling* Tokenizer::Impl::control_at(std::string_view text) const {
  if (!begins_control[static_cast<uint8_t>(text[0])]) return nullptr;
  for (const uint32_t key : {start_key(text), start_key(text.substr(0, 1))}) {
    const auto found = controls_by_start.find(key);
    if (found == controls_by_start.end()) continue;
    for (const Spelling& spelling : found->second) {
      if (text.starts_with(spelling.text)) return &spelling;
    }
  }
  return nullptr;
}

void Tokenizer::Impl::encode_ordinary(std::string_view valid, std::vector<TokenId>& out) const {
  thread_local std::vector<uint32_t> ends;
  ends.clear();
  split_pieces(valid, ends);
  size_t begin = 0;
  for (const uint32_t end : ends) {
    bpe.encode_piece(valid.substr(begin, end - begin), out);
    begin = end;
  }
}

void Tokenizer::Impl::encode_portion(std::string_view valid, AllowSpecial allow,
                                     std::vector<TokenId>& out) const {
  size_t begin = 0;
  for (size_t at = 0; allow == AllowSpecial::kAll && at < valid.size();) {
    const bool may_begin = begins_control[static_cast<uint8_t>(valid[at])];
    const Spelling* control = may_begin ? control_at(valid.substr(at)) : nullptr;
    if (control == nullptr) {
      ++at;
      continue;
    }
    // The pattern must not see past a control token, as in tiktoken.
    encode_ordinary(valid.substr(begin, at - begin), out);
    out.push_back(control->id);
    at += control->text.size();
    begin = at;
  }
  encode_ordinary(valid.substr(begin), out);
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

std::vector<TokenId> Tokenizer::encode(std::string_view text, AllowSpecial allow) const {
  std::vector<TokenId> ids;
  encode_append(text, allow, ids);
  return ids;
}

void Tokenizer::encode_append(std::string_view text, AllowSpecial allow,
                              std::vector<TokenId>& out) const {
  std::string repaired;
  if (!utf8_valid(text)) {
    repaired = utf8_replace_invalid(text);
    text = repaired;
  }
  PortionCutter portions(text);
  for (auto portion = portions.next(); !portion.empty(); portion = portions.next()) {
    impl_->encode_portion(portion, allow, out);
  }
}

std::optional<Tokenizer::ControlSpelling> Tokenizer::find_control(std::string_view text) const {
  for (size_t at = 0; at < text.size(); ++at) {
    const Impl::Spelling* control = impl_->control_at(text.substr(at));
    if (control != nullptr) return ControlSpelling{at, control->text.size(), control->id};
  }
  return std::nullopt;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  std::string out;
  Utf8Stream utf8;
  for (const TokenId id : ids) {
    if (skip_special && is_special(id)) continue;
    utf8.push(token_bytes(id), out);
  }
  utf8.flush(out);
  return out;
}

std::string_view Tokenizer::token_bytes(TokenId id) const {
  if (id < 0 || id >= vocab_size()) return {};
  if (id < num_base_tokens()) return impl_->bpe.bytes(id);
  return impl_->controls[static_cast<size_t>(id - num_base_tokens())].text;
}

std::optional<TokenId> Tokenizer::id_of(std::string_view control) const {
  const auto found = impl_->control_ids.find(control);
  if (found == impl_->control_ids.end()) return std::nullopt;
  return found->second;
}

bool Tokenizer::is_special(TokenId id) const {
  return is_control(id) && impl_->controls[static_cast<size_t>(id - num_base_tokens())].special;
}

int32_t Tokenizer::num_base_tokens() const { return impl_->bpe.size(); }

int32_t Tokenizer::vocab_size() const {
  return impl_->bpe.size() + static_cast<int32_t>(impl_->controls.size());
}

const std::vector<TokenId>& Tokenizer::eos_ids() const { return impl_->eos_ids; }

}  // namespace eyrie
