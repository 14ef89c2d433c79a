// Recursive descent over the tokens. Expressions, with jinja2's precedence, are in
// jinja_parse_expressions.cpp; tags in jinja_parser.cpp.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/jinja_ast.h"

namespace eyrie::chat::jinja {

inline constexpr int kMaxNesting = 100;  // of brackets, operators before an operand and tags

class Parser {
 public:
  using Kind = Token::Kind;

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

}  // namespace eyrie::chat::jinja
