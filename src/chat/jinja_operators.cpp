// Arithmetic and slices as Python has them.
#include <algorithm>
#include <cmath>
#include <limits>

#include "chat/jinja_interpreter.h"

namespace eyrie::chat::jinja {
namespace {

[[noreturn]] void unsupported(std::string_view symbol, const Value& a, const Value& b) {
  throw TemplateError(fmt::format("unsupported operand type(s) for {}: '{}' and '{}'", symbol,
                                  type_name(a), type_name(b)));
}

[[noreturn]] void overflow() { throw TemplateError("an integer grows too large"); }

std::string_view symbol_of(Op op) {
  switch (op) {
    case Op::kAdd:
      return "+";
    case Op::kSub:
      return "-";
    case Op::kMul:
      return "*";
    case Op::kDiv:
      return "/";
    case Op::kFloorDiv:
      return "//";
    case Op::kMod:
      return "%";
    default:
      return "**";
  }
}

Value int_power(Int base, Int exponent) {
  if (exponent < 0) {
    if (base == 0) throw TemplateError("0.0 cannot be raised to a negative power");
    return std::pow(static_cast<double>(base), static_cast<double>(exponent));
  }
  Int result = 1;
  if (base == 0 || base == 1) return exponent == 0 ? Int{1} : base;
  if (base == -1) return exponent % 2 == 0 ? Int{1} : Int{-1};
  if (exponent > 128) overflow();
  for (Int i = 0; i < exponent; ++i) {
    if (__builtin_mul_overflow(result, base, &result)) overflow();
  }
  return result;
}

Value int_arithmetic(Op op, Int a, Int b) {
  Int result = 0;
  bool overflows = false;
  if ((op == Op::kDiv || op == Op::kFloorDiv || op == Op::kMod) && b == 0) {
    throw TemplateError("division by zero");
  }
  switch (op) {
    case Op::kAdd:
      overflows = __builtin_add_overflow(a, b, &result);
      break;
    case Op::kSub:
      overflows = __builtin_sub_overflow(a, b, &result);
      break;
    case Op::kMul:
      overflows = __builtin_mul_overflow(a, b, &result);
      break;
    case Op::kDiv:
      return static_cast<double>(a) / static_cast<double>(b);
    case Op::kPow:
      return int_power(a, b);
    default: {
      if (b == -1) {  // the one quotient that may not fit
        if (op == Op::kMod) return Int{0};
        overflows = __builtin_sub_overflow(Int{0}, a, &result);
        break;
      }
      const Int rest = a % b;
      const bool towards_zero = rest != 0 && (rest < 0) != (b < 0);
      if (op == Op::kMod) return towards_zero ? rest + b : rest;
      return a / b - (towards_zero ? 1 : 0);
    }
  }
  if (overflows) overflow();
  return result;
}

Value float_arithmetic(Op op, double a, double b) {
  if ((op == Op::kDiv || op == Op::kFloorDiv || op == Op::kMod) && b == 0) {
    throw TemplateError("float division by zero");
  }
  switch (op) {
    case Op::kAdd:
      return a + b;
    case Op::kSub:
      return a - b;
    case Op::kMul:
      return a * b;
    case Op::kDiv:
      return a / b;
    case Op::kPow:
      if (a == 0 && b < 0) throw TemplateError("0.0 cannot be raised to a negative power");
      if (a < 0 && std::floor(b) != b) throw TemplateError("complex numbers are not available");
      return std::pow(a, b);
    default: {
      double rest = std::fmod(a, b);
      if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
      if (rest == 0) rest = std::copysign(0.0, b);
      if (op == Op::kMod) return rest;
      const double quotient = (a - rest) / b;
      const double floored = std::floor(quotient);
      return quotient - floored > 0.5 ? floored + 1 : floored;
    }
  }
}

Value repeated(const Value& sequence, Int count, Budget& budget) {
  const size_t times = count <= 0 ? 0 : static_cast<size_t>(std::min<Int>(count, 1 << 30));
  if (sequence.is_string()) {
    const Text& text = sequence.text();
    budget.check_size(text.size() * times);
    TextBuilder out(budget);
    for (size_t i = 0; i < times && text.size() > 0; ++i) {
      budget.step();
      out.add(text);
    }
    return out.take();
  }
  const List& list = sequence.list();
  budget.check_size(list.items.size() * times * sizeof(Value));
  std::vector<Value> items;
  for (size_t i = 0; i < times && !list.items.empty(); ++i) {
    items.insert(items.end(), list.items.begin(), list.items.end());
  }
  return make_list(std::move(items), budget, list.flavor);
}

bool is_sequence(const Value& value) {
  return value.is_string() || (value.is_list() && (value.list().flavor == Flavor::kList ||
                                                   value.list().flavor == Flavor::kTuple));
}

std::optional<Value> joined(const Value& a, const Value& b, Budget& budget) {
  if (a.is_string() && b.is_string()) {
    TextBuilder out(budget);
    out.add(a.text());
    out.add(b.text());
    return out.take();
  }
  if (!a.is_list() || !b.is_list() || !is_sequence(a) || a.list().flavor != b.list().flavor) {
    return std::nullopt;
  }
  std::vector<Value> items = a.list().items;
  items.insert(items.end(), b.list().items.begin(), b.list().items.end());
  return make_list(std::move(items), budget, a.list().flavor);
}

}  // namespace

Value binary(Op op, const Value& a, const Value& b, Budget& budget) {
  for (const Value* side : {&a, &b}) {
    if (side->is_undefined()) throw TemplateError(side->undefined_message());
  }
  if (a.is_number() && b.is_number()) {
    return a.is_float() || b.is_float() ? float_arithmetic(op, a.number(), b.number())
                                        : int_arithmetic(op, a.integer(), b.integer());
  }
  if (op == Op::kAdd) {
    if (auto both = joined(a, b, budget)) return std::move(*both);
  }
  if (op == Op::kMul) {
    if (is_sequence(a) && (b.is_int() || b.is_bool())) return repeated(a, b.integer(), budget);
    if (is_sequence(b) && (a.is_int() || a.is_bool())) return repeated(b, a.integer(), budget);
  }
  unsupported(symbol_of(op), a, b);
}

Value negate(const Value& value) {
  if (value.is_undefined()) throw TemplateError(value.undefined_message());
  if (value.is_float()) return -value.number();
  if (!value.is_number()) {
    throw TemplateError(fmt::format("bad operand type for unary -: '{}'", type_name(value)));
  }
  return int_arithmetic(Op::kSub, 0, value.integer());
}

int64_t to_index(const Value& value, std::string_view what) {
  if (value.is_undefined()) throw TemplateError(value.undefined_message());
  if (!value.is_int() && !value.is_bool()) {
    throw TemplateError(fmt::format("{} must be an integer, not {}", what, type_name(value)));
  }
  constexpr Int kMost = std::numeric_limits<int64_t>::max() / 2;  // room to add a length
  return static_cast<int64_t>(std::clamp<Int>(value.integer(), -kMost, kMost));
}

int64_t length_of(const Value& value) {
  if (value.is_undefined()) return 0;
  if (value.is_string()) return num_characters(value.text().bytes);
  if (value.is_dict()) return static_cast<int64_t>(value.dict().entries.size());
  if (value.is_list() && value.list().has_length()) {
    return static_cast<int64_t>(value.list().items.size());
  }
  throw TemplateError(fmt::format("object of type '{}' has no len()", type_name(value)));
}

SlicePlan plan_slice(int64_t length, const Value& start, const Value& stop, const Value& step) {
  SlicePlan plan;
  if (!step.is_none()) plan.step = to_index(step, "a slice's step");
  if (plan.step == 0) throw TemplateError("slice step cannot be zero");
  const bool down = plan.step < 0;
  const int64_t lowest = down ? -1 : 0;
  const int64_t highest = down ? length - 1 : length;
  const auto bound = [&](const Value& value, int64_t otherwise) {
    if (value.is_none()) return otherwise;
    int64_t at = to_index(value, "a slice's bound");
    if (at < 0) at += length;
    return std::clamp(at, lowest, highest);
  };
  plan.start = bound(start, down ? highest : lowest);
  const int64_t end = bound(stop, down ? lowest : highest);
  if (down ? plan.start > end : plan.start < end) {
    const int64_t distance = down ? plan.start - end : end - plan.start;
    const int64_t stride = down ? -plan.step : plan.step;
    plan.count = (distance - 1) / stride + 1;
  }
  return plan;
}

Value slice_value(const Value& object, const SlicePlan& plan, Budget& budget) {
  if (object.is_list()) {
    std::vector<Value> items;
    for (int64_t i = 0; i < plan.count; ++i) {
      items.push_back(object.list().items[static_cast<size_t>(plan.start + i * plan.step)]);
    }
    const Flavor flavor = object.list().flavor;
    return make_list(std::move(items), budget, flavor == Flavor::kRange ? Flavor::kList : flavor);
  }
  const Text& text = object.text();
  budget.look(text.size());
  if (plan.step == 1) {
    const size_t begin = offset_of_character(text.bytes, plan.start);
    const size_t end =
        begin + offset_of_character(std::string_view(text.bytes).substr(begin), plan.count);
    return slice(text, begin, end, budget);
  }
  std::vector<size_t> begins;  // of each character, and the end
  for (size_t at = 0; at < text.size(); next_character(text.bytes, at)) begins.push_back(at);
  begins.push_back(text.size());
  TextBuilder out(budget);
  for (int64_t i = 0; i < plan.count; ++i) {
    const auto index = static_cast<size_t>(plan.start + i * plan.step);
    out.add(text, begins[index], begins[index + 1]);
  }
  return out.take();
}

}  // namespace eyrie::chat::jinja
