// Statements and macros.
#include <algorithm>

#include "chat/jinja_objects.h"

namespace eyrie::chat::jinja {

Interpreter::Flow Interpreter::exec(const std::vector<const Stmt*>& body, Scope& scope,
                                    TextBuilder& out) {
  const DepthGuard depth(*this);
  for (const Stmt* stmt : body) {
    line_ = stmt->line;
    budget_.step();
    const Flow flow = exec_one(*stmt, scope, out);
    if (flow != Flow::kOn) return flow;
  }
  return Flow::kOn;
}

Interpreter::Flow Interpreter::exec_one(const Stmt& stmt, Scope& scope, TextBuilder& out) {
  using Kind = Stmt::Kind;
  switch (stmt.kind) {
    case Kind::kData:
      out.add(stmt.data);
      break;
    case Kind::kPrint: {
      const Value value = eval(*stmt.expr, scope);
      if (value.is_string()) {
        out.add(value.text());
      } else {
        out.add(to_text(value, budget_));
      }
      break;
    }
    case Kind::kIf:
      return exec(truthy(eval(*stmt.expr, scope)) ? stmt.body : stmt.otherwise, scope, out);
    case Kind::kFor:
      return exec_for(stmt, scope, out);
    case Kind::kSet:
      assign(stmt.targets[0], eval(*stmt.expr, scope), scope);
      break;
    case Kind::kSetBlock: {
      Value value = captured_text(stmt, scope);
      if (stmt.filter != nullptr) value = run_filters(*stmt.filter, std::move(value), scope);
      assign(stmt.targets[0], value, scope);
      break;
    }
    case Kind::kMacro:
      scope.set(stmt.symbol, make_macro(stmt, scope));
      break;
    case Kind::kCallBlock:
      exec_call_block(stmt, scope, out);
      break;
    case Kind::kFilterBlock:
      out.add(to_text(run_filters(*stmt.filter, captured_text(stmt, scope), scope), budget_));
      break;
    case Kind::kWith:
      return exec_with(stmt, scope, out);
    case Kind::kScope:
      return exec_scope(stmt, scope, out);
    case Kind::kBreak:
      return Flow::kBreak;
    case Kind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kOn;
}

Interpreter::Flow Interpreter::exec_scope(const Stmt& stmt, Scope& scope, TextBuilder& out) {
  const ScopeGuard inner(*this, &scope);
  return exec(stmt.body, *inner, out);
}

Interpreter::Flow Interpreter::exec_with(const Stmt& stmt, Scope& scope, TextBuilder& out) {
  const ScopeGuard inner(*this, &scope);
  for (size_t i = 0; i < stmt.targets.size(); ++i) {
    assign(stmt.targets[i], eval(*stmt.values[i], scope), *inner);
  }
  return exec(stmt.body, *inner, out);
}

Text Interpreter::captured_text(const Stmt& stmt, Scope& scope) {
  const ScopeGuard inner(*this, &scope);
  TextBuilder text(budget_);
  exec(stmt.body, *inner, text);
  return text.take();
}

// The items of a for that pass its condition.
Items Interpreter::wanted_items(const Stmt& loop, Scope& scope) {
  Items items = iterate(eval(*loop.expr, scope));
  if (loop.condition == nullptr) return items;
  const ScopeGuard inner(*this, &scope);
  std::vector<Value> wanted;
  for (const Value& item : items.all()) {
    assign(loop.targets[0], item, *inner);
    if (truthy(eval(*loop.condition, *inner))) wanted.push_back(item);
  }
  return {.owned = std::move(wanted)};
}

Interpreter::Flow Interpreter::exec_for(const Stmt& stmt, Scope& scope, TextBuilder& out) {
  const auto loop = std::make_shared<Loop>(wanted_items(stmt, scope));
  const std::vector<Value>& items = loop->all();
  const ScopeGuard inner(*this, &scope);
  if (items.empty()) return exec(stmt.otherwise, *inner, out);
  const std::unique_ptr<Loop, void (*)(Loop*)> ended(loop.get(), [](Loop* one) { one->end(); });
  for (size_t i = 0; i < items.size(); ++i) {
    (*inner).names.clear();
    loop->move_to(i);
    if (loop_symbol_ >= 0) (*inner).set(loop_symbol_, std::shared_ptr<Object>(loop));
    assign(stmt.targets[0], items[i], *inner);
    if (exec(stmt.body, *inner, out) == Flow::kBreak) break;
  }
  return Flow::kOn;
}

void Interpreter::assign(const Target& target, const Value& value, Scope& scope) {
  if (target.is_tuple) {
    const Items parts = iterate(value);
    if (parts.size() != target.parts.size()) {
      throw TemplateError(
          fmt::format("cannot unpack {} values into {} names", parts.size(), target.parts.size()));
    }
    for (size_t i = 0; i < parts.size(); ++i) assign(target.parts[i], parts.all()[i], scope);
    return;
  }
  if (target.attribute.empty()) {
    scope.set(target.symbol, value);
    return;
  }
  const Value object = lookup(target.symbol, scope);
  auto* space = object.is_object() ? dynamic_cast<Namespace*>(&object.object()) : nullptr;
  if (space == nullptr) throw TemplateError("cannot assign attribute on non-namespace object");
  space->set(target.attribute, value);
}

// --- macros --------------------------------------------------------------------------------------

Value Interpreter::make_macro(const Stmt& stmt, Scope& scope) {
  for (Scope* around = &scope; around != nullptr && !around->captured; around = around->parent) {
    around->captured = true;
  }
  budget_.make(sizeof(Macro));
  return std::shared_ptr<Object>(std::make_shared<Macro>(stmt, &scope));
}

void Interpreter::exec_call_block(const Stmt& stmt, Scope& scope, TextBuilder& out) {
  const Value callee = eval(*stmt.expr->args[0], scope);
  Args args = eval_args(*stmt.expr, 1, scope);
  args.named.emplace_back("caller", make_macro(stmt, scope));
  out.add(to_text(call(callee, std::move(args)), budget_));
}

Text Interpreter::call_macro(const Stmt& macro, Scope* around, Args args) {
  const DepthGuard depth(*this);
  const ScopeGuard guard(*this, around);
  Scope& scope = *guard;
  const auto take_named = [&](std::string_view name) -> std::optional<Value> {
    const auto found = std::find_if(args.named.begin(), args.named.end(),
                                    [&](const auto& entry) { return entry.first == name; });
    if (found == args.named.end()) return std::nullopt;
    Value value = std::move(found->second);
    args.named.erase(found);
    return value;
  };
  const size_t num_parameters = macro.parameters.size();
  std::vector<const Parameter*> missing;
  for (size_t i = 0; i < num_parameters; ++i) {
    const Parameter& parameter = macro.parameters[i];
    if (i < args.positional.size()) {
      scope.set(parameter.symbol, args.positional[i]);
    } else if (auto value = take_named(parameter.name)) {
      scope.set(parameter.symbol, std::move(*value));
    } else {
      missing.push_back(&parameter);
    }
  }
  if (macro.takes_caller) {
    auto caller = take_named("caller");
    scope.set(caller_symbol_, caller ? std::move(*caller) : Value::undefined("No caller defined"));
  }
  if (macro.takes_kwargs) {
    std::vector<std::pair<Value, Value>> rest;
    for (auto& [name, value] : args.named) rest.emplace_back(Value::string(name), std::move(value));
    scope.set(kwargs_symbol_, make_dict(std::move(rest), budget_));
  } else if (!args.named.empty()) {
    throw TemplateError(
        fmt::format("macro '{}' takes no keyword argument '{}'", macro.name, args.named[0].first));
  }
  const bool too_many = args.positional.size() > num_parameters;
  if (macro.takes_varargs) {
    std::vector<Value> rest;
    for (size_t i = num_parameters; i < args.positional.size(); ++i) {
      rest.push_back(std::move(args.positional[i]));
    }
    scope.set(varargs_symbol_, make_list(std::move(rest), budget_, Flavor::kTuple));
  } else if (too_many) {
    throw TemplateError(
        fmt::format("macro '{}' takes not more than {} argument(s)", macro.name, num_parameters));
  }
  for (const Parameter* parameter : missing) {
    scope.set(parameter->symbol, parameter->otherwise != nullptr
                                     ? eval(*parameter->otherwise, scope)
                                     : Value::undefined(fmt::format(
                                           "parameter '{}' was not provided", parameter->name)));
  }
  const int calling_line = line_;
  TextBuilder out(budget_);
  exec(macro.body, scope, out);
  line_ = calling_line;
  return out.take();
}

}  // namespace eyrie::chat::jinja
