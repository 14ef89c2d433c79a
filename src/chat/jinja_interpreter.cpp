#include "chat/jinja_interpreter.h"

#include "chat/jinja_objects.h"

namespace eyrie::chat::jinja {

void Scope::set(int symbol, Value value) {
  for (auto& [name, old] : names) {
    if (name == symbol) {
      old = std::move(value);
      return;
    }
  }
  names.emplace_back(symbol, std::move(value));
}

const Value* Scope::find_here(int symbol) const {
  for (const auto& [name, value] : names) {
    if (name == symbol) return &value;
  }
  return nullptr;
}

std::unique_ptr<Scope> Interpreter::take_scope(Scope* parent) {
  std::unique_ptr<Scope> scope;
  if (free_scopes_.empty()) {
    budget_.make(sizeof(Scope));
    scope = std::make_unique<Scope>();
  } else {
    scope = std::move(free_scopes_.back());
    free_scopes_.pop_back();
  }
  scope->parent = parent;
  return scope;
}

void Interpreter::leave_scope(std::unique_ptr<Scope> scope) {
  if (scope->captured) {
    kept_scopes_.push_back(std::move(scope));
    return;
  }
  scope->names.clear();
  free_scopes_.push_back(std::move(scope));
}

// --- a rendering ---------------------------------------------------------------------------------

Interpreter::Interpreter(const Program& program, const Limits& limits, const std::tm* now)
    : program_(program), budget_(limits), now_(now) {
  const auto symbol = [&](const char* name) {
    const auto found = program.symbol_ids.find(name);
    return found == program.symbol_ids.end() ? -1 : found->second;
  };
  loop_symbol_ = symbol("loop");
  caller_symbol_ = symbol("caller");
  varargs_symbol_ = symbol("varargs");
  kwargs_symbol_ = symbol("kwargs");
  root_.parent = &globals_;
  define_globals();
}

// A namespace may hold itself; emptied, none is held by another.
Interpreter::~Interpreter() {
  for (const auto& space : namespaces_) {
    const auto released = std::exchange(space->attributes, {});
  }
}

void Interpreter::define_globals() {
  for (size_t i = 0; i < program_.symbols.size(); ++i) {
    if (const BuiltinFn function = find_builtin(program_.symbols[i])) {
      globals_.set(static_cast<int>(i),
                   std::shared_ptr<Object>(std::make_shared<Builtin>(function)));
    }
  }
}

Text Interpreter::run(const std::vector<std::pair<std::string, Value>>& variables) {
  for (const auto& [name, value] : variables) {
    const auto found = program_.symbol_ids.find(name);
    if (found != program_.symbol_ids.end()) root_.set(found->second, value);
  }
  TextBuilder out(budget_);
  exec(program_.body, root_, out);
  return out.take();
}

std::tm Interpreter::local_time() const {
  if (now_ != nullptr) return *now_;
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return local;
}

Value Interpreter::make_namespace(std::vector<std::pair<std::string, Value>> attributes) {
  budget_.make(sizeof(Namespace) + attributes.size() * sizeof(Value));
  auto space = std::make_shared<Namespace>();
  for (auto& [name, value] : attributes) space->set(name, std::move(value));
  namespaces_.push_back(space);
  return std::shared_ptr<Object>(space);
}

}  // namespace eyrie::chat::jinja
