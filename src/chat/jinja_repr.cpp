// How values are written: str() and repr() as Python has them, and json.dumps.
#include <algorithm>
#include <cmath>

#include "chat/jinja_value.h"
#include "chat/json_text.h"

namespace eyrie::chat::jinja {
namespace {

// Writes nested values; what is built from text of outside counts as such as a whole.
class Writer {
 public:
  explicit Writer(Budget& budget) : budget_(budget) {}
  void repr(const Value& value);
  void json(const Value& value, const DumpStyle& style, int level);
  Text take() {
    TextBuilder text(budget_);
    text.mixed(out_, any_outside_);
    return text.take();
  }

 private:
  void put(std::string_view text) {
    budget_.check_size(out_.size() + text.size());
    out_ += text;
  }
  void items(const std::vector<Value>& items);
  void json_string(std::string_view text, bool ensure_ascii);
  void json_key(const Value& key, const DumpStyle& style);
  void json_items(const List& list, const DumpStyle& style, int level);
  void json_entries(const Dict& dict, const DumpStyle& style, int level);
  void new_line(const DumpStyle& style, int level);

  Budget& budget_;
  std::string out_;
  bool any_outside_ = false;
};

std::string show_float(double value) { return python_float(value); }

void Writer::items(const std::vector<Value>& items) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) put(", ");
    repr(items[i]);
  }
}

void Writer::repr(const Value& value) {
  budget_.step();
  if (value.is_undefined()) return put("Undefined");
  if (value.is_none()) return put("None");
  if (value.is_bool()) return put(value.boolean() ? "True" : "False");
  if (value.is_int()) return put(show_int(value.integer()));
  if (value.is_float()) return put(show_float(value.number()));
  if (value.is_string()) {
    any_outside_ |= value.text().has_outside();
    budget_.look(value.text().size());
    return put(quote_text(value.text().bytes));
  }
  if (value.is_dict()) {
    put("{");
    std::string_view separator;
    for (const auto& [key, item] : value.dict().entries) {
      put(separator);
      repr(key);
      put(": ");
      repr(item);
      separator = ", ";
    }
    return put("}");
  }
  if (!value.is_list()) return put(fmt::format("<{}>", value.object().type_name()));
  const List& list = value.list();
  switch (list.flavor) {
    case Flavor::kList:
      put("[");
      items(list.items);
      return put("]");
    case Flavor::kTuple:
      put("(");
      items(list.items);
      return put(list.items.size() == 1 ? ",)" : ")");
    case Flavor::kView:
      put(list.shown + "([");
      items(list.items);
      return put("])");
    case Flavor::kRange:
      return put(list.shown);
    case Flavor::kGenerator:
      return put("<generator object>");
  }
}

void Writer::json_string(std::string_view text, bool ensure_ascii) {
  budget_.look(text.size());
  if (!ensure_ascii) return put(dump_json(Json(text)));
  std::string escaped = "\"";
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t c = next_character(text, at);
    if (c < 0x7F) {
      const std::string one = dump_json(Json(text.substr(begin, 1)));
      escaped += one.substr(1, one.size() - 2);
    } else if (c < 0x10000) {
      escaped += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    } else {
      const uint32_t pair = static_cast<uint32_t>(c) - 0x10000;
      escaped += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (pair >> 10), 0xDC00 + (pair & 0x3FF));
    }
  }
  put(escaped + "\"");
}

void Writer::new_line(const DumpStyle& style, int level) {
  if (!style.indent) return;
  put("\n");
  for (int i = 0; i < level; ++i) put(*style.indent);
}

void Writer::json_items(const List& list, const DumpStyle& style, int level) {
  if (list.items.empty()) return put("[]");
  put("[");
  for (size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) put(style.item_separator);
    new_line(style, level + 1);
    json(list.items[i], style, level + 1);
  }
  new_line(style, level);
  put("]");
}

void Writer::json_key(const Value& key, const DumpStyle& style) {
  if (key.is_string()) {
    any_outside_ |= key.text().has_outside();
    return json_string(key.text().bytes, style.ensure_ascii);
  }
  if (!key.is_number() && !key.is_none()) {
    throw TemplateError(
        fmt::format("tojson: keys must be str, int, float, bool or None, not {}", type_name(key)));
  }
  put("\"");
  json(key, style, 0);
  put("\"");
}

void Writer::json_entries(const Dict& dict, const DumpStyle& style, int level) {
  if (dict.entries.empty()) return put("{}");
  std::vector<const std::pair<Value, Value>*> order;
  for (const auto& entry : dict.entries) order.push_back(&entry);
  if (style.sort_keys) {
    std::stable_sort(order.begin(), order.end(), [this](const auto* a, const auto* b) {
      return compare(a->first, b->first, "<", budget_) < 0;
    });
  }
  put("{");
  std::string_view separator;
  for (const auto* entry : order) {
    put(separator);
    new_line(style, level + 1);
    json_key(entry->first, style);
    put(style.key_separator);
    json(entry->second, style, level + 1);
    separator = style.item_separator;
  }
  new_line(style, level);
  put("}");
}

void Writer::json(const Value& value, const DumpStyle& style, int level) {
  budget_.step();
  if (value.is_none()) return put("null");
  if (value.is_bool()) return put(value.boolean() ? "true" : "false");
  if (value.is_int()) return put(show_int(value.integer()));
  if (value.is_float()) {
    const double number = value.number();
    if (std::isnan(number)) return put("NaN");
    if (std::isinf(number)) return put(number > 0 ? "Infinity" : "-Infinity");
    return put(show_float(number));
  }
  if (value.is_string()) {
    any_outside_ |= value.text().has_outside();
    return json_string(value.text().bytes, style.ensure_ascii);
  }
  if (value.is_dict()) return json_entries(value.dict(), style, level);
  if (value.is_list() &&
      (value.list().flavor == Flavor::kList || value.list().flavor == Flavor::kTuple)) {
    return json_items(value.list(), style, level);
  }
  throw TemplateError(
      fmt::format("tojson: an object of type {} is not JSON serializable", type_name(value)));
}

}  // namespace

std::string show_int(Int value) { return fmt::format("{}", value); }

std::string quote_text(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t c = next_character(text, at);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += {'\\', static_cast<char>(c)};
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (is_printable(c)) {
      out += text.substr(begin, at - begin);
    } else if (c < 0x100) {
      out += fmt::format("\\x{:02x}", static_cast<uint32_t>(c));
    } else if (c < 0x10000) {
      out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    } else {
      out += fmt::format("\\U{:08x}", static_cast<uint32_t>(c));
    }
  }
  out.push_back(quote);
  return out;
}

Text to_text(const Value& value, Budget& budget) {
  if (value.is_string()) return value.text();
  if (value.is_undefined()) return {};
  return repr(value, budget);
}

Text repr(const Value& value, Budget& budget) {
  Writer writer(budget);
  writer.repr(value);
  return writer.take();
}

Text dump(const Value& value, const DumpStyle& style, Budget& budget) {
  Writer writer(budget);
  writer.json(value, style, 0);
  return writer.take();
}

}  // namespace eyrie::chat::jinja
