// Expressions.
#include "chat/jinja_objects.h"

namespace eyrie::chat::jinja {

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
