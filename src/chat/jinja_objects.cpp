#include "chat/jinja_objects.h"

namespace eyrie::chat::jinja {

// loop.cycle and loop.changed; they do not keep the loop alive.
class Loop::Function final : public Object {
 public:
  Function(std::weak_ptr<Loop> loop, bool cycles) : loop_(std::move(loop)), cycles_(cycles) {}
  std::string type_name() const override { return "method"; }
  bool is_callable() const override { return true; }
  Value call(Interpreter& in, Args args) override {
    const auto loop = loop_.lock();
    if (loop == nullptr || loop->over_) throw TemplateError("the loop of this method is over");
    if (cycles_) {
      if (args.positional.empty()) throw TemplateError("loop.cycle needs items");
      return args.positional[loop->index_ % args.positional.size()];
    }
    auto& last = loop->last_changed_;
    bool same = last && last->size() == args.positional.size();
    for (size_t i = 0; same && i < last->size(); ++i) {
      same = equal((*last)[i], args.positional[i], in.budget());
    }
    last = std::move(args.positional);
    return !same;
  }

 private:
  std::weak_ptr<Loop> loop_;
  bool cycles_;
};

std::optional<Value> Loop::attribute(std::string_view name, Interpreter&) {
  const auto& items = all();
  if (name == "index0") return index_;
  if (name == "index") return index_ + 1;
  if (name == "first") return index_ == 0;
  if (name == "last") return index_ + 1 == items.size();
  if (name == "length") return items.size();
  if (name == "revindex") return items.size() - index_;
  if (name == "revindex0") return items.size() - index_ - 1;
  if (name == "depth") return 1;
  if (name == "depth0") return 0;
  if (name == "previtem") {
    return index_ > 0 ? items[index_ - 1] : Value::undefined("there is no previous item");
  }
  if (name == "nextitem") {
    return index_ + 1 < items.size() ? items[index_ + 1]
                                     : Value::undefined("there is no next item");
  }
  if (name == "cycle" || name == "changed") {
    return Value(
        std::shared_ptr<Object>(std::make_shared<Function>(weak_from_this(), name == "cycle")));
  }
  return std::nullopt;
}

std::string shown_object(const Value& object) {
  return object.is_none() ? "None" : type_name(object) + " object";
}

Value Interpreter::call(const Value& callee, Args args) {
  budget_.step();
  if (callee.is_undefined()) throw TemplateError(callee.undefined_message());
  if (!callee.is_object()) {
    throw TemplateError(fmt::format("'{}' object is not callable", type_name(callee)));
  }
  return callee.object().call(*this, std::move(args));
}

Value Interpreter::attribute(const Value& object, std::string_view name) {
  if (object.is_undefined()) throw TemplateError(object.undefined_message());
  if (object.is_object()) {
    if (auto value = object.object().attribute(name, *this)) return std::move(*value);
  } else if (const MethodFn method = find_method(object, name)) {
    return std::shared_ptr<Object>(std::make_shared<BoundMethod>(object, method));
  } else if (is_forbidden_method(object, name)) {
    return Value::undefined(
        fmt::format("access to attribute '{}' of '{}' object is unsafe.", name, type_name(object)));
  } else if (object.is_dict()) {
    if (const Value* value = object.dict().find(name)) return *value;
  } else if (object.is_list() && object.list().shown == "group") {  // of groupby
    if (name == "grouper") return object.list().items[0];
    if (name == "list") return object.list().items[1];
  }
  return Value::undefined(fmt::format("'{}' has no attribute '{}'", shown_object(object), name));
}

Value Interpreter::item(const Value& object, const Value& key) {
  if (object.is_undefined()) throw TemplateError(object.undefined_message());
  if (object.is_dict()) {
    budget_.step(static_cast<int64_t>(object.dict().entries.size() / 8));
    if (const Value* value = object.dict().find(key)) return *value;
  } else if ((key.is_int() || key.is_bool()) &&
             (object.is_string() || (object.is_list() && object.list().has_index()))) {
    const int64_t length = length_of(object);
    int64_t index = to_index(key, "an index");
    if (index < 0) index += length;
    if (index >= 0 && index < length) {
      if (object.is_list()) return object.list().items[static_cast<size_t>(index)];
      return slice_value(object, {index, 1, 1}, budget_);
    }
  }
  if (key.is_string()) return attribute(object, key.text().bytes);
  return Value::undefined(
      fmt::format("{} has no element {}", shown_object(object), repr(key, budget_).bytes));
}

Items Interpreter::iterate(const Value& value) {
  if (value.is_undefined()) return {};
  if (value.is_list()) {
    const List& list = value.list();
    budget_.step(static_cast<int64_t>(list.items.size() / 8));
    if (list.flavor == Flavor::kGenerator && std::exchange(list.consumed, true)) return {};
    return {.keep = value, .items = &list.items};
  }
  Items items;
  if (value.is_dict()) {
    for (const auto& entry : value.dict().entries) items.owned.push_back(entry.first);
  } else if (value.is_string()) {
    const Text& text = value.text();
    for (size_t at = 0; at < text.size();) {
      const size_t begin = at;
      next_character(text.bytes, at);
      items.owned.emplace_back(slice(text, begin, at, budget_));
      budget_.make(sizeof(Value) + sizeof(Text));
    }
  } else {
    throw TemplateError(fmt::format("'{}' object is not iterable", type_name(value)));
  }
  budget_.make(items.owned.size() * sizeof(Value));
  return items;
}

bool Interpreter::contains(const Value& container, const Value& item) {
  if (container.is_string()) {
    if (!item.is_string()) {
      throw TemplateError(
          fmt::format("'in <string>' requires string as left operand, not {}", type_name(item)));
    }
    budget_.look(container.text().size() + item.text().size());
    return container.text().bytes.find(item.text().bytes) != std::string::npos;
  }
  if (container.is_dict()) {
    require_hashable(item);
    budget_.step(static_cast<int64_t>(container.dict().entries.size() / 8));
    return container.dict().find(item) != nullptr;
  }
  const Items items = iterate(container);
  return std::any_of(items.all().begin(), items.all().end(), [&](const Value& one) {
    return one.same_object(item) || equal(one, item, budget_);
  });
}

Value Interpreter::apply_filter(std::string_view name, const Value& input, Args args) {
  const FilterFn filter = find_filter(name);
  if (filter == nullptr) throw TemplateError(fmt::format("No filter named '{}'.", name));
  return filter(*this, input, args);
}

bool Interpreter::apply_test(std::string_view name, const Value& input, Args args) {
  const TestFn test = find_test(name);
  if (test == nullptr) throw TemplateError(fmt::format("No test named '{}'.", name));
  return test(*this, input, args);
}

}  // namespace eyrie::chat::jinja
