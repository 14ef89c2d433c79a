#include "chat/parser.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "chat/message.h"

namespace eyrie::chat {
namespace {

// In the order of OutputParser::Marker.
constexpr std::array<std::string_view, OutputParser::kNumMarkers> kMarkers = {
    "<think>",
    "</think>",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
};

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

bool is_blank(std::string_view text) { return std::all_of(text.begin(), text.end(), is_space); }

std::string without_space(std::string_view text) {
  std::string out(text);
  std::erase_if(out, is_space);
  return out;
}

std::string_view without_suffix(std::string_view text, std::string_view suffix) {
  if (text.ends_with(suffix)) text.remove_suffix(suffix.size());
  return text;
}

}  // namespace

OutputParser::OutputParser(const Tokenizer* tokenizer, ParserOptions options)
    : tokenizer_(tokenizer),
      options_(std::move(options)),
      state_(options_.reasoning && options_.starts_in_reasoning ? State::kReasoning
                                                                : State::kContent) {
  for (size_t i = 0; i < kMarkers.size(); ++i) {
    marker_ids_[i] = tokenizer == nullptr ? -1 : tokenizer->id_of(kMarkers[i]).value_or(-1);
  }
}

// Whether the marker has a meaning here; elsewhere it is ordinary text.
bool OutputParser::is_active(int marker) const {
  if (marker == kThinkBegin || marker == kThinkEnd) return options_.reasoning;
  if (options_.tools != ToolMode::kOff) return true;
  // Even unparsed, a tool section is not a thought.
  return marker == kSectionBegin && state_ == State::kReasoning;
}

void OutputParser::push(const TextPiece& piece, std::vector<Delta>& out) {
  for (int marker = 0; marker < kNumMarkers && !piece.cut && piece.token >= 0; ++marker) {
    const auto m = static_cast<size_t>(marker);
    if (marker_ids_[m] != piece.token || !is_active(marker)) continue;
    // Bytes of a character that the marker left unfinished may stand before it.
    scan(without_suffix(piece.text, kMarkers[m]), false, true, out);
    on_marker(marker, out);
    return;
  }
  std::string_view text = piece.text;
  if (options_.skip_special && !piece.cut && tokenizer_ != nullptr &&
      tokenizer_->is_special(piece.token)) {
    text = without_suffix(text, tokenizer_->token_bytes(piece.token));
  }
  scan(text, false, false, out);
}

void OutputParser::push_text(std::string_view text, std::vector<Delta>& out) {
  scan(text, true, false, out);
}

void OutputParser::finish(std::vector<Delta>& out) { scan("", false, true, out); }

// Splits text at markers known by spelling. Unless at_end, an end of the text that may begin one
// waits in held_.
void OutputParser::scan(std::string_view text, bool every_marker, bool at_end,
                        std::vector<Delta>& out) {
  std::string joined;
  if (!held_.empty()) {
    joined = std::move(held_);
    held_.clear();
    text = joined += text;
  }
  while (true) {
    size_t begin = std::string_view::npos;
    size_t held = 0;
    int found = -1;
    for (int marker = 0; marker < kNumMarkers; ++marker) {
      const auto m = static_cast<size_t>(marker);
      if (!is_active(marker) || (marker_ids_[m] >= 0 && !every_marker)) continue;
      const size_t at = text.find(kMarkers[m]);
      if (at < begin) {
        begin = at;
        found = marker;
      }
      for (size_t size = std::min(kMarkers[m].size() - 1, text.size()); size > held; --size) {
        if (text.ends_with(kMarkers[m].substr(0, size))) held = size;
      }
    }
    if (found < 0) {
      if (at_end) held = 0;
      on_text(text.substr(0, text.size() - held), out);
      held_ = text.substr(text.size() - held);
      return;
    }
    on_text(text.substr(0, begin), out);
    on_marker(found, out);
    text.remove_prefix(begin + kMarkers[static_cast<size_t>(found)].size());
  }
}

void OutputParser::on_text(std::string_view text, std::vector<Delta>& out) {
  switch (state_) {
    case State::kReasoning:
      emit(Delta::Kind::kReasoning, text, out);
      break;
    case State::kContent:
      emit(Delta::Kind::kContent, text, out);
      break;
    case State::kArguments:
      add_arguments(text, out);
      break;
    // Between the calls of a section stands nothing; should an argument marker follow, it was the
    // header of a call whose begin was forgotten.
    case State::kSection:
    case State::kHeader:
      header_ += text;
      break;
  }
}

void OutputParser::on_marker(int marker, std::vector<Delta>& out) {
  const bool in_call = state_ == State::kHeader || state_ == State::kArguments;
  const auto close_call = [&] {
    if (state_ == State::kHeader && !is_blank(header_)) begin_call(out);
    if (state_ == State::kArguments) end_call(out);
  };
  switch (marker) {
    case kThinkBegin:
    case kThinkEnd:
      if (state_ == State::kArguments && !nameless_) {
        add_arguments(kMarkers[static_cast<size_t>(marker)], out);
      } else if (state_ == State::kReasoning || state_ == State::kContent) {
        state_ = marker == kThinkBegin ? State::kReasoning : State::kContent;
      }
      break;
    case kSectionBegin:
      if (options_.tools == ToolMode::kOff) {
        state_ = State::kContent;
        on_text(kMarkers[kSectionBegin], out);
      } else if (!in_call) {
        state_ = State::kSection;
        section_open_ = true;
        header_.clear();
      }
      break;
    case kSectionEnd:
      close_call();
      if (section_open_ || in_call) state_ = State::kContent;
      section_open_ = false;
      break;
    case kCallBegin:
      close_call();
      state_ = State::kHeader;
      header_.clear();
      break;
    case kArgumentBegin:
      if (state_ == State::kHeader || state_ == State::kSection) begin_call(out);
      break;
    case kCallEnd:
      close_call();
      if (in_call) state_ = section_open_ ? State::kSection : State::kContent;
      header_.clear();
      break;
    default:
      CHECK(false, "marker {}", marker);
  }
}

// functions.NAME:INDEX, and what models write instead of it: no prefix, no index, a prefix of their
// own, white space.
OutputParser::Call OutputParser::name_call(std::string_view header) const {
  std::string name = without_space(header);
  constexpr std::string_view kPrefix = "functions.";
  if (name.starts_with(kPrefix)) name.erase(0, kPrefix.size());
  int index = options_.first_call_index + num_calls_;
  const size_t colon = name.rfind(':');
  bool has_index = false;
  if (colon != std::string::npos) {
    const std::string digits = name.substr(colon + 1);
    has_index =
        !digits.empty() && digits.size() < 9 &&
        std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (has_index) {
      index = std::stoi(digits);
      name.resize(colon);
    }
  }
  const auto& known = options_.tool_names;
  const auto is_known = [&](std::string_view wanted) {
    return std::find(known.begin(), known.end(), wanted) != known.end();
  };
  if (!known.empty() && !is_known(name)) {
    const std::string last = name.substr(name.rfind('.') + 1);
    if (is_known(last)) {
      name = last;
    } else if (!has_index && known.size() == 1) {
      name = known[0];  // call_ab12: an id that was copied from elsewhere names nothing
    }
  }
  return {kimi_tool_call_id(name, index), name};
}

void OutputParser::begin_call(std::vector<Delta>& out) {
  // Without an argument marker the arguments may follow the id at once.
  const size_t brace = std::min(header_.find('{'), header_.size());
  Call call = name_call(std::string_view(header_).substr(0, brace));
  const std::string rest = header_.substr(brace);
  header_.clear();
  state_ = State::kArguments;
  has_arguments_ = false;
  nameless_ = call.name.empty();
  if (!nameless_ && options_.tools == ToolMode::kParse) {
    // A client answers by id, so two calls of one answer must not share it.
    for (int index = options_.first_call_index + num_calls_; ids_.contains(call.id); ++index) {
      call.id = kimi_tool_call_id(call.name, index);
    }
    ids_.insert(call.id);
    out.push_back({Delta::Kind::kToolCallBegin, "", num_calls_, call.id, call.name});
    ++num_calls_;
  }
  add_arguments(rest, out);
}

void OutputParser::end_call(std::vector<Delta>& out) {
  if (!has_arguments_ && !nameless_) add_arguments("{}", out);
  if (!nameless_ && options_.tools == ToolMode::kParse) {
    out.push_back({Delta::Kind::kToolCallEnd, "", num_calls_ - 1, "", ""});
    ++num_complete_calls_;
  }
  state_ = section_open_ ? State::kSection : State::kContent;
}

void OutputParser::add_arguments(std::string_view text, std::vector<Delta>& out) {
  if (!has_arguments_) {
    while (!text.empty() && is_space(text[0])) text.remove_prefix(1);
  }
  if (text.empty()) return;
  has_arguments_ = true;
  emit(nameless_ ? Delta::Kind::kContent : Delta::Kind::kToolCallArguments, text, out);
}

void OutputParser::emit(Delta::Kind kind, std::string_view text, std::vector<Delta>& out) {
  if (text.empty()) return;
  const bool is_call = kind == Delta::Kind::kToolCallArguments;
  if (is_call && options_.tools == ToolMode::kDrop) return;
  out.push_back({kind, std::string(text), is_call ? num_calls_ - 1 : -1, "", ""});
}

ParsedOutput collect(const std::vector<Delta>& deltas) {
  ParsedOutput out;
  for (const Delta& delta : deltas) {
    switch (delta.kind) {
      case Delta::Kind::kReasoning:
        out.reasoning = out.reasoning.value_or("") + delta.text;
        break;
      case Delta::Kind::kContent:
        out.content = out.content.value_or("") + delta.text;
        break;
      case Delta::Kind::kToolCallBegin:
        out.tool_calls.push_back({delta.id, delta.name, "", false});
        break;
      case Delta::Kind::kToolCallArguments:
        out.tool_calls.at(static_cast<size_t>(delta.call_idx)).arguments += delta.text;
        break;
      case Delta::Kind::kToolCallEnd:
        out.tool_calls.at(static_cast<size_t>(delta.call_idx)).complete = true;
        break;
    }
  }
  return out;
}

}  // namespace eyrie::chat
