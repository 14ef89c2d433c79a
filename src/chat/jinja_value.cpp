#include "chat/jinja_value.h"

#include <algorithm>
#include <cmath>

namespace eyrie::chat::jinja {
namespace {

// Templates build what they print; nothing real nests this deep.
constexpr int kMaxDepth = 200;

int depth_of(const Value& value) {
  if (value.is_list()) return value.list().depth;
  if (value.is_dict()) return value.dict().depth;
  return value.is_object() ? value.object().depth() : 0;
}

int checked_depth(int depth) {
  if (depth > kMaxDepth) throw TemplateError("a value nests too deeply");
  return depth;
}

bool lists_equal(const List& a, const List& b, Budget& budget) {
  if (a.flavor != b.flavor || !a.has_index()) return &a == &b;
  if (a.items.size() != b.items.size()) return false;
  for (size_t i = 0; i < a.items.size(); ++i) {
    if (!equal(a.items[i], b.items[i], budget)) return false;
  }
  return true;
}

bool dicts_equal(const Dict& a, const Dict& b, Budget& budget) {
  if (a.entries.size() != b.entries.size()) return false;
  for (const auto& [key, value] : a.entries) {
    budget.step(static_cast<int64_t>(b.entries.size()));
    const Value* other = b.find(key);
    if (other == nullptr || !equal(value, *other, budget)) return false;
  }
  return true;
}

// Roles that templates know may be part of what they spell: '<|' + role + '|>'.
bool is_known_role(const Json& role) {
  for (const char* known : {"system", "user", "assistant", "tool", "developer"}) {
    if (role == known) return true;
  }
  return false;
}

int compare_numbers(const Value& a, const Value& b) {
  if (a.is_float() || b.is_float()) {
    const double x = a.number();
    const double y = b.number();
    return x < y ? -1 : x > y ? 1 : 0;
  }
  return a.integer() < b.integer() ? -1 : a.integer() > b.integer() ? 1 : 0;
}

}  // namespace

Value Value::undefined(std::string message) {
  Value value;
  value.kind_ = Kind::kUndefined;
  value.shared_ = std::make_shared<const std::string>(std::move(message));
  return value;
}

bool Value::same_object(const Value& other) const {
  if (kind_ != other.kind_) return false;
  if (is_list()) return &list() == &other.list();
  if (is_dict()) return &dict() == &other.dict();
  if (is_object()) return &object() == &other.object();
  if (is_string()) return text().bytes == other.text().bytes;
  if (is_float()) return number() == other.number();
  if (is_bool() || is_int()) return integer() == other.integer();
  return true;
}

const Value* Dict::find(const Value& key) const {
  if (key.is_string()) return find(std::string_view(key.text().bytes));
  if (!key.is_number() && !key.is_none() && !key.is_list()) return nullptr;
  Budget budget{Limits{}};  // a key nests little
  for (const auto& [name, value] : entries) {
    if (equal(name, key, budget)) return &value;
  }
  return nullptr;
}

const Value* Dict::find(std::string_view key) const {
  for (const auto& [name, value] : entries) {
    if (name.is_string() && name.text().bytes == key) return &value;
  }
  return nullptr;
}

std::optional<Value> Object::attribute(std::string_view, Interpreter&) { return std::nullopt; }

Value Object::call(Interpreter&, Args) {
  throw TemplateError(fmt::format("'{}' object is not callable", type_name()));
}

Value make_list(std::vector<Value> items, Budget& budget, Flavor flavor, std::string shown) {
  budget.make((items.size() + 2) * sizeof(Value));
  List list{std::move(items), flavor, std::move(shown)};
  for (const Value& item : list.items) list.depth = std::max(list.depth, depth_of(item) + 1);
  checked_depth(list.depth);
  return std::make_shared<const List>(std::move(list));
}

Value make_dict(std::vector<std::pair<Value, Value>> entries, Budget& budget) {
  budget.make((entries.size() + 1) * 2 * sizeof(Value));
  Dict dict{std::move(entries)};
  for (const auto& [key, value] : dict.entries) {
    dict.depth = std::max({dict.depth, depth_of(value) + 1, depth_of(key) + 1});
  }
  checked_depth(dict.depth);
  return std::make_shared<const Dict>(std::move(dict));
}

void set_entry(std::vector<std::pair<Value, Value>>& entries, const Value& key, Value value,
               Budget& budget) {
  require_hashable(key);
  budget.step(static_cast<int64_t>(entries.size() / 8));
  for (auto& [name, old] : entries) {
    if (equal(name, key, budget)) {
      old = std::move(value);
      return;
    }
  }
  entries.emplace_back(key, std::move(value));
}

Value from_json(const Json& json, Budget& budget, bool trusted) {
  switch (json.type()) {
    case Json::value_t::boolean:
      return json.get<bool>();
    case Json::value_t::number_integer:
      return Int{json.get<int64_t>()};
    case Json::value_t::number_unsigned:
      return static_cast<Int>(json.get<uint64_t>());
    case Json::value_t::number_float:
      return json.get<double>();
    case Json::value_t::string: {
      const std::string& text = json.get_ref<const std::string&>();
      budget.make(text.size());
      return trusted ? Text::own(text) : Text::from_outside(text);
    }
    case Json::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const Json& item : json) items.push_back(from_json(item, budget, trusted));
      return make_list(std::move(items), budget);
    }
    case Json::value_t::object: {
      std::vector<std::pair<Value, Value>> entries;  // the parser keeps one entry a key
      entries.reserve(json.size());
      for (const auto& [key, item] : json.items()) {
        const bool known = trusted || (key == "role" && is_known_role(item));
        entries.emplace_back(trusted ? Text::own(key) : Text::from_outside(key),
                             from_json(item, budget, known));
      }
      return make_dict(std::move(entries), budget);
    }
    default:
      return {};
  }
}

std::string type_name(const Value& value) {
  if (value.is_undefined()) return "Undefined";
  if (value.is_none()) return "NoneType";
  if (value.is_bool()) return "bool";
  if (value.is_int()) return "int";
  if (value.is_float()) return "float";
  if (value.is_string()) return "str";
  if (value.is_dict()) return "dict";
  if (value.is_object()) return value.object().type_name();
  switch (value.list().flavor) {
    case Flavor::kTuple:
      return "tuple";
    case Flavor::kRange:
      return "range";
    case Flavor::kView:
      return value.list().shown;
    case Flavor::kGenerator:
      return "generator";
    default:
      return "list";
  }
}

bool truthy(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (value.is_float()) return value.number() != 0;
  if (value.is_bool() || value.is_int()) return value.integer() != 0;
  if (value.is_string()) return !value.text().bytes.empty();
  if (value.is_dict()) return !value.dict().entries.empty();
  if (value.is_list()) return !value.list().has_length() || !value.list().items.empty();
  return true;
}

bool equal(const Value& a, const Value& b, Budget& budget) {
  budget.step();
  if (a.is_number() && b.is_number()) {
    if (a.is_float() && std::isnan(a.number())) return false;
    if (b.is_float() && std::isnan(b.number())) return false;
    return compare_numbers(a, b) == 0;
  }
  if (a.is_string() && b.is_string()) {
    budget.look(a.text().size());
    return a.text().bytes == b.text().bytes;
  }
  if (a.is_list() && b.is_list()) return lists_equal(a.list(), b.list(), budget);
  if (a.is_dict() && b.is_dict()) return dicts_equal(a.dict(), b.dict(), budget);
  return a.same_object(b);
}

int compare(const Value& a, const Value& b, std::string_view symbol, Budget& budget) {
  budget.step();
  for (const Value* side : {&a, &b}) {
    if (side->is_undefined()) throw TemplateError(side->undefined_message());
  }
  if (a.is_number() && b.is_number()) return compare_numbers(a, b);
  if (a.is_string() && b.is_string()) {
    budget.look(a.text().size());
    return a.text().bytes.compare(b.text().bytes);  // UTF-8 sorts as its characters do
  }
  if (a.is_list() && b.is_list() && a.list().flavor == b.list().flavor &&
      (a.list().flavor == Flavor::kList || a.list().flavor == Flavor::kTuple)) {
    const auto& x = a.list().items;
    const auto& y = b.list().items;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!equal(x[i], y[i], budget)) return compare(x[i], y[i], symbol, budget);
    }
    return x.size() < y.size() ? -1 : x.size() > y.size() ? 1 : 0;
  }
  throw TemplateError(fmt::format("'{}' not supported between instances of '{}' and '{}'", symbol,
                                  type_name(a), type_name(b)));
}

void require_hashable(const Value& value) {
  const bool is_tuple = value.is_list() && value.list().flavor != Flavor::kList &&
                        value.list().flavor != Flavor::kView;
  if (is_tuple && value.list().flavor == Flavor::kTuple) {
    for (const Value& item : value.list().items) require_hashable(item);
  }
  if (value.is_dict() || (value.is_list() && !is_tuple)) {
    throw TemplateError(fmt::format("unhashable type: '{}'", type_name(value)));
  }
}

}  // namespace eyrie::chat::jinja
