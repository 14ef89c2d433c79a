// What is neither text, number nor list to a template: namespaces, macros, methods, loops.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/jinja_interpreter.h"

namespace eyrie::chat::jinja {

// namespace(…): the one thing whose attributes change.
class Namespace final : public Object {
 public:
  std::vector<std::pair<std::string, Value>> attributes;

  std::string type_name() const override { return "Namespace"; }
  std::optional<Value> attribute(std::string_view name, Interpreter&) override {
    for (const auto& [key, value] : attributes) {
      if (key == name) return value;
    }
    return std::nullopt;
  }
  void set(const std::string& name, Value value) {
    for (auto& [key, old] : attributes) {
      if (key == name) {
        old = std::move(value);
        return;
      }
    }
    attributes.emplace_back(name, std::move(value));
  }
};

class Macro final : public Object {
 public:
  Macro(const Stmt& stmt, Scope* around) : stmt_(stmt), around_(around) {}
  std::string type_name() const override { return "Macro"; }
  bool is_callable() const override { return true; }
  Value call(Interpreter& in, Args args) override {
    return in.call_macro(stmt_, around_, std::move(args));
  }
  std::optional<Value> attribute(std::string_view name, Interpreter&) override {
    if (name == "name") return Value::string(stmt_.name);
    return std::nullopt;
  }

 private:
  const Stmt& stmt_;
  Scope* around_;
};

class BoundMethod final : public Object {
 public:
  BoundMethod(Value self, MethodFn method) : self_(std::move(self)), method_(method) {}
  std::string type_name() const override { return "builtin_function_or_method"; }
  bool is_callable() const override { return true; }
  Value call(Interpreter& in, Args args) override { return method_(in, self_, args); }
  int depth() const override {
    return self_.is_list() ? self_.list().depth + 1 : self_.is_dict() ? self_.dict().depth + 1 : 1;
  }

 private:
  Value self_;
  MethodFn method_;
};

class Builtin final : public Object {
 public:
  explicit Builtin(BuiltinFn function) : function_(function) {}
  std::string type_name() const override { return "function"; }
  bool is_callable() const override { return true; }
  Value call(Interpreter& in, Args args) override { return function_(in, args); }

 private:
  BuiltinFn function_;
};

// The loop of a for.
class Loop final : public Object, public std::enable_shared_from_this<Loop> {
 public:
  explicit Loop(Items items) : items_(std::move(items)) {}
  const std::vector<Value>& all() const { return items_.all(); }
  void move_to(size_t index) { index_ = index; }
  // What loop.changed remembers may hold the loop itself: let go of it, for good.
  void end() {
    last_changed_.reset();
    over_ = true;
  }

  std::string type_name() const override { return "LoopContext"; }
  std::optional<Value> attribute(std::string_view name, Interpreter& in) override;

 private:
  class Function;
  friend class Function;
  Items items_;
  size_t index_ = 0;
  bool over_ = false;
  std::optional<std::vector<Value>> last_changed_;
};

std::string shown_object(const Value& object);  // for messages

}  // namespace eyrie::chat::jinja
