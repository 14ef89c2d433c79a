// Python's two ways to format: "%5.2f" % values, and "{:>8}".format(values). What numbers look like
// is one function for both.
#include <algorithm>
#include <cmath>

#include "chat/jinja_interpreter.h"
#include "chat/json_text.h"

namespace eyrie::chat::jinja {
namespace {

struct Spec {
  std::string fill = " ";
  char align = '\0';  // < > ^ =
  char sign = '-';    // + or a space: in front of what is not negative
  bool alternate = false;
  char grouping = '\0';
  int64_t width = 0;
  int64_t precision = -1;
  char type = '\0';
};

constexpr int64_t kMaxPrecision = 500;

std::string grouped(const std::string& digits, char separator, size_t every) {
  const size_t point = std::min(digits.find_first_of(".eE"), digits.size());
  std::string out;
  for (size_t i = 0; i < point; ++i) {
    if (i > 0 && (point - i) % every == 0) out.push_back(separator);
    out.push_back(digits[i]);
  }
  return out + digits.substr(point);
}

std::string int_digits(Int magnitude, const Spec& spec) {
  switch (spec.type) {
    case 'x':
      return (spec.alternate ? "0x" : "") + fmt::format("{:x}", magnitude);
    case 'X':
      return (spec.alternate ? "0X" : "") + fmt::format("{:X}", magnitude);
    case 'o':
      return (spec.alternate ? "0o" : "") + fmt::format("{:o}", magnitude);
    case 'b':
      return (spec.alternate ? "0b" : "") + fmt::format("{:b}", magnitude);
    default:
      return fmt::format("{}", magnitude);
  }
}

std::string float_digits(double magnitude, const Spec& spec) {
  const bool upper = spec.type == 'F' || spec.type == 'E' || spec.type == 'G';
  if (!std::isfinite(magnitude)) {
    const std::string_view name = std::isnan(magnitude) ? "nan" : "inf";
    return upper ? to_upper(name) : std::string(name);
  }
  const auto precision = static_cast<int>(spec.precision >= 0 ? spec.precision : 6);
  switch (spec.type) {
    case 'e':
      return fmt::format("{:.{}e}", magnitude, precision);
    case 'E':
      return fmt::format("{:.{}E}", magnitude, precision);
    case 'g':
      return fmt::format("{:.{}g}", magnitude, std::max(precision, 1));
    case 'G':
      return fmt::format("{:.{}G}", magnitude, std::max(precision, 1));
    case '%':
      return fmt::format("{:.{}f}%", magnitude * 100, precision);
    case '\0': {
      if (spec.precision < 0) return python_float(magnitude);
      std::string text = fmt::format("{:.{}g}", magnitude, std::max(precision, 1));
      if (text.find_first_of(".e") == std::string::npos) text += ".0";
      return text;
    }
    default:
      return fmt::format("{:.{}f}", magnitude, precision);
  }
}

// Fills up to the width; sign is what "=" keeps in front of the fill.
void pad(const Text& body, size_t sign, const Spec& spec, char default_align, TextBuilder& out) {
  const int64_t space = std::max<int64_t>(0, spec.width - num_characters(body.bytes));
  const char align = spec.align != '\0' ? spec.align : default_align;
  const int64_t left = align == '<' ? 0 : align == '^' ? space / 2 : space;
  std::string filled;
  for (int64_t i = 0; i < left; ++i) filled += spec.fill;
  if (align == '=') out.add(body, 0, sign);
  out.own(filled);
  out.add(body, align == '=' ? sign : 0, body.size());
  filled.clear();
  for (int64_t i = left; i < space; ++i) filled += spec.fill;
  out.own(filled);
}

void put_number(const Value& value, const Spec& spec, TextBuilder& out) {
  const bool as_float =
      value.is_float() ||
      (spec.type != '\0' && std::string_view("eEfFgG%").find(spec.type) != std::string_view::npos);
  bool negative = false;
  std::string digits;
  if (as_float) {
    const double number = value.number();
    negative = std::signbit(number) && !std::isnan(number);
    digits = float_digits(std::abs(number), spec);
  } else {
    const Int number = value.integer();
    negative = number < 0;
    digits = int_digits(negative ? -number : number, spec);
    if (spec.precision > static_cast<int64_t>(digits.size())) {  // %.3d
      digits.insert(0, static_cast<size_t>(spec.precision) - digits.size(), '0');
    }
  }
  if (spec.grouping != '\0') {
    digits = grouped(digits, spec.grouping, spec.type == 'x' || spec.type == 'b' ? 4 : 3);
  }
  const std::string sign = negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
  pad(Text::own(sign + digits), sign.size(), spec, '>', out);
}

void put_text(Text text, const Spec& spec, Budget& budget, char default_align, TextBuilder& out) {
  if (spec.precision >= 0) {
    text = slice(text, 0, offset_of_character(text.bytes, spec.precision), budget);
  }
  pad(text, 0, spec, default_align, out);
}

// --- "…" % values --------------------------------------------------------------------------------

class Printf {
 public:
  Printf(const Text& format, const Value& values, Interpreter& in)
      : format_(format), bytes_(format.bytes), in_(in), out_(in.budget()) {
    if (values.is_dict()) {
      mapping_ = &values.dict();
      positional_ = {values};
    } else if (values.is_list() && values.list().flavor == Flavor::kTuple) {
      positional_ = values.list().items;
    } else {
      positional_ = {values};
    }
  }

  Text run() {
    while (at_ < bytes_.size()) {
      const size_t percent = std::min(bytes_.find('%', at_), bytes_.size());
      out_.add(format_, at_, percent);
      at_ = percent + 1;
      if (percent < bytes_.size()) directive();
    }
    if (mapping_ == nullptr && next_ < positional_.size()) {
      throw TemplateError("not all arguments converted during string formatting");
    }
    return out_.take();
  }

 private:
  char peek() const {
    if (at_ >= bytes_.size()) throw TemplateError("incomplete format");
    return bytes_[at_];
  }
  const Value& take() {
    if (next_ >= positional_.size()) throw TemplateError("not enough arguments for format string");
    return positional_[next_++];
  }
  int64_t number() {
    if (peek() == '*') {
      ++at_;
      return to_index(take(), "a format's width");
    }
    int64_t value = 0;
    while (peek() >= '0' && peek() <= '9') {
      value = std::min<int64_t>(value * 10 + (bytes_[at_++] - '0'), int64_t{1} << 40);
    }
    return value;
  }

  void directive() {
    const Value* named = nullptr;
    if (peek() == '(') {
      const size_t close = bytes_.find(')', at_);
      if (close == std::string_view::npos) throw TemplateError("incomplete format key");
      if (mapping_ == nullptr) throw TemplateError("format requires a mapping");
      const std::string_view key = bytes_.substr(at_ + 1, close - at_ - 1);
      named = mapping_->find(key);
      if (named == nullptr)
        throw TemplateError(fmt::format("the format's key {} is not there", quote_text(key)));
      at_ = close + 1;
    }
    Spec spec = read_spec();
    while (peek() == 'l' || peek() == 'h' || peek() == 'L') ++at_;
    spec.type = peek();
    ++at_;
    if (spec.type == '%') return out_.own("%");
    convert(named != nullptr ? *named : take(), spec);
  }

  Spec read_spec() {
    Spec spec;
    bool zero = false;
    for (; std::string_view("#0- +").find(peek()) != std::string_view::npos; ++at_) {
      spec.alternate |= peek() == '#';
      zero |= peek() == '0';
      if (peek() == '-') spec.align = '<';
      if (peek() == '+') spec.sign = '+';
      if (peek() == ' ' && spec.sign != '+') spec.sign = ' ';
    }
    spec.width = number();
    if (spec.width < 0) {
      spec.align = '<';
      spec.width = -spec.width;
    }
    in_.budget().check_size(static_cast<size_t>(spec.width));
    if (peek() == '.') {
      ++at_;
      spec.precision = std::max<int64_t>(0, number());
    }
    zero_ = zero && spec.align == '\0';
    return spec;
  }

  void convert(const Value& value, Spec spec) {
    switch (spec.type) {
      case 's':
        return put_text(to_text(value, in_.budget()), spec, in_.budget(), '>', out_);
      case 'r':
      case 'a':
        return put_text(repr(value, in_.budget()), spec, in_.budget(), '>', out_);
      case 'c':
        return character(value, spec);
      case 'd':
      case 'i':
      case 'u':
      case 'x':
      case 'X':
      case 'o':
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G':
        break;
      default:
        throw TemplateError(fmt::format("unsupported format character '{}'", spec.type));
    }
    if (!value.is_number()) {
      throw TemplateError(fmt::format("%{} format: a real number is required, not {}", spec.type,
                                      type_name(value)));
    }
    if (spec.precision > kMaxPrecision) throw TemplateError("precision too big");
    const bool whole = spec.type == 'd' || spec.type == 'i' || spec.type == 'u';
    const bool radix = spec.type == 'x' || spec.type == 'X' || spec.type == 'o';
    if (radix && value.is_float()) {
      throw TemplateError(fmt::format("%{} format: an integer is required, not float", spec.type));
    }
    if (zero_) {
      spec.fill = "0";
      spec.align = '=';
    }
    if (whole && value.is_float()) {
      if (!(std::abs(value.number()) < 1e38)) throw TemplateError("an integer grows too large");
      spec.type = 'd';
      return put_number(static_cast<Int>(value.number()), spec, out_);
    }
    if (whole) spec.type = 'd';
    put_number(value, spec, out_);
  }

  void character(const Value& value, const Spec& spec) {
    if (value.is_string() && num_characters(value.text().bytes) == 1) {
      return put_text(value.text(), spec, in_.budget(), '>', out_);
    }
    throw TemplateError("%c requires a single character");
  }

  const Text& format_;
  std::string_view bytes_;
  Interpreter& in_;
  TextBuilder out_;
  const Dict* mapping_ = nullptr;
  std::vector<Value> positional_;
  size_t next_ = 0;
  size_t at_ = 0;
  bool zero_ = false;
};

// --- "…".format(…) -------------------------------------------------------------------------------

Spec parse_spec(std::string_view text, Budget& budget) {
  Spec spec;
  size_t at = 0;
  const auto is_align = [&](size_t i) {
    return i < text.size() && std::string_view("<>^=").find(text[i]) != std::string_view::npos;
  };
  size_t second = 0;
  if (!text.empty()) next_character(text, second);
  if (second > 0 && is_align(second)) {
    spec.fill = text.substr(0, second);
    spec.align = text[second];
    at = second + 1;
  } else if (is_align(0)) {
    spec.align = text[0];
    at = 1;
  }
  const auto skip = [&](char c) { return at < text.size() && text[at] == c && (++at, true); };
  const auto number = [&] {
    int64_t value = 0;
    for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) {
      value = std::min<int64_t>(value * 10 + (text[at] - '0'), int64_t{1} << 40);
    }
    return value;
  };
  if (skip('+')) spec.sign = '+';
  if (skip(' ')) spec.sign = ' ';
  skip('-');
  spec.alternate = skip('#');
  if (skip('0') && spec.align == '\0') {
    spec.fill = "0";
    spec.align = '=';
  }
  spec.width = number();
  budget.check_size(static_cast<size_t>(spec.width) * spec.fill.size());
  if (skip(',')) spec.grouping = ',';
  if (skip('_')) spec.grouping = '_';
  if (skip('.')) spec.precision = number();
  if (at < text.size()) spec.type = text[at++];
  if (at != text.size()) {
    throw TemplateError(fmt::format("Invalid format specifier '{}'", text));
  }
  return spec;
}

class Braces {
 public:
  Braces(const Text& format, const Args& args, Interpreter& in)
      : format_(format), bytes_(format.bytes), args_(args), in_(in), out_(in.budget()) {}

  Text run() {
    size_t at = 0;
    while (at < bytes_.size()) {
      const size_t brace = std::min(bytes_.find_first_of("{}", at), bytes_.size());
      out_.add(format_, at, brace);
      if (brace == bytes_.size()) break;
      if (brace + 1 < bytes_.size() && bytes_[brace + 1] == bytes_[brace]) {
        out_.add(format_, brace, brace + 1);
        at = brace + 2;
        continue;
      }
      if (bytes_[brace] == '}') {
        throw TemplateError("Single '}' encountered in format string");
      }
      const size_t close = closing_brace(brace + 1);
      field(bytes_.substr(brace + 1, close - brace - 1));
      at = close + 1;
    }
    return out_.take();
  }

 private:
  size_t closing_brace(size_t at) const {
    for (int open = 1; at < bytes_.size(); ++at) {
      if (bytes_[at] == '{') ++open;
      if (bytes_[at] == '}' && --open == 0) return at;
    }
    throw TemplateError("expected '}' before end of string");
  }

  // The rules behind ":", whose own fields are filled in.
  std::string filled(std::string_view rules) {
    std::string out;
    while (true) {
      const size_t brace = std::min(rules.find('{'), rules.size());
      out += rules.substr(0, brace);
      if (brace == rules.size()) return out;
      const size_t close = rules.find('}', brace);
      if (close == std::string_view::npos) throw TemplateError("a format's rules nest too deeply");
      out += to_text(find(rules.substr(brace + 1, close - brace - 1)), in_.budget()).bytes;
      rules.remove_prefix(close + 1);
    }
  }

  void field(std::string_view text) {
    const size_t colon = std::min(text.find(':'), text.size());
    std::string_view name = text.substr(0, colon);
    char conversion = '\0';
    if (const size_t mark = name.find('!'); mark != std::string_view::npos) {
      if (mark + 2 != name.size()) throw TemplateError("a conversion is one character");
      conversion = name[mark + 1];
      name = name.substr(0, mark);
    }
    Value value = find(name);
    const std::string rules = filled(text.substr(std::min(colon + 1, text.size())));
    if (conversion == 'r' || conversion == 'a') {
      value = repr(value, in_.budget());
    } else if (conversion == 's') {
      value = to_text(value, in_.budget());
    } else if (conversion != '\0') {
      throw TemplateError(fmt::format("Unknown conversion specifier '{}'", conversion));
    }
    put(value, rules);
  }

  void put(const Value& value, std::string_view rules) {
    if (rules.empty()) return out_.add(to_text(value, in_.budget()));
    const Spec spec = parse_spec(rules, in_.budget());
    if (spec.precision > kMaxPrecision) throw TemplateError("precision too big");
    const bool fits = [&] {
      if (value.is_string()) return spec.type == '\0' || spec.type == 's';
      if (value.is_float())
        return std::string_view("\0eEfFgG%", 8).find(spec.type) != std::string_view::npos;
      if (value.is_number())
        return std::string_view("\0dxXobeEfFgG%", 13).find(spec.type) != std::string_view::npos;
      return false;
    }();
    if (!fits) {
      throw TemplateError(fmt::format("the format '{}' does not fit an object of type '{}'", rules,
                                      type_name(value)));
    }
    if (value.is_string()) return put_text(value.text(), spec, in_.budget(), '<', out_);
    put_number(value, spec, out_);
  }

  // "0.name[key]": an argument and what is taken from it.
  Value find(std::string_view path) {
    const size_t end = std::min(path.find_first_of(".["), path.size());
    Value value = argument(path.substr(0, end));
    path.remove_prefix(end);
    while (!path.empty()) {
      if (path[0] == '.') {
        const size_t stop = std::min(path.find_first_of(".[", 1), path.size());
        value = in_.attribute(value, path.substr(1, stop - 1));
        path.remove_prefix(stop);
      } else {
        const size_t close = path.find(']');
        if (path[0] != '[' || close == std::string_view::npos) {
          throw TemplateError("Missing ']' in format string");
        }
        const std::string_view key = path.substr(1, close - 1);
        const auto number = parse_int(key, 10);
        value = in_.item(value, number ? Value(*number) : Value::string(key));
        path.remove_prefix(close + 1);
      }
    }
    return value;
  }

  Value argument(std::string_view name) {
    const auto number = name.empty() ? std::optional<Int>(next_++) : parse_int(name, 10);
    if (number) {
      if (*number >= static_cast<Int>(args_.positional.size())) {
        throw TemplateError("Replacement index out of range for positional args tuple");
      }
      return args_.positional[static_cast<size_t>(*number)];
    }
    for (const auto& [known, value] : args_.named) {
      if (known == name) return value;
    }
    throw TemplateError(fmt::format("format misses the argument {}", quote_text(name)));
  }

  const Text& format_;
  std::string_view bytes_;
  const Args& args_;
  Interpreter& in_;
  TextBuilder out_;
  Int next_ = 0;
};

}  // namespace

Text format_printf(const Text& format, const Value& values, Interpreter& in) {
  in.budget().look(format.size());
  return Printf(format, values, in).run();
}

Text format_braces(const Text& format, const Args& args, Interpreter& in) {
  in.budget().look(format.size());
  return Braces(format, args, in).run();
}

}  // namespace eyrie::chat::jinja
