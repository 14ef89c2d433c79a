// Recursive descent over the tokens; expressions first, with jinja2's precedence, then tags.
#include <algorithm>

#include "chat/jinja_ast.h"

namespace eyrie::chat::jinja {
namespace {

constexpr int kMaxNesting = 100;  // of brackets, operators before an operand and tags

using Kind = Token::Kind;

class Parser {
 public:
  Parser(std::vector<Token> tokens, Program& program)
      : tokens_(std::move(tokens)), program_(program) {}

  void run() { program_.body = statements({}, "the template"); }

 private:
  // Counts the levels the parser is inside of.
  class Level {
   public:
    explicit Level(Parser& parser) : parser_(parser) {
      if (++parser.nesting_ > kMaxNesting) parser.fail("the template nests too deeply");
    }
    ~Level() { --parser_.nesting_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Parser& parser_;
  };
  struct TupleRules {
    bool simple = false;      // names and brackets only, for targets
    bool condition = true;    // x if y else z is allowed
    bool parens = false;      // () is one
    bool namespaces = false;  // ns.attribute is allowed
    std::string_view end_name{};
  };
  using Body = std::vector<const Stmt*>;

  [[noreturn]] void fail(const std::string& message) const {
    throw SyntaxError(message, current().line);
  }
  static std::string shown(const Token& token) {
    switch (token.kind) {
      case Kind::kPrintEnd:
        return "}}";
      case Kind::kTagEnd:
        return "%}";
      case Kind::kEnd:
        return "the end of the template";
      default:
        return token.text;
    }
  }

  const Token& current() const { return tokens_[at_]; }
  const Token& look() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const Token& next() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool skip(std::string_view op) { return current().is(op) && (next(), true); }
  bool skip_name(std::string_view name) { return current().is_name(name) && (next(), true); }
  void expect(std::string_view op) {
    if (!skip(op)) fail(fmt::format("expected '{}', got '{}'", op, shown(current())));
  }
  std::string expect_name() {
    if (current().kind != Kind::kName) {
      fail(fmt::format("expected a name, got '{}'", shown(current())));
    }
    return next().text;
  }
  void expect_kind(Kind kind, std::string_view spelled) {
    if (current().kind != kind) {
      fail(fmt::format("expected '{}', got '{}'", spelled, shown(current())));
    }
    next();
  }

  Expr* make(Op op, std::vector<const Expr*> args = {}, int line = 0) {
    Expr& expr = program_.exprs.emplace_back();
    expr.op = op;
    expr.line = line != 0 ? line : current().line;
    expr.args = std::move(args);
    return &expr;
  }
  Stmt* make(Stmt::Kind kind) {
    Stmt& stmt = program_.stmts.emplace_back();
    stmt.kind = kind;
    stmt.line = current().line;
    return &stmt;
  }

  const Expr* expression(bool condition = true);
  const Expr* disjunction();
  const Expr* conjunction();
  const Expr* negation();
  const Expr* comparison();
  const Expr* sum();
  const Expr* concatenation();
  const Expr* product();
  const Expr* power();
  const Expr* unary(bool with_filter = true);
  const Expr* primary(bool namespaces = false);
  const Expr* tuple(const TupleRules& rules);
  const Expr* list();
  const Expr* dict();
  const Expr* postfix(const Expr* expr);
  const Expr* filters_and_tests(const Expr* expr);
  const Expr* subscript(const Expr* object);
  const Expr* index(const Expr* object);
  const Expr* call(const Expr* callee);
  const Expr* filter(const Expr* input);
  const Expr* test(const Expr* input);
  std::string dotted_name();
  void arguments(Expr& into);

  Body statements(std::initializer_list<std::string_view> ends, std::string_view inside);
  const Stmt* tag();
  const Stmt* if_tag();
  const Stmt* for_tag();
  const Stmt* set_tag();
  const Stmt* macro_tag();
  const Stmt* call_tag();
  const Stmt* filter_tag();
  const Stmt* with_tag();
  const Stmt* scope_tag(const std::string& name);
  const Stmt* loop_control(Stmt::Kind kind);
  Body block(std::string_view end);
  Body macro_body(Stmt& macro, std::string_view end);
  void signature(Stmt& macro);
  Target target(const TupleRules& rules);
  Target to_target(const Expr& expr);

  std::vector<Token> tokens_;
  Program& program_;
  size_t at_ = 0;
  int nesting_ = 0;
  int loops_ = 0;          // around the tag, inside the macro
  Stmt* macro_ = nullptr;  // the innermost one
};

// --- expressions ---------------------------------------------------------------------------------

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

// --- tags ----------------------------------------------------------------------------------------

// Up to a tag that is named in ends, whose name is then the current token. Without ends, to the
// end of the template.
Parser::Body Parser::statements(std::initializer_list<std::string_view> ends,
                                std::string_view inside) {
  const Level level(*this);
  Body body;
  while (true) {
    const Token& token = current();
    if (token.kind == Kind::kData) {
      Stmt* data = make(Stmt::Kind::kData);
      data->data = Text::own(next().text);
      body.push_back(data);
    } else if (token.kind == Kind::kPrintBegin) {
      next();
      Stmt* print = make(Stmt::Kind::kPrint);
      print->expr = tuple({});
      expect_kind(Kind::kPrintEnd, "}}");
      body.push_back(print);
    } else if (token.kind == Kind::kTagBegin) {
      next();
      for (const std::string_view end : ends) {
        if (current().is_name(end)) return body;
      }
      body.push_back(tag());
      expect_kind(Kind::kTagEnd, "%}");
    } else {
      if (ends.size() > 0) fail(fmt::format("{} is not closed by {}", inside, *(ends.end() - 1)));
      return body;
    }
  }
}

// A body behind the end of its opening tag, up to and with the name of the closing one.
Parser::Body Parser::block(std::string_view end) {
  skip(":");
  expect_kind(Kind::kTagEnd, "%}");
  Body body = statements({end}, end.substr(3));
  next();
  return body;
}

const Stmt* Parser::tag() {
  const std::string name = expect_name();
  if (name == "if") return if_tag();
  if (name == "for") return for_tag();
  if (name == "set") return set_tag();
  if (name == "macro") return macro_tag();
  if (name == "call") return call_tag();
  if (name == "filter") return filter_tag();
  if (name == "with") return with_tag();
  if (name == "generation" || name == "block") return scope_tag(name);
  if (name == "break") return loop_control(Stmt::Kind::kBreak);
  if (name == "continue") return loop_control(Stmt::Kind::kContinue);
  if (name == "print") {
    Stmt* print = make(Stmt::Kind::kScope);
    do {
      Stmt* one = make(Stmt::Kind::kPrint);
      one->expr = expression();
      print->body.push_back(one);
    } while (skip(","));
    return print;
  }
  for (const std::string_view known : {"include", "import", "from", "extends", "autoescape"}) {
    if (name == known) fail(fmt::format("{} is not available to chat templates here", name));
  }
  fail(fmt::format("unknown tag '{}'", name));
}

const Stmt* Parser::if_tag() {
  Stmt* first = make(Stmt::Kind::kIf);
  Stmt* last = first;
  last->expr = tuple({.condition = false});
  while (true) {
    skip(":");
    expect_kind(Kind::kTagEnd, "%}");
    last->body = statements({"elif", "else", "endif"}, "if");
    const std::string end = next().text;
    if (end == "endif") return first;
    if (end == "else") {
      last->otherwise = block("endif");
      return first;
    }
    Stmt* branch = make(Stmt::Kind::kIf);
    branch->expr = tuple({.condition = false});
    last->otherwise.push_back(branch);
    last = branch;
  }
}

const Stmt* Parser::for_tag() {
  Stmt* loop = make(Stmt::Kind::kFor);
  loop->targets.push_back(target({.simple = true, .end_name = "in"}));
  if (!skip_name("in")) fail(fmt::format("expected 'in', got '{}'", shown(current())));
  loop->expr = tuple({.condition = false, .end_name = "recursive"});
  if (skip_name("if")) loop->condition = expression();
  if (current().is_name("recursive")) fail("recursive loops are not available; use a macro");
  skip(":");
  expect_kind(Kind::kTagEnd, "%}");
  ++loops_;
  loop->body = statements({"else", "endfor"}, "for");
  --loops_;
  if (next().text == "else") loop->otherwise = block("endfor");
  return loop;
}

const Stmt* Parser::set_tag() {
  Stmt* set = make(Stmt::Kind::kSet);
  set->targets.push_back(target({.simple = true, .namespaces = true}));
  if (skip("=")) {
    set->expr = tuple({});
    return set;
  }
  set->kind = Stmt::Kind::kSetBlock;
  for (const Expr* input = nullptr; skip("|"); input = set->filter) set->filter = filter(input);
  set->body = block("endset");
  return set;
}

void Parser::signature(Stmt& macro) {
  expect("(");
  while (!current().is(")")) {
    if (!macro.parameters.empty()) expect(",");
    if (current().is(")")) break;
    Parameter parameter;
    parameter.name = expect_name();
    parameter.symbol = program_.intern(parameter.name);
    if (skip("=")) {
      parameter.otherwise = expression();
    } else if (!macro.parameters.empty() && macro.parameters.back().otherwise != nullptr) {
      fail(
          fmt::format("parameter {} needs a default, since the one before has it", parameter.name));
    }
    macro.parameters.push_back(std::move(parameter));
  }
  expect(")");
}

Parser::Body Parser::macro_body(Stmt& macro, std::string_view end) {
  Stmt* outer_macro = std::exchange(macro_, &macro);
  const int outer_loops = std::exchange(loops_, 0);
  Body body = block(end);
  macro_ = outer_macro;
  loops_ = outer_loops;
  return body;
}

const Stmt* Parser::macro_tag() {
  Stmt* macro = make(Stmt::Kind::kMacro);
  macro->name = expect_name();
  macro->symbol = program_.intern(macro->name);
  signature(*macro);
  macro->body = macro_body(*macro, "endmacro");
  return macro;
}

const Stmt* Parser::call_tag() {
  Stmt* block_call = make(Stmt::Kind::kCallBlock);
  if (current().is("(")) signature(*block_call);
  block_call->expr = expression();
  if (block_call->expr->op != Op::kCall) fail("expected a call behind call");
  block_call->name = "caller";
  block_call->body = macro_body(*block_call, "endcall");
  return block_call;
}

const Stmt* Parser::filter_tag() {
  Stmt* block_filter = make(Stmt::Kind::kFilterBlock);
  block_filter->filter = filter(nullptr);
  while (skip("|")) block_filter->filter = filter(block_filter->filter);
  block_filter->body = block("endfilter");
  return block_filter;
}

const Stmt* Parser::with_tag() {
  Stmt* with = make(Stmt::Kind::kWith);
  while (current().kind != Kind::kTagEnd) {
    if (!with->targets.empty()) expect(",");
    with->targets.push_back(to_target(*primary()));
    expect("=");
    with->values.push_back(expression());
  }
  with->body = block("endwith");
  return with;
}

const Stmt* Parser::scope_tag(const std::string& name) {
  Stmt* scope = make(Stmt::Kind::kScope);
  if (name == "block") {
    expect_name();
    while (skip_name("scoped") || skip_name("required")) {
    }
  }
  const int outer_loops = std::exchange(loops_, 0);
  scope->body = block("end" + name);
  loops_ = outer_loops;
  if (name == "block" && current().kind == Kind::kName) next();
  return scope;
}

const Stmt* Parser::loop_control(Stmt::Kind kind) {
  if (loops_ == 0) fail("break and continue belong into a loop");
  return make(kind);
}

Target Parser::target(const TupleRules& rules) { return to_target(*tuple(rules)); }

Target Parser::to_target(const Expr& expr) {
  Target target;
  if (expr.op == Op::kName || (expr.op == Op::kGetAttr && expr.symbol >= 0)) {
    target.symbol = expr.symbol;
    target.attribute = expr.name;
    return target;
  }
  if (expr.op != Op::kTuple) fail("cannot assign to this; a name is expected");
  target.is_tuple = true;
  for (const Expr* part : expr.args) target.parts.push_back(to_target(*part));
  return target;
}

}  // namespace

int Program::intern(const std::string& name) {
  const auto [found, added] = symbol_ids.emplace(name, static_cast<int>(symbols.size()));
  if (added) symbols.push_back(name);
  return found->second;
}

void parse(std::string_view source, Program& program) { Parser(tokenize(source), program).run(); }

}  // namespace eyrie::chat::jinja
