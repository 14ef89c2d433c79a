#include "chat/jinja_parser.h"

namespace eyrie::chat::jinja {

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

int Program::intern(const std::string& name) {
  const auto [found, added] = symbol_ids.emplace(name, static_cast<int>(symbols.size()));
  if (added) symbols.push_back(name);
  return found->second;
}

void parse(std::string_view source, Program& program) { Parser(tokenize(source), program).run(); }

}  // namespace eyrie::chat::jinja
