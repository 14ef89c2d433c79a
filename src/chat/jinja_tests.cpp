// The tests behind "is".
#include <algorithm>

#include "chat/jinja_interpreter.h"

namespace eyrie::chat::jinja {
namespace {

const Value& only(const char* test, Args& args) { return Params(test, args, {"other"}, 1).get(0); }

// Tests of one value's kind.
template <bool (*Holds)(const Value&)>
bool kind_test(Interpreter&, const Value& input, Args& args) {
  const Params params("test", args, {});
  return Holds(input);
}

bool is_defined(const Value& v) { return !v.is_undefined(); }
bool is_undefined(const Value& v) { return v.is_undefined(); }
bool is_none(const Value& v) { return v.is_none(); }
bool is_string(const Value& v) { return v.is_string(); }
bool is_boolean(const Value& v) { return v.is_bool(); }
bool is_true(const Value& v) { return v.is_bool() && v.boolean(); }
bool is_false(const Value& v) { return v.is_bool() && !v.boolean(); }
bool is_integer(const Value& v) { return v.is_int(); }
bool is_float(const Value& v) { return v.is_float(); }
bool is_number(const Value& v) { return v.is_number(); }
bool is_mapping(const Value& v) { return v.is_dict(); }
bool is_sequence(const Value& v) {
  return v.is_string() || v.is_dict() || v.is_undefined() || (v.is_list() && v.list().has_index());
}
bool is_iterable(const Value& v) {
  return v.is_string() || v.is_dict() || v.is_undefined() || v.is_list();
}
// Undefined can be called, to say what is undefined.
bool is_callable(const Value& v) {
  return v.is_undefined() || (v.is_object() && v.object().is_callable());
}
bool is_escaped(const Value&) { return false; }

Value rest_of(Interpreter& in, const Value& input, const Value& divisor) {
  if (input.is_string()) throw TemplateError("a string has no remainder");
  return binary(Op::kMod, input, divisor, in.budget());
}

bool t_odd(Interpreter& in, const Value& input, Args& args) {
  const Params params("odd", args, {});
  return equal(rest_of(in, input, 2), 1, in.budget());
}

bool t_even(Interpreter& in, const Value& input, Args& args) {
  const Params params("even", args, {});
  return equal(rest_of(in, input, 2), 0, in.budget());
}

bool t_divisibleby(Interpreter& in, const Value& input, Args& args) {
  const Params params("divisibleby", args, {"num"}, 1);
  return equal(rest_of(in, input, params.get(0)), 0, in.budget());
}

bool t_eq(Interpreter& in, const Value& input, Args& args) {
  return equal(input, only("eq", args), in.budget());
}
bool t_ne(Interpreter& in, const Value& input, Args& args) {
  return !equal(input, only("ne", args), in.budget());
}
bool t_lt(Interpreter& in, const Value& input, Args& args) {
  return compare(input, only("lt", args), "<", in.budget()) < 0;
}
bool t_le(Interpreter& in, const Value& input, Args& args) {
  return compare(input, only("le", args), "<=", in.budget()) <= 0;
}
bool t_gt(Interpreter& in, const Value& input, Args& args) {
  return compare(input, only("gt", args), ">", in.budget()) > 0;
}
bool t_ge(Interpreter& in, const Value& input, Args& args) {
  return compare(input, only("ge", args), ">=", in.budget()) >= 0;
}
bool t_in(Interpreter& in, const Value& input, Args& args) {
  return in.contains(only("in", args), input);
}
bool t_sameas(Interpreter&, const Value& input, Args& args) {
  return input.same_object(only("sameas", args));
}

bool t_upper(Interpreter& in, const Value& input, Args& args) {
  const Params params("upper", args, {});
  return has_case(to_text(input, in.budget()).bytes, true);
}
bool t_lower(Interpreter& in, const Value& input, Args& args) {
  const Params params("lower", args, {});
  return has_case(to_text(input, in.budget()).bytes, false);
}

bool t_filter(Interpreter&, const Value& input, Args& args) {
  const Params params("filter", args, {});
  return input.is_string() && find_filter(input.text().bytes) != nullptr;
}
bool t_test(Interpreter&, const Value& input, Args& args) {
  const Params params("test", args, {});
  return input.is_string() && find_test(input.text().bytes) != nullptr;
}

}  // namespace

TestFn find_test(std::string_view name) {
  static constexpr std::pair<std::string_view, TestFn> kTests[] = {
      {"defined", kind_test<is_defined>},
      {"undefined", kind_test<is_undefined>},
      {"none", kind_test<is_none>},
      {"string", kind_test<is_string>},
      {"boolean", kind_test<is_boolean>},
      {"true", kind_test<is_true>},
      {"false", kind_test<is_false>},
      {"integer", kind_test<is_integer>},
      {"float", kind_test<is_float>},
      {"number", kind_test<is_number>},
      {"mapping", kind_test<is_mapping>},
      {"sequence", kind_test<is_sequence>},
      {"iterable", kind_test<is_iterable>},
      {"callable", kind_test<is_callable>},
      {"escaped", kind_test<is_escaped>},
      {"odd", t_odd},
      {"even", t_even},
      {"divisibleby", t_divisibleby},
      {"eq", t_eq},
      {"==", t_eq},
      {"equalto", t_eq},
      {"ne", t_ne},
      {"!=", t_ne},
      {"lt", t_lt},
      {"<", t_lt},
      {"lessthan", t_lt},
      {"le", t_le},
      {"<=", t_le},
      {"gt", t_gt},
      {">", t_gt},
      {"greaterthan", t_gt},
      {"ge", t_ge},
      {">=", t_ge},
      {"in", t_in},
      {"sameas", t_sameas},
      {"upper", t_upper},
      {"lower", t_lower},
      {"filter", t_filter},
      {"test", t_test},
  };
  for (const auto& [known, test] : kTests) {
    if (known == name) return test;
  }
  return nullptr;
}

}  // namespace eyrie::chat::jinja
