// The functions every template has, and how arguments meet parameters.
#include <algorithm>
#include <ctime>

#include "chat/jinja_interpreter.h"

namespace eyrie::chat::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;  // as jinja2's sandbox has it

Value range(Interpreter& in, Args& args) {
  const Params params("range", args, {"start", "stop", "step"}, 1);
  const bool one = params.find(1) == nullptr;
  const int64_t start = one ? 0 : params.integer(0, 0);
  const int64_t stop = params.integer(one ? 0 : 1, 0);
  const int64_t step = params.integer(2, 1);
  if (step == 0) throw TemplateError("range() arg 3 must not be zero");
  const int64_t distance = step > 0 ? stop - start : start - stop;
  const int64_t stride = step > 0 ? step : -step;
  const int64_t count = distance <= 0 ? 0 : (distance - 1) / stride + 1;
  if (count > kMaxRange) {
    throw TemplateError(
        fmt::format("Range too big. The sandbox blocks ranges larger than {}.", kMaxRange));
  }
  std::vector<Value> items;
  for (int64_t i = 0; i < count; ++i) items.emplace_back(Int{start + i * step});
  std::string shown = fmt::format("range({}, {}", start, stop);
  shown += step == 1 ? ")" : fmt::format(", {})", step);
  return make_list(std::move(items), in.budget(), Flavor::kRange, std::move(shown));
}

// The pairs of a mapping, or of a sequence of pairs.
std::vector<std::pair<Value, Value>> pairs_of(Interpreter& in, const Value& value) {
  if (value.is_dict()) return value.dict().entries;
  std::vector<std::pair<Value, Value>> entries;
  for (const Value& item : in.iterate(value)) {
    const Items pair = in.iterate(item);
    if (pair.size() != 2) throw TemplateError("a dict is made of pairs");
    set_entry(entries, pair.all()[0], pair.all()[1], in.budget());
  }
  return entries;
}

std::vector<std::pair<Value, Value>> dict_arguments(Interpreter& in, const char* function,
                                                    Args& args) {
  if (args.positional.size() > 1) {
    throw TemplateError(fmt::format("{} expected at most 1 argument", function));
  }
  std::vector<std::pair<Value, Value>> entries;
  if (!args.positional.empty()) entries = pairs_of(in, args.positional[0]);
  for (auto& [name, value] : args.named) {
    set_entry(entries, Value::string(name), std::move(value), in.budget());
  }
  return entries;
}

Value dict(Interpreter& in, Args& args) {
  return make_dict(dict_arguments(in, "dict", args), in.budget());
}

Value make_namespace(Interpreter& in, Args& args) {
  std::vector<std::pair<std::string, Value>> attributes;
  for (auto& [key, value] : dict_arguments(in, "namespace", args)) {
    if (key.is_string()) attributes.emplace_back(key.text().bytes, std::move(value));
  }
  return in.make_namespace(std::move(attributes));
}

Value raise_exception(Interpreter& in, Args& args) {
  const Params params("raise_exception", args, {"message"}, 1);
  throw TemplateError(to_text(params.get(0), in.budget()).bytes);
}

Value strftime_now(Interpreter& in, Args& args) {
  const Params params("strftime_now", args, {"format"}, 1);
  if (!params.get(0).is_string()) throw TemplateError("strftime_now needs a format");
  const std::string& format = params.get(0).text().bytes;
  if (format.empty()) return Value::string("");
  const std::tm time = in.local_time();
  char buffer[1024];
  const size_t size = std::strftime(buffer, sizeof buffer, format.c_str(), &time);
  TextBuilder out(in.budget());
  out.mixed({buffer, size}, params.get(0).text().has_outside());
  return out.take();
}

// joiner(", "): nothing the first time it is called, then the separator.
class Joiner final : public Object {
 public:
  explicit Joiner(Value separator) : separator_(std::move(separator)) {}
  std::string type_name() const override { return "Joiner"; }
  bool is_callable() const override { return true; }
  Value call(Interpreter&, Args) override {
    return std::exchange(used_, true) ? separator_ : Value::string("");
  }

 private:
  Value separator_;
  bool used_ = false;
};

Value joiner(Interpreter&, Args& args) {
  const Params params("joiner", args, {"sep"});
  const Value* separator = params.find(0);
  if (separator != nullptr && !separator->is_string()) {
    throw TemplateError("joiner needs a string");
  }
  return std::shared_ptr<Object>(
      std::make_shared<Joiner>(separator != nullptr ? *separator : Value::string(", ")));
}

// cycler("odd", "even"): next() gives one after the other.
class Cycler final : public Object, public std::enable_shared_from_this<Cycler> {
 public:
  explicit Cycler(Value items) : items_(std::move(items)) {}
  std::string type_name() const override { return "Cycler"; }
  int depth() const override { return items_.list().depth + 1; }
  std::optional<Value> attribute(std::string_view name, Interpreter&) override {
    if (name == "current") return items_.list().items[at_];
    if (name == "next" || name == "reset") {
      return Value(std::shared_ptr<Object>(std::make_shared<Step>(shared_from_this(), name)));
    }
    return std::nullopt;
  }

 private:
  class Step final : public Object {
   public:
    Step(std::shared_ptr<Cycler> cycler, std::string_view name)
        : cycler_(std::move(cycler)), advances_(name == "next") {}
    std::string type_name() const override { return "method"; }
    bool is_callable() const override { return true; }
    int depth() const override { return cycler_->depth() + 1; }
    Value call(Interpreter&, Args) override {
      const auto& items = cycler_->items_.list().items;
      if (!advances_) return cycler_->at_ = 0, Value();
      return items[std::exchange(cycler_->at_, (cycler_->at_ + 1) % items.size())];
    }

   private:
    std::shared_ptr<Cycler> cycler_;
    bool advances_;
  };
  Value items_;
  size_t at_ = 0;
};

Value cycler(Interpreter& in, Args& args) {
  if (args.positional.empty()) throw TemplateError("cycler needs at least one item");
  return std::shared_ptr<Object>(
      std::make_shared<Cycler>(make_list(std::move(args.positional), in.budget())));
}

}  // namespace

BuiltinFn find_builtin(std::string_view name) {
  static constexpr std::pair<std::string_view, BuiltinFn> kBuiltins[] = {
      {"range", range},
      {"dict", dict},
      {"joiner", joiner},
      {"namespace", make_namespace},
      {"cycler", cycler},
      {"raise_exception", raise_exception},
      {"strftime_now", strftime_now}};
  for (const auto& [known, function] : kBuiltins) {
    if (known == name) return function;
  }
  return nullptr;
}

Params::Params(std::string_view function, const Args& args,
               std::initializer_list<std::string_view> names, size_t num_required)
    : function_(function) {
  if (args.positional.size() > names.size()) {
    throw TemplateError(fmt::format("{}() takes at most {} arguments ({} given)", function,
                                    names.size(), args.positional.size()));
  }
  for (size_t i = 0; i < args.positional.size(); ++i) values_[i] = &args.positional[i];
  for (const auto& [name, value] : args.named) {
    const auto* const found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) {
      throw TemplateError(
          fmt::format("{}() got an unexpected keyword argument '{}'", function, name));
    }
    const Value*& slot = values_[found - names.begin()];
    if (slot != nullptr) {
      throw TemplateError(
          fmt::format("{}() got multiple values for argument '{}'", function, name));
    }
    slot = &value;
  }
  for (size_t i = 0; i < num_required; ++i) {
    if (values_[i] == nullptr) {
      throw TemplateError(
          fmt::format("{}() misses the argument '{}'", function, *(names.begin() + i)));
    }
  }
}

bool Params::flag(size_t i, bool otherwise) const {
  return values_[i] != nullptr ? truthy(*values_[i]) : otherwise;
}

int64_t Params::integer(size_t i, int64_t otherwise) const {
  return values_[i] != nullptr ? to_index(*values_[i], function_ + "()'s argument") : otherwise;
}

const Value* Params::not_none(size_t i) const {
  return values_[i] != nullptr && values_[i]->is_none() ? nullptr : values_[i];
}

}  // namespace eyrie::chat::jinja
