// Walks a Program for one rendering: scopes, calls, attributes. Filters, tests and methods are
// plain functions that get the interpreter. One object a rendering, one thread.
//
// Names are lexical: a loop, a macro, a block of call, filter, set or with has names of its own; if
// has none. A macro sees the names around its definition as they are when it is called.
#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/jinja_ast.h"

namespace eyrie::chat::jinja {

struct Scope {
  Scope* parent = nullptr;
  std::vector<std::pair<int, Value>> names{};
  bool captured = false;  // a macro defined inside keeps it for the rest of the rendering

  void set(int symbol, Value value);
  const Value* find_here(int symbol) const;
};

// What a loop or filter walks; owns it where it must.
struct Items {
  Value keep{};
  std::vector<Value> owned{};
  const std::vector<Value>* items = nullptr;

  const std::vector<Value>& all() const& { return items != nullptr ? *items : owned; }
  std::vector<Value> all() && {
    if (items != nullptr) return *items;
    return std::move(owned);
  }
  size_t size() const { return all().size(); }
  auto begin() const { return all().begin(); }
  auto end() const { return all().end(); }
};

class Namespace;

class Interpreter {
 public:
  Interpreter(const Program& program, const Limits& limits, const std::tm* now);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  // Throws TemplateError; line() then says where.
  Text run(const std::vector<std::pair<std::string, Value>>& variables);
  int line() const { return line_; }

  Budget& budget() { return budget_; }
  Value call(const Value& callee, Args args);
  Value attribute(const Value& object, std::string_view name);  // object.name
  Value item(const Value& object, const Value& key);            // object[key]
  Items iterate(const Value& value);
  Value apply_filter(std::string_view name, const Value& input, Args args);
  bool apply_test(std::string_view name, const Value& input, Args args);
  bool contains(const Value& container, const Value& item);

  // Of a macro: its body's text with the parameters bound.
  Text call_macro(const Stmt& macro, Scope* around, Args args);
  Value make_namespace(std::vector<std::pair<std::string, Value>> attributes);
  std::tm local_time() const;

 private:
  enum class Flow { kOn, kBreak, kContinue };
  class ScopeGuard;
  class DepthGuard;

  Value eval(const Expr& expr, Scope& scope);
  Value lookup(int symbol, const Scope& scope) const;
  Value eval_sequence(const Expr& expr, Scope& scope);
  Value eval_dict(const Expr& expr, Scope& scope);
  Value eval_slice(const Expr& expr, Scope& scope);
  Value eval_call(const Expr& expr, Scope& scope);
  Value eval_filter(const Expr& expr, Value input, Scope& scope);
  Value eval_test(const Expr& expr, Scope& scope);
  Value eval_compare(const Expr& expr, Scope& scope);
  Value eval_concat(const Expr& expr, Scope& scope);
  Value eval_condition(const Expr& expr, Scope& scope);
  Value eval_binary(const Expr& expr, Scope& scope);
  Args eval_args(const Expr& expr, size_t first, Scope& scope);
  Value run_filters(const Expr& chain, Value input, Scope& scope);

  Flow exec(const std::vector<const Stmt*>& body, Scope& scope, TextBuilder& out);
  Flow exec_one(const Stmt& stmt, Scope& scope, TextBuilder& out);
  Flow exec_scope(const Stmt& stmt, Scope& scope, TextBuilder& out);
  Flow exec_with(const Stmt& stmt, Scope& scope, TextBuilder& out);
  Flow exec_for(const Stmt& stmt, Scope& scope, TextBuilder& out);
  void exec_call_block(const Stmt& stmt, Scope& scope, TextBuilder& out);
  Text captured_text(const Stmt& stmt, Scope& scope);
  void assign(const Target& target, const Value& value, Scope& scope);
  Value make_macro(const Stmt& stmt, Scope& scope);
  Items wanted_items(const Stmt& loop, Scope& scope);
  void define_globals();

  std::unique_ptr<Scope> take_scope(Scope* parent);
  void leave_scope(std::unique_ptr<Scope> scope);

  const Program& program_;
  Budget budget_;
  const std::tm* now_;
  int line_ = 1;
  int depth_ = 0;
  int loop_symbol_ = -1;
  int caller_symbol_ = -1;
  int varargs_symbol_ = -1;
  int kwargs_symbol_ = -1;
  Scope globals_;
  Scope root_;
  std::vector<std::unique_ptr<Scope>> kept_scopes_;
  std::vector<std::unique_ptr<Scope>> free_scopes_;
  std::vector<std::shared_ptr<Namespace>> namespaces_;
};

// Nested evaluations, each a few frames of the thread's stack.
inline constexpr int kMaxDepth = 1000;

// Names of a block's own, for as long as it lives.
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

// One level of recursion.
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

// Arguments of a call bound to parameter names, as Python binds them.
class Params {
 public:
  Params(std::string_view function, const Args& args, std::initializer_list<std::string_view> names,
         size_t num_required = 0);
  // nullptr when left out.
  const Value* find(size_t i) const { return values_[i]; }
  const Value& get(size_t i) const { return *values_[i]; }
  bool flag(size_t i, bool otherwise = false) const;
  int64_t integer(size_t i, int64_t otherwise) const;
  const Value* not_none(size_t i) const;

 private:
  static constexpr size_t kMost = 6;
  std::string function_;
  const Value* values_[kMost] = {};
};

int64_t to_index(const Value& value, std::string_view what);  // an int, clamped to 64 bits
Value binary(Op op, const Value& a, const Value& b, Budget& budget);
Value negate(const Value& value);

// start:stop:step over a sequence of that length: the positions, in order.
struct SlicePlan {
  int64_t start = 0;
  int64_t step = 1;
  int64_t count = 0;
};
SlicePlan plan_slice(int64_t length, const Value& start, const Value& stop, const Value& step);
Value slice_value(const Value& object, const SlicePlan& plan, Budget& budget);
int64_t length_of(const Value& value);  // len()

using MethodFn = Value (*)(Interpreter& in, const Value& self, Args& args);
using MethodTable = std::vector<std::pair<std::string_view, MethodFn>>;
const MethodTable& string_methods();  // jinja_string_methods.cpp
// nullptr when values of that type have no such method; jinja_methods.cpp.
MethodFn find_method(const Value& self, std::string_view name);
// A method that changes its object, which the sandbox keeps away.
bool is_forbidden_method(const Value& self, std::string_view name);

// "%s and %d" % values, and "{} and {}".format(…); jinja_format.cpp.
Text format_printf(const Text& format, const Value& values, Interpreter& in);
Text format_braces(const Text& format, const Args& args, Interpreter& in);

// The functions every template has: range, dict, namespace, cycler, joiner, raise_exception,
// strftime_now.
using BuiltinFn = Value (*)(Interpreter& in, Args& args);
BuiltinFn find_builtin(std::string_view name);

// Text that is stripped, upper-cased, … of a str; jinja_text_operations.cpp.
Text strip_text(const Text& text, bool left, bool right, const Value* characters, Budget& budget);
Text replace_text(const Text& text, const Text& old, const Text& with, int64_t count,
                  Budget& budget);
Text map_text(const Text& text, std::string (*convert)(std::string_view), Budget& budget);
std::string capitalized(std::string_view text);
std::vector<Range> line_ranges(std::string_view text, bool keep_ends);
bool has_case(std::string_view text, bool upper);  // isupper, islower

}  // namespace eyrie::chat::jinja
