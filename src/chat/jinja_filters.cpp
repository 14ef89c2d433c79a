// The filters on text and single values; those on sequences are in jinja_sequence_filters.cpp.
#include <algorithm>
#include <cmath>

#include "chat/jinja_filters.h"

namespace eyrie::chat::jinja {
namespace {

Value f_upper(Interpreter& in, const Value& input, Args& args) {
  const Params params("upper", args, {});
  return map_text(to_text(input, in.budget()), to_upper, in.budget());
}

Value f_lower(Interpreter& in, const Value& input, Args& args) {
  const Params params("lower", args, {});
  return map_text(to_text(input, in.budget()), to_lower, in.budget());
}

Value f_capitalize(Interpreter& in, const Value& input, Args& args) {
  const Params params("capitalize", args, {});
  return map_text(to_text(input, in.budget()), capitalized, in.budget());
}

// Unlike str.title: words begin behind white space, hyphens and opening brackets only.
std::string titled(std::string_view text) {
  std::string out;
  bool begins = true;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_character(text, at);
    const bool separates = is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
    if (begins) {
      append_upper(c, out);
    } else {
      append_lower(c, out);
    }
    begins = separates;
  }
  return out;
}

Value f_title(Interpreter& in, const Value& input, Args& args) {
  const Params params("title", args, {});
  return map_text(to_text(input, in.budget()), titled, in.budget());
}

Value f_trim(Interpreter& in, const Value& input, Args& args) {
  const Params params("trim", args, {"chars"});
  return strip_text(to_text(input, in.budget()), true, true, params.not_none(0), in.budget());
}

Value f_replace(Interpreter& in, const Value& input, Args& args) {
  const Params params("replace", args, {"old", "new", "count"}, 2);
  const int64_t count = params.not_none(2) != nullptr ? params.integer(2, -1) : -1;
  return replace_text(to_text(input, in.budget()), to_text(params.get(0), in.budget()),
                      to_text(params.get(1), in.budget()), count, in.budget());
}

Value f_string(Interpreter& in, const Value& input, Args& args) {
  const Params params("string", args, {});
  return to_text(input, in.budget());
}

// Nothing is escaped by itself here, so marking text as safe changes nothing.
Value f_safe(Interpreter& in, const Value& input, Args& args) { return f_string(in, input, args); }

Value f_escape(Interpreter& in, const Value& input, Args& args) {
  const Params params("escape", args, {});
  const Text text = to_text(input, in.budget());
  TextBuilder out(in.budget());
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text.bytes[i];
    const char* escaped = c == '&'    ? "&amp;"
                          : c == '<'  ? "&lt;"
                          : c == '>'  ? "&gt;"
                          : c == '\'' ? "&#39;"
                          : c == '"'  ? "&#34;"
                                      : nullptr;
    if (escaped != nullptr) {
      out.mixed(escaped, text.has_outside());
    } else {
      out.add(text, i, i + 1);
    }
  }
  return out.take();
}

Value f_indent(Interpreter& in, const Value& input, Args& args) {
  const Params params("indent", args, {"width", "first", "blank"});
  if (input.is_undefined()) throw TemplateError(input.undefined_message());
  if (!input.is_string()) throw TemplateError("indent needs a string");
  Text indention = Text::own("    ");
  if (const Value* width = params.find(0)) {
    if (width->is_string()) {
      indention = width->text();
    } else {
      const int64_t count = std::max<int64_t>(0, to_index(*width, "indent's width"));
      in.budget().check_size(static_cast<size_t>(count));
      indention = Text::own(std::string(static_cast<size_t>(count), ' '));
    }
  }
  const bool blank = params.flag(2);
  const Text& text = input.text();
  // A newline more, so that an empty text and a newline at the end are lines.
  const std::string with_newline = text.bytes + "\n";
  TextBuilder out(in.budget());
  if (params.flag(1)) out.add(indention);
  bool first = true;
  for (const Range& line : line_ranges(with_newline, false)) {
    if (!first) {
      out.own("\n");
      if (blank || line.begin < line.end) out.add(indention);
    }
    first = false;
    out.add(text, std::min(line.begin, text.size()), std::min(line.end, text.size()));
  }
  return out.take();
}

Value f_truncate(Interpreter& in, const Value& input, Args& args) {
  const Params params("truncate", args, {"length", "killwords", "end", "leeway"});
  if (!input.is_string()) throw TemplateError("truncate needs a string");
  const int64_t length = params.integer(0, 255);
  const Text end =
      params.find(2) != nullptr ? to_text(params.get(2), in.budget()) : Text::own("...");
  const int64_t leeway = params.not_none(3) != nullptr ? params.integer(3, 5) : 5;
  const int64_t kept = length - num_characters(end.bytes);
  if (kept < 0 || leeway < 0) throw TemplateError("truncate's length is below that of its end");
  const Text& text = input.text();
  if (num_characters(text.bytes) <= length + leeway) return input;
  size_t cut = offset_of_character(text.bytes, kept);
  if (!params.flag(1)) {
    const size_t space = std::string_view(text.bytes).substr(0, cut).rfind(' ');
    if (space != std::string_view::npos) cut = space;
  }
  TextBuilder out(in.budget());
  out.add(text, 0, cut);
  out.add(end);
  return out.take();
}

Value f_center(Interpreter& in, const Value& input, Args& args) {
  const Params params("center", args, {"width"});
  const Text text = to_text(input, in.budget());
  const int64_t width = params.integer(0, 80);
  const int64_t space = std::max<int64_t>(0, width - num_characters(text.bytes));
  in.budget().check_size(static_cast<size_t>(space));
  const int64_t left = space / 2 + (space & width & 1);
  TextBuilder out(in.budget());
  out.own(std::string(static_cast<size_t>(left), ' '));
  out.add(text);
  out.own(std::string(static_cast<size_t>(space - left), ' '));
  return out.take();
}

Value f_wordcount(Interpreter& in, const Value& input, Args& args) {
  const Params params("wordcount", args, {});
  const Text text = to_text(input, in.budget());
  in.budget().look(text.size());
  int count = 0;
  bool inside = false;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_character(text.bytes, at);
    const bool word = c == '_' || is_alphabetic(c) || is_numeric(c);
    if (word && !inside) ++count;
    inside = word;
  }
  return count;
}

Value f_format(Interpreter& in, const Value& input, Args& args) {
  if (!args.positional.empty() && !args.named.empty()) {
    throw TemplateError("format cannot handle positional and keyword arguments at the same time");
  }
  Value values = make_list(std::move(args.positional), in.budget(), Flavor::kTuple);
  if (!args.named.empty()) {
    std::vector<std::pair<Value, Value>> entries;
    for (auto& [name, value] : args.named) entries.emplace_back(Value::string(name), value);
    values = make_dict(std::move(entries), in.budget());
  }
  return format_printf(to_text(input, in.budget()), values, in);
}

Value f_tojson(Interpreter& in, const Value& input, Args& args) {
  const Params params("tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"});
  DumpStyle style{.ensure_ascii = params.flag(0), .sort_keys = params.flag(3)};
  if (const Value* indent = params.not_none(1)) {
    if (indent->is_string()) {
      style.indent = indent->text().bytes;
    } else {
      const int64_t width = std::max<int64_t>(0, to_index(*indent, "tojson's indent"));
      in.budget().check_size(static_cast<size_t>(width));
      style.indent = std::string(static_cast<size_t>(width), ' ');
    }
    style.item_separator = std::string(1, ',');  // not = ",": gcc 12 warns of what is not there
  }
  if (const Value* separators = params.not_none(2)) {
    const Items pair = in.iterate(*separators);
    if (pair.size() != 2) throw TemplateError("tojson's separators are two strings");
    style.item_separator = to_text(pair.all()[0], in.budget()).bytes;
    style.key_separator = to_text(pair.all()[1], in.budget()).bytes;
  }
  return dump(input, style, in.budget());
}

Value f_default(Interpreter&, const Value& input, Args& args) {
  const Params params("default", args, {"default_value", "boolean"});
  if (input.is_undefined() || (params.flag(1) && !truthy(input))) {
    return params.find(0) != nullptr ? params.get(0) : Value::string("");
  }
  return input;
}

Value f_attr(Interpreter& in, const Value& input, Args& args) {
  const Params params("attr", args, {"name"}, 1);
  if (!params.get(0).is_string()) throw TemplateError("attr needs a name");
  const std::string& name = params.get(0).text().bytes;
  if (input.is_dict() && find_method(input, name) == nullptr) {
    return Value::undefined(fmt::format("'dict object' has no attribute '{}'", name));
  }
  return in.attribute(input, name);
}

// --- numbers -------------------------------------------------------------------------------------

// int() of text: a sign, a prefix that fits the base, digits.
std::optional<Int> int_of_text(std::string_view text, int64_t base) {
  const Range kept = stripped(text, true, true, nullptr);
  text = text.substr(kept.begin, kept.end - kept.begin);
  bool negative = false;
  if (text.starts_with('-') || text.starts_with('+')) {
    negative = text[0] == '-';
    text.remove_prefix(1);
  }
  const char prefix = text.size() > 2 && text[0] == '0' ? static_cast<char>(text[1] | 0x20) : '\0';
  for (const auto& [letter, its_base] : {std::pair{'x', 16}, {'o', 8}, {'b', 2}}) {
    if (prefix != letter || (base != its_base && base != 0)) continue;
    text.remove_prefix(text[2] == '_' ? 3 : 2);
    base = its_base;
  }
  if (base == 0) base = 10;
  if (base < 2 || base > 36) return std::nullopt;
  const auto value = parse_int(text, static_cast<int>(base));
  if (!value) return std::nullopt;
  return negative ? -*value : *value;
}

std::optional<double> float_of_text(std::string_view text) {
  const Range kept = stripped(text, true, true, nullptr);
  std::string digits(text.substr(kept.begin, kept.end - kept.begin));
  const bool grouped = digits.find('_') != std::string::npos;
  if (grouped &&
      (digits.front() == '_' || digits.back() == '_' || digits.find("__") != std::string::npos)) {
    return std::nullopt;
  }
  std::erase(digits, '_');
  return parse_float(digits);
}

std::optional<Int> int_of_float(double value) {
  if (!std::isfinite(value)) return std::nullopt;
  if (std::abs(value) > 1e38) throw TemplateError("an integer grows too large");
  return static_cast<Int>(value);
}

Value f_int(Interpreter&, const Value& input, Args& args) {
  const Params params("int", args, {"default", "base"});
  const Value otherwise = params.find(0) != nullptr ? params.get(0) : Value(0);
  if (input.is_undefined()) throw TemplateError(input.undefined_message());
  std::optional<Int> value;
  if (input.is_string()) {
    value = int_of_text(input.text().bytes, params.integer(1, 10));
    if (!value) {
      const auto number = float_of_text(input.text().bytes);  // "42.23" gives 42
      if (number) value = int_of_float(*number);
    }
  } else if (input.is_float()) {
    if (std::isinf(input.number())) throw TemplateError("cannot convert float infinity to integer");
    value = int_of_float(input.number());
  } else if (input.is_number()) {
    value = input.integer();
  }
  return value ? Value(*value) : otherwise;
}

Value f_float(Interpreter&, const Value& input, Args& args) {
  const Params params("float", args, {"default"});
  if (input.is_undefined()) throw TemplateError(input.undefined_message());
  if (input.is_number()) return input.number();
  if (input.is_string()) {
    if (const auto value = float_of_text(input.text().bytes)) return *value;
  }
  return params.find(0) != nullptr ? params.get(0) : Value(0.0);
}

Value f_abs(Interpreter&, const Value& input, Args& args) {
  const Params params("abs", args, {});
  if (input.is_float()) return std::abs(input.number());
  if (!input.is_number()) {
    throw TemplateError(fmt::format("bad operand type for abs(): '{}'", type_name(input)));
  }
  return input.integer() < 0 ? negate(input) : Value(input.integer());
}

// round() as Python has it: correct in decimal, ties to the even digit.
double rounded(double value, int64_t digits) {
  if (!std::isfinite(value) || digits > 300) return value;
  if (digits < 0) {
    const double scale = std::pow(10.0, static_cast<double>(-digits));
    return std::isinf(scale) ? 0.0 * value : std::nearbyint(value / scale) * scale;
  }
  return parse_float(fmt::format("{:.{}f}", value, digits)).value_or(value);
}

Value rounded_int(Int value, int64_t digits) {
  if (digits >= 0) return value;
  if (digits < -37) return 0;
  Int scale = 1;
  for (; digits < 0; ++digits) scale *= 10;
  const Int rest = ((value % scale) + scale) % scale;
  const Int below = value - rest;
  const bool up = rest * 2 > scale || (rest * 2 == scale && (below / scale) % 2 != 0);
  return up ? below + scale : below;
}

Value f_round(Interpreter&, const Value& input, Args& args) {
  const Params params("round", args, {"precision", "method"});
  const int64_t digits = params.integer(0, 0);
  const bool common = params.find(1) == nullptr || params.get(1).is_text("common");
  const bool up = params.find(1) != nullptr && params.get(1).is_text("ceil");
  if (!common && !up && !params.get(1).is_text("floor")) {
    throw TemplateError("method must be common, ceil or floor");
  }
  if (input.is_undefined()) throw TemplateError(input.undefined_message());
  if (!input.is_number()) {
    throw TemplateError(fmt::format("type {} doesn't define __round__ method", type_name(input)));
  }
  if (common) {
    return input.is_float() ? Value(rounded(input.number(), digits))
                            : rounded_int(input.integer(), digits);
  }
  const double scale = std::pow(10.0, static_cast<double>(digits));
  const double scaled = input.number() * scale;
  if (!std::isfinite(scaled)) throw TemplateError("cannot round infinity to an integer");
  return (up ? std::ceil(scaled) : std::floor(scaled)) / scale;
}

}  // namespace

const std::vector<std::pair<std::string_view, FilterFn>>& text_filters() {
  static const std::vector<std::pair<std::string_view, FilterFn>> filters = {
      {"upper", f_upper},
      {"lower", f_lower},
      {"capitalize", f_capitalize},
      {"title", f_title},
      {"trim", f_trim},
      {"replace", f_replace},
      {"string", f_string},
      {"safe", f_safe},
      {"escape", f_escape},
      {"e", f_escape},
      {"forceescape", f_escape},
      {"indent", f_indent},
      {"truncate", f_truncate},
      {"center", f_center},
      {"wordcount", f_wordcount},
      {"format", f_format},
      {"tojson", f_tojson},
      {"default", f_default},
      {"d", f_default},
      {"attr", f_attr},
      {"int", f_int},
      {"float", f_float},
      {"abs", f_abs},
      {"round", f_round},
  };
  return filters;
}

FilterFn find_filter(std::string_view name) {
  for (const auto* table : {&text_filters(), &sequence_filters()}) {
    for (const auto& [known, filter] : *table) {
      if (known == name) return filter;
    }
  }
  return nullptr;
}

}  // namespace eyrie::chat::jinja
