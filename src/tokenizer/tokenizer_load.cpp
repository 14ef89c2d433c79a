// Reading tiktoken.model, tokenizer_config.json and the ids that end an answer.
#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/mapped_file.h"
#include "tokenizer/tokenizer_impl.h"
#include "tokenizer/utf8.h"

namespace eyrie {
namespace {

using nlohmann::json;

constexpr int kNumSlots = 256;       // control tokens behind the mergeable ranks, named or not
constexpr int kMaxExtraSlots = 256;  // converted checkpoints add a few more (a video placeholder)

struct KimiSlot {
  int offset;
  const char* text;
  bool special;
};
// Names of the slots that have one, as offsets from the number of mergeable ranks (163,584 in the
// full vocabulary). The think and tool markers are not special: skip_special_tokens keeps them.
constexpr KimiSlot kKimiSlots[] = {
    {0, "[BOS]", true},
    {1, "[EOS]", true},
    {2, "<|im_end|>", true},
    {3, "<|im_user|>", true},
    {4, "<|im_assistant|>", true},
    {6, "<|start_header_id|>", true},
    {7, "<|end_header_id|>", true},
    {9, "[EOT]", true},
    {10, "<|im_system|>", true},
    {11, "<|tool_calls_section_begin|>", false},
    {12, "<|tool_calls_section_end|>", false},
    {13, "<|tool_call_begin|>", false},
    {14, "<|tool_call_argument_begin|>", false},
    {15, "<|tool_call_end|>", false},
    {17, "<|im_middle|>", true},
    {18, "<|media_begin|>", true},
    {19, "<|media_content|>", true},
    {20, "<|media_end|>", true},
    {21, "<|media_pad|>", true},
    {22, "<think>", false},
    {23, "</think>", false},
    {254, "[UNK]", true},
    {255, "[PAD]", true},
};

constexpr std::array<int8_t, 256> base64_digits() {
  std::array<int8_t, 256> digits{};
  digits.fill(-1);
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (size_t i = 0; i < kDigits.size(); ++i) {
    digits[static_cast<uint8_t>(kDigits[i])] = static_cast<int8_t>(i);
  }
  return digits;
}

std::optional<std::string> base64_decode(std::string_view text) {
  static constexpr std::array<int8_t, 256> kDigits = base64_digits();
  if (text.empty() || text.size() % 4 != 0) return std::nullopt;
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
  std::string out(text.size() / 4 * 3, '\0');
  char* next = out.data();
  for (size_t i = 0; i < text.size(); i += 4) {
    uint32_t group = 0;
    for (size_t j = i; j < i + 4; ++j) {
      const bool is_padding = j >= text.size() - padding;
      const int digit = is_padding ? 0 : kDigits[static_cast<uint8_t>(text[j])];
      if (digit < 0) return std::nullopt;
      group = (group << 6) | static_cast<uint32_t>(digit);
    }
    for (int shift = 16; shift >= 0; shift -= 8) *next++ = static_cast<char>(group >> shift);
  }
  out.resize(out.size() - padding);
  return out;
}

// What may stand in a message: an odd file must not print control characters.
std::string shown(std::string_view text) {
  constexpr size_t kMaxShown = 40;
  std::string out = "\"" + utf8_replace_invalid(text.substr(0, kMaxShown)) + "\"";
  std::replace_if(
      out.begin(), out.end(), [](char c) { return c >= 0 && c < 0x20; }, '?');
  return text.size() > kMaxShown ? out + "…" : out;
}

struct RankLine {
  std::string bytes;
  uint32_t rank = 0;
  int line = 0;
};

RankLine read_rank_line(std::string_view line, int number, const std::string& path) {
  const size_t space = std::min(line.find(' '), line.size());
  auto bytes = base64_decode(line.substr(0, space));
  if (space == line.size() || !bytes || bytes->empty()) {
    fail("{} line {}: {} is not a base64 token, a space and its rank", path, number, shown(line));
  }
  RankLine result{std::move(*bytes), 0, number};
  const std::string_view digits = line.substr(space + 1);
  const char* end = digits.data() + digits.size();
  const auto parsed = std::from_chars(digits.data(), end, result.rank);
  if (parsed.ec != std::errc{} || parsed.ptr != end) {
    fail("{} line {}: rank {} is not a number", path, number, shown(digits));
  }
  return result;
}

// Ids are ranks and the slots follow them, so the ranks must be 0 … n - 1, in any order.
std::vector<std::string> read_ranks(const std::string& path) {
  const std::string content = read_text_file(path);
  std::vector<RankLine> lines;
  lines.reserve(static_cast<size_t>(std::count(content.begin(), content.end(), '\n')) + 1);
  std::string_view left = content;
  for (int number = 1; !left.empty(); ++number) {
    const size_t newline = std::min(left.find('\n'), left.size());
    std::string_view line = left.substr(0, newline);
    left.remove_prefix(std::min(newline + 1, left.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty()) lines.push_back(read_rank_line(line, number, path));
  }
  std::vector<std::string> tokens(lines.size());
  std::unordered_map<std::string_view, int> line_of;
  line_of.reserve(lines.size());
  for (const RankLine& line : lines) {
    if (line.rank >= tokens.size()) {
      fail("{} line {}: rank {} with {} tokens in the file; ranks are 0 … {} without gaps", path,
           line.line, line.rank, tokens.size(), tokens.size() - 1);
    }
    const auto [earlier, is_new] = line_of.emplace(line.bytes, line.line);
    if (!is_new) fail("{} line {}: the token of line {} again", path, line.line, earlier->second);
    std::string& token = tokens[line.rank];
    if (!token.empty()) fail("{} line {}: rank {} again", path, line.line, line.rank);
    token = line.bytes;
  }
  for (int byte = 0; byte < 256; ++byte) {
    const char single = static_cast<char>(byte);
    if (!line_of.contains({&single, 1})) {
      fail("{}: no token for the single byte 0x{:02X}, so not every text can be encoded", path,
           byte);
    }
  }
  return tokens;
}

json read_json_object(const std::string& path) {
  const std::string content = read_text_file(path);
  try {
    json value = json::parse(content);
    if (!value.is_object()) fail("{}: a JSON object is expected, not {}", path, value.type_name());
    return value;
  } catch (const json::exception& error) {
    fail("{} is not valid JSON: {}", path, error.what());
  }
}

ControlToken read_added_token(const json& entry, const std::string& where) {
  if (!entry.is_object()) fail("{}: an object is expected, not {}", where, entry.type_name());
  const auto content = entry.find("content");
  if (content == entry.end() || !content->is_string() ||
      content->get_ref<const std::string&>().empty()) {
    fail("{}: content must be a text that is not empty", where);
  }
  const auto special = entry.find("special");
  if (special != entry.end() && !special->is_boolean()) {
    fail("{}: special must be true or false, not {}", where, special->dump());
  }
  return {content->get<std::string>(), special != entry.end() && special->get<bool>()};
}

void name_slots_from_config(const json& added, const std::string& path, int num_base,
                            std::vector<ControlToken>& slots) {
  if (!added.is_object()) {
    fail("{}: added_tokens_decoder must be an object, not {}", path, added.type_name());
  }
  for (const auto& [key, entry] : added.items()) {
    const std::string where = fmt::format("{}: added_tokens_decoder {}", path, shown(key));
    int id = -1;
    const auto parsed = std::from_chars(key.data(), key.data() + key.size(), id);
    if (parsed.ec != std::errc{} || parsed.ptr != key.data() + key.size()) {
      fail("{}: the key must be a token id", where);
    }
    const int end = num_base + kNumSlots + kMaxExtraSlots;
    if (id < num_base || id >= end) {
      fail("{}: not in {} … {}, the ids that may follow the {} tokens of tiktoken.model", where,
           num_base, end - 1, num_base);
    }
    const auto slot = static_cast<size_t>(id - num_base);
    if (slot >= slots.size()) slots.resize(slot + 1);
    slots[slot] = read_added_token(entry, where);
  }
}

std::vector<ControlToken> read_slots(const std::string& path, int num_base) {
  std::vector<ControlToken> slots(kNumSlots);
  json config = json::object();
  if (std::filesystem::exists(path)) config = read_json_object(path);
  const auto added = config.find("added_tokens_decoder");
  if (added != config.end() && !added->is_null()) {
    name_slots_from_config(*added, path, num_base, slots);
  } else {
    for (const KimiSlot& slot : kKimiSlots) {
      slots[static_cast<size_t>(slot.offset)] = {slot.text, slot.special};
    }
  }
  std::map<std::string, int> seen;
  for (size_t i = 0; i < slots.size(); ++i) {
    const int id = num_base + static_cast<int>(i);
    if (slots[i].text.empty()) slots[i].text = fmt::format("<|reserved_token_{}|>", id);
    const auto [earlier, is_new] = seen.emplace(slots[i].text, id);
    if (!is_new) {
      fail("{}: added_tokens_decoder names both {} and {} {}", path, earlier->second, id,
           shown(slots[i].text));
    }
  }
  return slots;
}

void add_eos_field(const json& config, const std::string& path, int vocab_size,
                   std::vector<TokenId>& eos) {
  const auto field = config.find("eos_token_id");
  if (field == config.end() || field->is_null()) return;
  for (const json& id : field->is_array() ? *field : json::array({*field})) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= vocab_size) {
      fail("{}: eos_token_id {} is no token id, those are 0 … {}", path, id.dump(), vocab_size - 1);
    }
    eos.push_back(id.get<TokenId>());
  }
}

std::vector<TokenId> read_eos_ids(const std::filesystem::path& dir, int num_base,
                                  const std::vector<ControlToken>& slots) {
  std::vector<TokenId> eos;
  const int vocab_size = num_base + static_cast<int>(slots.size());
  for (const char* file : {"config.json", "generation_config.json"}) {
    const std::string path = (dir / file).string();
    if (!std::filesystem::exists(path)) continue;
    const json config = read_json_object(path);
    add_eos_field(config, path, vocab_size, eos);
    const auto text = config.find("text_config");
    if (text != config.end() && text->is_object()) add_eos_field(*text, path, vocab_size, eos);
  }
  for (size_t i = 0; i < slots.size(); ++i) {
    for (const char* end : {"[EOS]", "<|im_end|>", "[EOT]"}) {
      if (slots[i].text == end) eos.push_back(num_base + static_cast<TokenId>(i));
    }
  }
  std::sort(eos.begin(), eos.end());
  eos.erase(std::unique(eos.begin(), eos.end()), eos.end());
  return eos;
}

}  // namespace

Tokenizer Tokenizer::load(const std::string& dir) {
  const std::filesystem::path root(dir);
  const std::string ranks_path = (root / "tiktoken.model").string();
  if (!std::filesystem::exists(ranks_path)) {
    fail("{} has no tiktoken.model: a tokenizer in tiktoken's format, as Kimi-K2's, is needed",
         dir);
  }
  const std::vector<std::string> tokens = read_ranks(ranks_path);
  const int num_base = static_cast<int>(tokens.size());
  std::vector<ControlToken> slots = read_slots((root / "tokenizer_config.json").string(), num_base);
  std::vector<TokenId> eos = read_eos_ids(root, num_base, slots);
  return Tokenizer(std::make_unique<Impl>(tokens, std::move(slots), std::move(eos)));
}

Tokenizer Tokenizer::bytes_only() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  return Tokenizer(
      std::make_unique<Impl>(tokens, std::vector<ControlToken>{}, std::vector<TokenId>{}));
}

}  // namespace eyrie
