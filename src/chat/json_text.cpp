#include "chat/json_text.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

namespace eyrie::chat {
namespace {

void append_json_string(std::string_view text, std::string& out) {
  out.push_back('"');
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        } else {
          out.push_back(c);
        }
    }
  }
  out.push_back('"');
}

void append_json(const Json& value, const JsonStyle& style, std::string& out) {
  std::string_view separator;
  switch (value.type()) {
    case Json::value_t::object:
      out.push_back('{');
      for (const auto& [key, item] : value.items()) {
        out += separator;
        append_json_string(key, out);
        out += style.key_separator;
        append_json(item, style, out);
        separator = style.item_separator;
      }
      out.push_back('}');
      break;
    case Json::value_t::array:
      out.push_back('[');
      for (const Json& item : value) {
        out += separator;
        append_json(item, style, out);
        separator = style.item_separator;
      }
      out.push_back(']');
      break;
    case Json::value_t::string:
      append_json_string(value.get_ref<const std::string&>(), out);
      break;
    case Json::value_t::number_float:
      out += python_float(value.get<double>());
      break;
    default:
      out += value.dump();
  }
}

// repr of a Python string, without its rules for unprintable characters beyond ASCII.
std::string python_quoted(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  for (const char c : text) {
    if (c == quote || c == '\\') {
      out += {'\\', c};
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned>(c));
    } else {
      out.push_back(c);
    }
  }
  out.push_back(quote);
  return out;
}

std::string python_repr(const Json& value) {
  if (value.is_string()) return python_quoted(value.get_ref<const std::string&>());
  return python_str(value);
}

}  // namespace

std::string dump_json(const Json& value, JsonStyle style) {
  std::string out;
  append_json(value, style, out);
  return out;
}

std::string python_str(const Json& value) {
  std::string separator;
  std::string out;
  switch (value.type()) {
    case Json::value_t::null:
      return "None";
    case Json::value_t::boolean:
      return value.get<bool>() ? "True" : "False";
    case Json::value_t::string:
      return value.get<std::string>();
    case Json::value_t::number_float:
      return python_float(value.get<double>());
    case Json::value_t::object:
      for (const auto& [key, item] : value.items()) {
        out += separator + python_quoted(key) + ": " + python_repr(item);
        separator = ", ";
      }
      return "{" + out + "}";
    case Json::value_t::array:
      for (const Json& item : value) {
        out += separator + python_repr(item);
        separator = ", ";
      }
      return "[" + out + "]";
    default:
      return value.dump();
  }
}

std::string python_float(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[32];
  const auto written =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  const std::string_view text(buffer, static_cast<size_t>(written.ptr - buffer));
  const size_t e = text.find('e');
  const int exponent = std::stoi(std::string(text.substr(e + 1)));
  if (exponent < -4 || exponent >= 16) {
    return fmt::format("{}e{}{:02}", text.substr(0, e), exponent < 0 ? '-' : '+',
                       std::abs(exponent));
  }
  const auto fixed = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed);
  std::string out(buffer, fixed.ptr);
  if (out.find('.') == std::string::npos) out += ".0";
  return out;
}

bool nests_at_most(const Json& value, int max_depth) {
  if (!value.is_structured()) return true;
  if (max_depth == 0) return false;
  for (const Json& item : value) {
    if (!nests_at_most(item, max_depth - 1)) return false;
  }
  return true;
}

}  // namespace eyrie::chat
