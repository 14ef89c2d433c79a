// Methods of dict and list. The ones that would change their object are kept away, as jinja2's
// immutable sandbox does.
#include <algorithm>

#include "chat/jinja_interpreter.h"

namespace eyrie::chat::jinja {
namespace {

bool has_index_methods(const Value& self) {
  return self.is_list() &&
         (self.list().flavor == Flavor::kList || self.list().flavor == Flavor::kTuple ||
          self.list().flavor == Flavor::kRange);
}

// --- dict ----------------------------------------------------------------------------------------

enum class Part { kKeys, kValues, kItems };

template <Part kPart>
Value m_view(Interpreter& in, const Value& self, Args& args) {
  const Params params("method", args, {});
  std::vector<Value> items;
  for (const auto& [key, value] : self.dict().entries) {
    items.push_back(kPart == Part::kKeys ? key
                    : kPart == Part::kValues
                        ? value
                        : make_list({key, value}, in.budget(), Flavor::kTuple));
  }
  const char* name = kPart == Part::kKeys     ? "dict_keys"
                     : kPart == Part::kValues ? "dict_values"
                                              : "dict_items";
  return make_list(std::move(items), in.budget(), Flavor::kView, name);
}

Value m_get(Interpreter& in, const Value& self, Args& args) {
  if (!args.named.empty()) throw TemplateError("get() takes no keyword arguments");
  const Params params("get", args, {"key", "default"}, 1);
  require_hashable(params.get(0));
  in.budget().step(static_cast<int64_t>(self.dict().entries.size() / 8));
  if (const Value* value = self.dict().find(params.get(0))) return *value;
  return params.find(1) != nullptr ? params.get(1) : Value();
}

// A copy is as good as the original, since neither can be changed.
Value m_copy(Interpreter&, const Value& self, Args& args) {
  const Params params("copy", args, {});
  return self;
}

// --- list ----------------------------------------------------------------------------------------

Value m_index_of_item(Interpreter& in, const Value& self, Args& args) {
  const Params params("index", args, {"value"}, 1);
  const auto& items = self.list().items;
  for (size_t i = 0; i < items.size(); ++i) {
    if (equal(items[i], params.get(0), in.budget())) return i;
  }
  throw TemplateError(fmt::format("{} is not in list", repr(params.get(0), in.budget()).bytes));
}

Value m_count_items(Interpreter& in, const Value& self, Args& args) {
  const Params params("count", args, {"value"}, 1);
  const auto& items = self.list().items;
  return static_cast<size_t>(std::count_if(items.begin(), items.end(), [&](const Value& item) {
    return equal(item, params.get(0), in.budget());
  }));
}

const MethodTable& dict_methods() {
  static const MethodTable table = {{"get", m_get},
                                    {"items", m_view<Part::kItems>},
                                    {"keys", m_view<Part::kKeys>},
                                    {"values", m_view<Part::kValues>},
                                    {"copy", m_copy}};
  return table;
}

const MethodTable& list_methods() {
  static const MethodTable table = {
      {"index", m_index_of_item}, {"count", m_count_items}, {"copy", m_copy}};
  return table;
}

}  // namespace

MethodFn find_method(const Value& self, std::string_view name) {
  if (!self.is_string() && !self.is_dict() && !has_index_methods(self)) return nullptr;
  const MethodTable& table = self.is_string() ? string_methods()
                             : self.is_dict() ? dict_methods()
                                              : list_methods();
  for (const auto& [known, method] : table) {
    if (known != name) continue;
    const bool list_only = self.is_list() && self.list().flavor != Flavor::kList;
    return list_only && name == "copy" ? nullptr : method;
  }
  return nullptr;
}

bool is_forbidden_method(const Value& self, std::string_view name) {
  const auto is_one_of = [name](std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (self.is_dict()) return is_one_of({"clear", "pop", "popitem", "setdefault", "update"});
  return self.is_list() && self.list().flavor == Flavor::kList &&
         is_one_of({"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"});
}

}  // namespace eyrie::chat::jinja
