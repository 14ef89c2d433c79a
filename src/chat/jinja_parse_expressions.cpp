#include "chat/jinja_parser.h"

namespace eyrie::chat::jinja {

const Expr* Parser::expression(bool condition) {
  const Level level(*this);
  const Expr* expr = disjunction();
  while (condition && skip_name("if")) {
    const Expr* test = disjunction();
    const Expr* otherwise = skip_name("else") ? expression() : nullptr;
    expr = make(Op::kCondition, {expr, test, otherwise}, expr->line);
  }
  return expr;
}

const Expr* Parser::disjunction() {
  const Expr* left = conjunction();
  while (skip_name("or")) left = make(Op::kOr, {left, conjunction()}, left->line);
  return left;
}

const Expr* Parser::conjunction() {
  const Expr* left = negation();
  while (skip_name("and")) left = make(Op::kAnd, {left, negation()}, left->line);
  return left;
}

const Expr* Parser::negation() {
  const Level level(*this);
  if (skip_name("not")) return make(Op::kNot, {negation()});
  return comparison();
}

const Expr* Parser::comparison() {
  static constexpr std::pair<std::string_view, Comparison> kSymbols[] = {
      {"==", Comparison::kEqual},     {"!=", Comparison::kNotEqual},
      {"<=", Comparison::kLessEqual}, {">=", Comparison::kGreaterEqual},
      {"<", Comparison::kLess},       {">", Comparison::kGreater}};
  const Expr* first = sum();
  Expr* chain = nullptr;
  while (true) {
    std::optional<Comparison> found;
    for (const auto& [symbol, meaning] : kSymbols) {
      if (!found && skip(symbol)) found = meaning;
    }
    if (!found && skip_name("in")) found = Comparison::kIn;
    if (!found && current().is_name("not") && look().is_name("in")) {
      next();
      next();
      found = Comparison::kNotIn;
    }
    if (!found) return chain != nullptr ? chain : first;
    if (chain == nullptr) chain = make(Op::kCompare, {first}, first->line);
    chain->args.push_back(sum());
    chain->comparisons.push_back(*found);
  }
}

const Expr* Parser::sum() {
  const Expr* left = concatenation();
  while (true) {
    if (skip("+")) {
      left = make(Op::kAdd, {left, concatenation()}, left->line);
    } else if (skip("-")) {
      left = make(Op::kSub, {left, concatenation()}, left->line);
    } else {
      return left;
    }
  }
}

const Expr* Parser::concatenation() {
  const Expr* first = product();
  if (!current().is("~")) return first;
  Expr* all = make(Op::kConcat, {first}, first->line);
  while (skip("~")) all->args.push_back(product());
  return all;
}

const Expr* Parser::product() {
  static constexpr std::pair<std::string_view, Op> kSymbols[] = {
      {"*", Op::kMul}, {"/", Op::kDiv}, {"//", Op::kFloorDiv}, {"%", Op::kMod}};
  const Expr* left = power();
  while (true) {
    const auto* found = std::find_if(std::begin(kSymbols), std::end(kSymbols),
                                     [this](const auto& row) { return current().is(row.first); });
    if (found == std::end(kSymbols)) return left;
    next();
    left = make(found->second, {left, power()}, left->line);
  }
}

const Expr* Parser::power() {
  const Expr* left = unary();
  while (skip("**")) left = make(Op::kPow, {left, unary()}, left->line);
  return left;
}

const Expr* Parser::unary(bool with_filter) {
  const Level level(*this);
  const Expr* expr = nullptr;
  if (skip("-")) {
    expr = make(Op::kNeg, {unary(false)});
  } else if (skip("+")) {
    expr = make(Op::kPos, {unary(false)});
  } else {
    expr = primary();
  }
  expr = postfix(expr);
  return with_filter ? filters_and_tests(expr) : expr;
}

const Expr* Parser::primary(bool namespaces) {
  const Token& token = current();
  Expr* expr = make(Op::kConst);
  switch (token.kind) {
    case Kind::kName: {
      const std::string name = next().text;
      if (name == "true" || name == "True" || name == "false" || name == "False") {
        expr->constant = name == "true" || name == "True";
      } else if (name != "none" && name != "None") {
        expr->op = Op::kName;
        expr->symbol = program_.intern(name);
        if (macro_ != nullptr) {
          macro_->takes_varargs |= name == "varargs";
          macro_->takes_kwargs |= name == "kwargs";
          macro_->takes_caller |= name == "caller";
        }
        if (namespaces && skip(".")) {
          expr->op = Op::kGetAttr;
          expr->name = expect_name();
        }
      }
      return expr;
    }
    case Kind::kString: {
      std::string value;
      while (current().kind == Kind::kString) value += next().text;
      expr->constant = Text::own(value);
      return expr;
    }
    case Kind::kInteger:
    case Kind::kFloat:
      expr->constant = next().number;
      return expr;
    default:
      break;
  }
  if (skip("(")) {
    const Expr* inside = tuple({.parens = true});
    expect(")");
    return inside;
  }
  if (token.is("[")) return list();
  if (token.is("{")) return dict();
  fail(fmt::format("unexpected '{}'", shown(token)));
}

const Expr* Parser::tuple(const TupleRules& rules) {
  std::vector<const Expr*> items;
  bool is_tuple = false;
  const int line = current().line;
  while (true) {
    if (!items.empty()) expect(",");
    const Kind kind = current().kind;
    if (kind == Kind::kPrintEnd || kind == Kind::kTagEnd || current().is(")")) break;
    if (!rules.end_name.empty() && current().is_name(rules.end_name)) break;
    items.push_back(rules.simple ? primary(rules.namespaces) : expression(rules.condition));
    if (!current().is(",")) break;
    is_tuple = true;
  }
  if (!is_tuple) {
    if (!items.empty()) return items[0];
    if (!rules.parens) fail(fmt::format("expected an expression, got '{}'", shown(current())));
  }
  return make(Op::kTuple, std::move(items), line);
}

const Expr* Parser::list() {
  Expr* list = make(Op::kList);
  expect("[");
  while (!current().is("]")) {
    if (!list->args.empty()) expect(",");
    if (current().is("]")) break;
    list->args.push_back(expression());
  }
  expect("]");
  return list;
}

const Expr* Parser::dict() {
  Expr* dict = make(Op::kDict);
  expect("{");
  while (!current().is("}")) {
    if (!dict->args.empty()) expect(",");
    if (current().is("}")) break;
    dict->args.push_back(expression());
    expect(":");
    dict->args.push_back(expression());
  }
  expect("}");
  return dict;
}

const Expr* Parser::postfix(const Expr* expr) {
  while (true) {
    if (current().is(".") || current().is("[")) {
      expr = subscript(expr);
    } else if (current().is("(")) {
      expr = call(expr);
    } else {
      return expr;
    }
  }
}

const Expr* Parser::filters_and_tests(const Expr* expr) {
  while (true) {
    if (current().is("|")) {
      next();
      expr = filter(expr);
    } else if (current().is_name("is")) {
      expr = test(expr);
    } else if (current().is("(")) {
      expr = call(expr);
    } else {
      return expr;
    }
  }
}

const Expr* Parser::subscript(const Expr* object) {
  if (!skip(".")) {
    expect("[");
    const Expr* item = index(object);
    expect("]");
    return item;
  }
  const Token& token = next();
  if (token.kind == Kind::kInteger) {
    Expr* number = make(Op::kConst);
    number->constant = token.number;
    return make(Op::kGetItem, {object, number});
  }
  if (token.kind != Kind::kName) {
    fail(fmt::format("expected a name or number behind '.', got '{}'", shown(token)));
  }
  Expr* expr = make(Op::kGetAttr, {object}, token.line);
  expr->name = token.text;
  return expr;
}

const Expr* Parser::index(const Expr* object) {
  if (current().is("]")) return make(Op::kGetItem, {object, make(Op::kTuple)});
  const Expr* parts[3] = {nullptr, nullptr, nullptr};
  if (!current().is(":")) parts[0] = expression();
  if (!current().is(":")) {
    if (!current().is(",")) return make(Op::kGetItem, {object, parts[0]});
    Expr* key = make(Op::kTuple, {parts[0]});
    while (skip(",")) key->args.push_back(expression());
    return make(Op::kGetItem, {object, key});
  }
  for (size_t i = 1; i < 3 && skip(":"); ++i) {
    if (!current().is(":") && !current().is("]")) parts[i] = expression();
  }
  return make(Op::kSlice, {object, parts[0], parts[1], parts[2]});
}

void Parser::arguments(Expr& into) {
  expect("(");
  bool first = true;
  while (!current().is(")")) {
    if (!first) expect(",");
    first = false;
    if (current().is(")")) break;
    if (skip("*")) {
      if (into.star != nullptr || into.star_star != nullptr) fail("a call has two * arguments");
      into.star = expression();
    } else if (skip("**")) {
      if (into.star_star != nullptr) fail("a call has two ** arguments");
      into.star_star = expression();
    } else if (current().kind == Kind::kName && look().is("=")) {
      if (into.star_star != nullptr) fail("an argument follows **");
      const std::string name = next().text;
      next();
      for (const auto& [other, value] : into.named) {
        if (other == name) fail(fmt::format("the argument {} is given twice", name));
      }
      into.named.emplace_back(name, expression());
    } else {
      if (into.star != nullptr || into.star_star != nullptr || !into.named.empty()) {
        fail("a positional argument follows named ones");
      }
      into.args.push_back(expression());
    }
  }
  expect(")");
}

const Expr* Parser::call(const Expr* callee) {
  Expr* expr = make(Op::kCall, {callee});
  arguments(*expr);
  return expr;
}

std::string Parser::dotted_name() {
  std::string name = expect_name();
  while (skip(".")) name += "." + expect_name();
  return name;
}

const Expr* Parser::filter(const Expr* input) {
  Expr* expr = make(Op::kFilter, {input});
  expr->name = dotted_name();
  expr->filter = find_filter(expr->name);
  if (current().is("(")) arguments(*expr);
  return expr;
}

const Expr* Parser::test(const Expr* input) {
  next();  // is
  const bool negated = skip_name("not");
  Expr* expr = make(Op::kTest, {input});
  expr->name = dotted_name();
  expr->test = find_test(expr->name);
  const Token& token = current();
  const bool begins_operand = token.kind == Kind::kName || token.kind == Kind::kString ||
                              token.kind == Kind::kInteger || token.kind == Kind::kFloat ||
                              token.is("[") || token.is("{");
  if (token.is("(")) {
    arguments(*expr);
  } else if (begins_operand && !token.is_name("else") && !token.is_name("or") &&
             !token.is_name("and")) {
    if (token.is_name("is")) fail("tests cannot be chained with is");
    expr->args.push_back(postfix(primary()));
  }
  return negated ? make(Op::kNot, {expr}) : expr;
}

}  // namespace eyrie::chat::jinja
