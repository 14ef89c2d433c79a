#include "chat/jinja_lexer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "tokenizer/utf8.h"

namespace eyrie::chat::jinja {
namespace {

// Longest first.
constexpr auto kOperators = std::to_array<std::string_view>(
    {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
     "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"});

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool begins_name(char32_t c) { return c == '_' || is_alphabetic(c); }
bool continues_name(char32_t c) { return begins_name(c) || is_numeric(c); }

std::string with_plain_newlines(std::string_view source) {
  std::string out;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out.push_back('\n');
      if (source.substr(i).starts_with("\r\n")) ++i;
    } else {
      out.push_back(source[i]);
    }
  }
  return out;
}

// A string literal's value: Python's escapes; an unknown one stays as it is written.
class Unescaper {
 public:
  Unescaper(std::string_view body, int line) : body_(body), line_(line) {}
  std::string run() {
    while (at_ < body_.size()) {
      if (body_[at_] != '\\' || at_ + 1 == body_.size()) {
        out_.push_back(body_[at_++]);
      } else {
        escape();
      }
    }
    return std::move(out_);
  }

 private:
  void escape() {
    static constexpr std::string_view kLetters = "\\'\"abfnrtv";
    static constexpr std::string_view kMeanings = "\\'\"\a\b\f\n\r\t\v";
    const char c = body_[at_ + 1];
    at_ += 2;
    if (const size_t found = kLetters.find(c); found != std::string_view::npos) {
      out_.push_back(kMeanings[found]);
    } else if (c == 'x' || c == 'u' || c == 'U') {
      code(c == 'x' ? 2 : c == 'u' ? 4 : 8);
    } else if (c >= '0' && c <= '7') {
      size_t end = at_;
      while (end < body_.size() && end < at_ + 2 && body_[end] >= '0' && body_[end] <= '7') ++end;
      append_utf8(static_cast<char32_t>(*parse_int(body_.substr(at_ - 1, end - at_ + 1), 8)), out_);
      at_ = end;
    } else if (c == 'N') {
      throw SyntaxError("names of characters (\\N) are not available in a string", line_);
    } else if (c != '\n') {
      out_ += {'\\', c};
    }
  }

  void code(size_t digits) {
    const std::string_view hex = body_.substr(at_, digits);
    uint32_t value = 0;
    const auto read = std::from_chars(hex.data(), hex.data() + hex.size(), value, 16);
    if (hex.size() != digits || read.ptr != hex.data() + digits || value > 0x10FFFF) {
      throw SyntaxError("a string has a broken \\x or \\u escape", line_);
    }
    at_ += digits;
    const bool surrogate = value >= 0xD800 && value < 0xE000;  // no UTF-8 spells it
    append_utf8(surrogate ? U'\uFFFD' : static_cast<char32_t>(value), out_);
  }

  std::string_view body_;
  int line_;
  size_t at_ = 0;
  std::string out_;
};

class Lexer {
 public:
  explicit Lexer(std::string source) : owned_(std::move(source)), source_(owned_) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) root();
    add(Token::Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  using Kind = Token::Kind;

  [[noreturn]] void fail(const std::string& message) const { throw SyntaxError(message, line_); }
  std::string_view rest() const { return source_.substr(at_); }
  void add(Kind kind, std::string_view text) {
    tokens_.push_back({kind, std::string(text), line_});
  }

  void advance(size_t count) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(at_ + count),
                                         '\n'));
    at_ += count;
    if (count > 0) line_starting_ = source_[at_ - 1] == '\n';
  }
  void skip_space() {
    const Range kept = stripped(rest(), true, false, nullptr);
    advance(kept.begin);
  }

  // Data up to where a tag begins that may eat some of its end.
  void data(size_t end, char sign, bool is_print) {
    std::string_view text = source_.substr(at_, end - at_);
    if (sign == '-') {
      text = text.substr(0, stripped(text, false, true, nullptr).end);
    } else if (sign != '+' && !is_print) {
      const size_t line_begin = text.rfind('\n') + 1;
      const Range left = stripped(text.substr(line_begin), true, false, nullptr);
      const bool blank = left.begin == left.end;
      if (blank && (line_begin > 0 || line_starting_)) text = text.substr(0, line_begin);
    }
    if (!text.empty()) add(Kind::kData, text);
    advance(end - at_);
  }

  static char sign_at(std::string_view text) {
    return !text.empty() && (text[0] == '-' || text[0] == '+') ? text[0] : '\0';
  }

  // The end of a tag or comment: "-%}" and all space, "+%}", or "%}" and a newline. 0 = not here.
  size_t end_at(std::string_view text, std::string_view close, bool plus_allowed) const {
    size_t size = close.size();
    const char sign = sign_at(text);
    if (sign == '-' || (sign == '+' && plus_allowed)) text.remove_prefix(1), ++size;
    if (!text.starts_with(close)) return 0;
    text.remove_prefix(close.size());
    if (sign == '-') return size + stripped(text, true, false, nullptr).begin;
    if (sign == 0 && close != "}}" && text.starts_with('\n')) return size + 1;
    return size;
  }

  void root() {
    size_t begin = at_;
    while (true) {
      begin = source_.find('{', begin);
      if (begin == std::string_view::npos || begin + 1 == source_.size()) {
        data(source_.size(), '+', false);
        return;
      }
      const char kind = source_[begin + 1];
      if (kind == '{' || kind == '%' || kind == '#') break;
      ++begin;
    }
    const char kind = source_[begin + 1];
    const char sign = sign_at(source_.substr(begin + 2));
    data(begin, sign, kind == '{');
    if (kind == '#') return comment();
    if (kind == '%' && raw()) return;
    add(kind == '{' ? Kind::kPrintBegin : Kind::kTagBegin, "");
    advance(sign != 0 ? 3 : 2);
    expression(kind == '{');
  }

  void comment() {
    advance(sign_at(rest().substr(2)) != 0 ? 3 : 2);
    for (size_t end = at_; end < source_.size(); ++end) {
      const char c = source_[end];
      if (c != '#' && c != '-' && c != '+') continue;
      const size_t size = end_at(source_.substr(end), "#}", true);
      if (size == 0) continue;
      advance(end - at_ + size);
      return;
    }
    fail("a comment is not closed");
  }

  // {% raw %} … {% endraw %}; false if the tag is another one.
  bool raw() {
    size_t at = at_ + (sign_at(rest().substr(2)) != 0 ? 3 : 2);
    const auto skip = [&] { at += stripped(source_.substr(at), true, false, nullptr).begin; };
    skip();
    if (!source_.substr(at).starts_with("raw")) return false;
    at += 3;
    skip();
    const std::string_view close = source_.substr(at);
    if (!close.starts_with("%}") && !close.starts_with("-%}")) return false;
    at += close[0] == '-' ? 3 : 2;
    if (close[0] == '-') skip();
    advance(at - at_);
    for (size_t begin = source_.find("{%", at_); begin != std::string_view::npos;
         begin = source_.find("{%", begin + 1)) {
      const char sign = sign_at(source_.substr(begin + 2));
      at = begin + (sign != 0 ? 3 : 2);
      skip();
      if (!source_.substr(at).starts_with("endraw")) continue;
      at += 6;
      skip();
      const size_t size = end_at(source_.substr(at), "%}", true);
      if (size == 0) continue;
      data(begin, sign, false);
      advance(at + size - at_);
      return true;
    }
    fail("raw is not closed by endraw");
  }

  void expression(bool is_print) {
    std::string open;  // the brackets that wait to be closed
    const std::string_view close = is_print ? "}}" : "%}";
    while (true) {
      skip_space();
      if (at_ == source_.size()) {
        fail(fmt::format("the template ends inside a tag; {} is missing", close));
      }
      if (open.empty()) {
        if (const size_t size = end_at(rest(), close, !is_print); size > 0) {
          add(is_print ? Kind::kPrintEnd : Kind::kTagEnd, "");
          advance(size);
          return;
        }
      }
      token(open);
    }
  }

  void token(std::string& open) {
    const char c = rest()[0];
    if (is_digit(c)) return number();
    if (c == '\'' || c == '"') return string();
    size_t end = at_;
    if (begins_name(next_character(source_, end))) {
      for (size_t next = end;
           next < source_.size() && continues_name(next_character(source_, next)); end = next) {
      }
      add(Kind::kName, source_.substr(at_, end - at_));
      return advance(end - at_);
    }
    for (const std::string_view op : kOperators) {
      if (!rest().starts_with(op)) continue;
      bracket(op, open);
      add(Kind::kOperator, op);
      return advance(op.size());
    }
    fail(fmt::format("unexpected character {}", quote_text(source_.substr(at_, end - at_))));
  }

  void bracket(std::string_view op, std::string& open) const {
    static constexpr std::string_view kOpening = "([{";
    static constexpr std::string_view kClosing = ")]}";
    if (kOpening.find(op) != std::string_view::npos) {
      open.push_back(kClosing[kOpening.find(op)]);
    } else if (kClosing.find(op) != std::string_view::npos) {
      if (open.empty()) fail(fmt::format("unexpected '{}'", op));
      if (open.back() != op[0]) {
        fail(fmt::format("unexpected '{}', expected '{}'", op, open.back()));
      }
      open.pop_back();
    }
  }

  void string() {
    const char quote = rest()[0];
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) fail("a string is not closed");
    add(Kind::kString, Unescaper(source_.substr(at_ + 1, end - at_ - 1), line_).run());
    advance(end + 1 - at_);
  }

  size_t digits_end(size_t at) const {
    while (at < source_.size() &&
           (is_digit(source_[at]) ||
            (source_[at] == '_' && at + 1 < source_.size() && is_digit(source_[at + 1])))) {
      ++at;
    }
    return at;
  }

  void number() {
    const char second = rest().size() > 1 ? static_cast<char>(rest()[1] | 0x20) : '\0';
    if (rest()[0] == '0' && (second == 'x' || second == 'o' || second == 'b')) {
      size_t end = at_ + 2;
      while (end < source_.size() &&
             (std::isalnum(static_cast<unsigned char>(source_[end])) != 0 || source_[end] == '_')) {
        ++end;
      }
      return integer(end, second == 'x' ? 16 : second == 'o' ? 8 : 2, 2);
    }
    size_t end = digits_end(at_);
    bool is_float = false;
    if (at_ > 0 && source_[at_ - 1] == '.') return integer(end, 10, 0);  // x.0.1 has no 0.1
    if (end + 1 < source_.size() && source_[end] == '.' && is_digit(source_[end + 1])) {
      end = digits_end(end + 1);
      is_float = true;
    }
    if (end < source_.size() && (source_[end] | 0x20) == 'e') {
      size_t exponent = end + 1;
      if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) {
        ++exponent;
      }
      if (exponent < source_.size() && is_digit(source_[exponent])) {
        end = digits_end(exponent);
        is_float = true;
      }
    }
    if (!is_float) return integer(end, 10, 0);
    std::string text(source_.substr(at_, end - at_));
    std::erase(text, '_');
    add(Kind::kFloat, text);
    tokens_.back().number = parse_float(text).value_or(0.0);
    advance(end - at_);
  }

  void integer(size_t end, int base, size_t prefix) {
    const std::string_view text = source_.substr(at_, end - at_);
    const auto value = parse_int(text.substr(prefix), base);
    if (!value) fail(fmt::format("{} is no number or too large a one", text));
    add(Kind::kInteger, text);
    tokens_.back().number = *value;
    advance(end - at_);
  }

  std::string owned_;
  std::string_view source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // the last thing read ended a line
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  std::string text =
      with_plain_newlines(utf8_valid(source) ? std::string(source) : utf8_replace_invalid(source));
  if (text.ends_with('\n')) text.pop_back();
  return Lexer(std::move(text)).run();
}

std::optional<Int> parse_int(std::string_view digits, int base) {
  if (digits.empty() || digits.back() == '_' || digits.front() == '_') return std::nullopt;
  Int value = 0;
  bool after_underscore = false;
  for (const char c : digits) {
    if (c == '_') {
      if (after_underscore) return std::nullopt;
      after_underscore = true;
      continue;
    }
    after_underscore = false;
    const char lower = static_cast<char>(c | 0x20);
    const int digit = is_digit(c)                      ? c - '0'
                      : (lower >= 'a' && lower <= 'z') ? lower - 'a' + 10
                                                       : base;
    if (digit >= base) return std::nullopt;
    if (__builtin_mul_overflow(value, Int{base}, &value) ||
        __builtin_add_overflow(value, Int{digit}, &value)) {
      throw TemplateError(fmt::format("{} is too large an integer", digits.substr(0, 60)));
    }
  }
  return value;
}

std::optional<double> parse_float(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  if (text.empty() || text.starts_with('+')) return std::nullopt;
  double value = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  if (read.ptr != text.data() + text.size()) return std::nullopt;
  if (read.ec == std::errc::result_out_of_range) {
    // Too far out: infinity or zero, by the exponent's sign.
    const bool tiny =
        text.find("e-") != std::string_view::npos || text.find("E-") != std::string_view::npos;
    value = tiny ? 0.0 : HUGE_VAL;
    return text.starts_with('-') ? -value : value;
  }
  if (read.ec != std::errc{}) return std::nullopt;
  return value;
}

}  // namespace eyrie::chat::jinja
