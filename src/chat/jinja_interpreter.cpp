#include "chat/jinja_interpreter.h"

#include <algorithm>

namespace eyrie::chat::jinja {
namespace {

// Nested evaluations, each a few frames of the thread's stack.
constexpr int kMaxDepth = 1000;

}  // namespace

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

namespace {

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

}  // namespace

// --- scopes --------------------------------------------------------------------------------------

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

class Interpreter::ScopeGuard {
 public:
  ScopeGuard(Interpreter& in, Scope* parent) : in_(in), scope_(in.take_scope(parent)) {}
  ~ScopeGuard() { in_.leave_scope(std::move(scope_)); }
  ScopeGuard(const ScopeGuard&) = delete;
  ScopeGuard& operator=(const ScopeGuard&) = delete;
  Scope& operator*() const { return *scope_; }

 private:
  Interpreter& in_;
  std::unique_ptr<Scope> scope_;
};

class Interpreter::DepthGuard {
 public:
  explicit DepthGuard(Interpreter& in) : in_(in) {
    if (++in.depth_ > kMaxDepth) {
      --in.depth_;
      throw TemplateError("the template calls itself too deeply");
    }
  }
  ~DepthGuard() { --in_.depth_; }
  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;

 private:
  Interpreter& in_;
};

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

// --- statements ----------------------------------------------------------------------------------

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

// --- objects -------------------------------------------------------------------------------------

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

// --- expressions ---------------------------------------------------------------------------------

Value Interpreter::eval(const Expr& expr, Scope& scope) {
  const DepthGuard depth(*this);
  budget_.step();
  switch (expr.op) {
    case Op::kConst:
      return expr.constant;
    case Op::kName:
      return lookup(expr.symbol, scope);
    case Op::kList:
    case Op::kTuple:
      return eval_sequence(expr, scope);
    case Op::kDict:
      return eval_dict(expr, scope);
    case Op::kGetAttr:
      return attribute(eval(*expr.args[0], scope), expr.name);
    case Op::kGetItem:
      return eval_binary(expr, scope);
    case Op::kSlice:
      return eval_slice(expr, scope);
    case Op::kCall:
      return eval_call(expr, scope);
    case Op::kFilter:
      return eval_filter(expr, eval(*expr.args[0], scope), scope);
    case Op::kTest:
      return eval_test(expr, scope);
    case Op::kNot:
      return !truthy(eval(*expr.args[0], scope));
    case Op::kNeg:
      return negate(eval(*expr.args[0], scope));
    case Op::kPos:
      return negate(negate(eval(*expr.args[0], scope)));
    case Op::kAnd:
    case Op::kOr: {
      Value left = eval(*expr.args[0], scope);
      if (truthy(left) == (expr.op == Op::kOr)) return left;
      return eval(*expr.args[1], scope);
    }
    case Op::kConcat:
      return eval_concat(expr, scope);
    case Op::kCompare:
      return eval_compare(expr, scope);
    case Op::kCondition:
      return eval_condition(expr, scope);
    default:
      return eval_binary(expr, scope);
  }
}

Value Interpreter::lookup(int symbol, const Scope& scope) const {
  for (const Scope* at = &scope; at != nullptr; at = at->parent) {
    if (const Value* value = at->find_here(symbol)) return *value;
  }
  return Value::undefined("'" + program_.symbols[static_cast<size_t>(symbol)] + "' is undefined");
}

Value Interpreter::eval_binary(const Expr& expr, Scope& scope) {
  const Value left = eval(*expr.args[0], scope);
  const Value right = eval(*expr.args[1], scope);
  line_ = expr.line;
  if (expr.op == Op::kGetItem) return item(left, right);
  if (expr.op == Op::kMod && left.is_string()) return format_printf(left.text(), right, *this);
  return binary(expr.op, left, right, budget_);
}

Value Interpreter::eval_sequence(const Expr& expr, Scope& scope) {
  std::vector<Value> items;
  items.reserve(expr.args.size());
  for (const Expr* arg : expr.args) items.push_back(eval(*arg, scope));
  return make_list(std::move(items), budget_,
                   expr.op == Op::kTuple ? Flavor::kTuple : Flavor::kList);
}

Value Interpreter::eval_dict(const Expr& expr, Scope& scope) {
  std::vector<std::pair<Value, Value>> entries;
  for (size_t i = 0; i < expr.args.size(); i += 2) {
    const Value key = eval(*expr.args[i], scope);
    set_entry(entries, key, eval(*expr.args[i + 1], scope), budget_);
  }
  return make_dict(std::move(entries), budget_);
}

Value Interpreter::eval_slice(const Expr& expr, Scope& scope) {
  const Value object = eval(*expr.args[0], scope);
  Value bounds[3];
  for (size_t i = 0; i < 3; ++i) {
    if (expr.args[i + 1] != nullptr) bounds[i] = eval(*expr.args[i + 1], scope);
  }
  if (object.is_undefined()) throw TemplateError(object.undefined_message());
  if (!object.is_string() && !(object.is_list() && object.list().has_index())) {
    return Value::undefined(fmt::format("'{}' cannot be sliced", shown_object(object)));
  }
  return slice_value(object, plan_slice(length_of(object), bounds[0], bounds[1], bounds[2]),
                     budget_);
}

Args Interpreter::eval_args(const Expr& expr, size_t first, Scope& scope) {
  Args args;
  args.positional.reserve(expr.args.size() - first);
  for (size_t i = first; i < expr.args.size(); ++i) {
    args.positional.push_back(eval(*expr.args[i], scope));
  }
  for (const auto& [name, value] : expr.named) args.named.emplace_back(name, eval(*value, scope));
  if (expr.star != nullptr) {
    for (const Value& item : iterate(eval(*expr.star, scope))) {
      args.positional.push_back(item);
    }
  }
  if (expr.star_star != nullptr) {
    const Value more = eval(*expr.star_star, scope);
    if (!more.is_dict()) throw TemplateError("the argument behind ** must be a mapping");
    for (const auto& [key, value] : more.dict().entries) {
      if (!key.is_string()) throw TemplateError("keywords must be strings");
      args.named.emplace_back(key.text().bytes, value);
    }
  }
  return args;
}

Value Interpreter::eval_call(const Expr& expr, Scope& scope) {
  const Expr& callee = *expr.args[0];
  if (callee.op == Op::kGetAttr && callee.symbol < 0) {  // without making the method an object
    const Value self = eval(*callee.args[0], scope);
    if (const MethodFn method = find_method(self, callee.name)) {
      Args args = eval_args(expr, 1, scope);
      line_ = expr.line;
      return method(*this, self, args);
    }
    const Value function = attribute(self, callee.name);
    return call(function, eval_args(expr, 1, scope));
  }
  const Value function = eval(callee, scope);
  Args args = eval_args(expr, 1, scope);
  line_ = expr.line;
  return call(function, std::move(args));
}

Value Interpreter::eval_filter(const Expr& expr, Value input, Scope& scope) {
  Args args = eval_args(expr, 1, scope);
  line_ = expr.line;
  if (expr.filter == nullptr) {
    throw TemplateError(fmt::format("No filter named '{}'.", expr.name));
  }
  return expr.filter(*this, input, args);
}

// A filter block's chain, whose innermost filter has no input.
Value Interpreter::run_filters(const Expr& chain, Value input, Scope& scope) {
  const DepthGuard depth(*this);
  if (chain.args[0] != nullptr) input = run_filters(*chain.args[0], std::move(input), scope);
  return eval_filter(chain, std::move(input), scope);
}

Value Interpreter::eval_test(const Expr& expr, Scope& scope) {
  const Value input = eval(*expr.args[0], scope);
  Args args = eval_args(expr, 1, scope);
  line_ = expr.line;
  if (expr.test == nullptr) throw TemplateError(fmt::format("No test named '{}'.", expr.name));
  return expr.test(*this, input, args);
}

Value Interpreter::eval_compare(const Expr& expr, Scope& scope) {
  Value left = eval(*expr.args[0], scope);
  for (size_t i = 0; i < expr.comparisons.size(); ++i) {
    Value right = eval(*expr.args[i + 1], scope);
    line_ = expr.line;
    bool holds = false;
    switch (expr.comparisons[i]) {
      case Comparison::kEqual:
        holds = equal(left, right, budget_);
        break;
      case Comparison::kNotEqual:
        holds = !equal(left, right, budget_);
        break;
      case Comparison::kLess:
        holds = compare(left, right, "<", budget_) < 0;
        break;
      case Comparison::kLessEqual:
        holds = compare(left, right, "<=", budget_) <= 0;
        break;
      case Comparison::kGreater:
        holds = compare(left, right, ">", budget_) > 0;
        break;
      case Comparison::kGreaterEqual:
        holds = compare(left, right, ">=", budget_) >= 0;
        break;
      case Comparison::kIn:
        holds = contains(right, left);
        break;
      case Comparison::kNotIn:
        holds = !contains(right, left);
        break;
    }
    if (!holds) return false;
    left = std::move(right);
  }
  return true;
}

Value Interpreter::eval_concat(const Expr& expr, Scope& scope) {
  TextBuilder out(budget_);
  for (const Expr* arg : expr.args) out.add(to_text(eval(*arg, scope), budget_));
  return out.take();
}

Value Interpreter::eval_condition(const Expr& expr, Scope& scope) {
  if (truthy(eval(*expr.args[1], scope))) return eval(*expr.args[0], scope);
  if (expr.args[2] != nullptr) return eval(*expr.args[2], scope);
  return Value::undefined(
      "the inline if-expression evaluated to false and no else section was defined.");
}

}  // namespace eyrie::chat::jinja
