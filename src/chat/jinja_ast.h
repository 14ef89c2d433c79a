// A parsed template. All nodes live in their Program and point to each other; a Program does not
// change after parsing, so any number of threads may render it.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "chat/jinja_lexer.h"
#include "chat/jinja_value.h"

namespace eyrie::chat::jinja {

class Interpreter;
using FilterFn = Value (*)(Interpreter& in, const Value& input, Args& args);
using TestFn = bool (*)(Interpreter& in, const Value& input, Args& args);

enum class Op {
  kConst,
  kName,
  kList,
  kTuple,
  kDict,     // key, value, key, value, …
  kGetAttr,  // object; name
  kGetItem,  // object, index
  kSlice,    // object, start, stop, step; null = left out
  kCall,     // callee, positional…
  kFilter,   // input (null in a filter block), positional…
  kTest,     // input, positional…
  kNot,
  kNeg,
  kPos,
  kAnd,
  kOr,
  kAdd,
  kSub,
  kMul,
  kDiv,
  kFloorDiv,
  kMod,
  kPow,
  kConcat,
  kCompare,    // first, then one operand an entry of comparisons
  kCondition,  // value, condition, otherwise (null = undefined)
};

enum class Comparison {
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn
};

struct Expr {
  Op op = Op::kConst;
  int line = 1;
  Value constant{};
  int symbol = -1;     // of a name
  std::string name{};  // of an attribute, filter or test
  FilterFn filter = nullptr;
  TestFn test = nullptr;
  std::vector<const Expr*> args{};
  std::vector<std::pair<std::string, const Expr*>> named{};
  const Expr* star = nullptr;       // f(*star)
  const Expr* star_star = nullptr;  // f(**star_star)
  std::vector<Comparison> comparisons{};
};

// What set and for assign to: a name, ns.attribute, or several.
struct Target {
  int symbol = -1;
  std::string attribute{};
  std::vector<Target> parts{};
  bool is_tuple = false;
};

struct Parameter {
  int symbol = -1;
  std::string name{};
  const Expr* otherwise = nullptr;
};

struct Stmt {
  enum class Kind {
    kData,
    kPrint,
    kIf,  // condition, body, otherwise (which holds the elif)
    kFor,
    kSet,
    kSetBlock,
    kMacro,
    kCallBlock,
    kFilterBlock,
    kWith,
    kScope,  // generation, block: a body with names of its own
    kBreak,
    kContinue,
  };
  Kind kind = Kind::kData;
  int line = 1;
  Text data{};
  const Expr* expr = nullptr;       // printed, condition, iterated, assigned, call
  const Expr* condition = nullptr;  // of a for
  const Expr* filter = nullptr;     // of a filter block or a set block
  std::vector<Target> targets{};    // one, but of with
  std::vector<const Expr*> values{};
  std::vector<Parameter> parameters{};
  bool takes_varargs = false;  // a macro that reads varargs, kwargs or caller takes them
  bool takes_kwargs = false;
  bool takes_caller = false;
  std::string name{};  // of a macro
  int symbol = -1;
  std::vector<const Stmt*> body{};
  std::vector<const Stmt*> otherwise{};
};

struct Program {
  Program() = default;
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  int intern(const std::string& name);

  std::deque<Expr> exprs;
  std::deque<Stmt> stmts;
  std::vector<std::string> symbols;
  std::unordered_map<std::string, int> symbol_ids;
  std::vector<const Stmt*> body;
};

// Fills the empty program; throws SyntaxError.
void parse(std::string_view source, Program& program);

// nullptr if there is none of that name (jinja_filters.cpp, jinja_tests.cpp).
FilterFn find_filter(std::string_view name);
TestFn find_test(std::string_view name);

}  // namespace eyrie::chat::jinja
