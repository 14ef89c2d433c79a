// The filters on lists, dicts and whatever can be walked. What is lazy in jinja2 gives a generator
// here too, though its items are made at once: it has no length, is true and can be walked once.
#include <algorithm>

#include "chat/jinja_filters.h"

namespace eyrie::chat::jinja {
namespace {

// The value an attribute filter looks at: "a.b.0" of an item, with default where it is undefined.
class Getter {
 public:
  Getter(Interpreter& in, const Value* attribute, const Value* otherwise = nullptr)
      : in_(in), otherwise_(otherwise) {
    if (attribute == nullptr || attribute->is_none()) return;
    if (!attribute->is_string()) {
      parts_.push_back(*attribute);
      return;
    }
    const std::string& path = attribute->text().bytes;
    for (size_t begin = 0; begin <= path.size();) {
      const size_t end = std::min(path.find('.', begin), path.size());
      const std::string part = path.substr(begin, end - begin);
      const bool digits = !part.empty() && std::all_of(part.begin(), part.end(),
                                                       [](char c) { return c >= '0' && c <= '9'; });
      const auto number = digits ? parse_int(part, 10) : std::nullopt;
      parts_.push_back(number ? Value(*number) : Value::string(part));
      begin = end + 1;
    }
  }
  Value operator()(Value item) const {
    for (const Value& part : parts_) {
      item = in_.item(item, part);
      if (otherwise_ != nullptr && item.is_undefined()) item = *otherwise_;
    }
    return item;
  }

 private:
  Interpreter& in_;
  const Value* otherwise_;
  std::vector<Value> parts_;
};

Value without_case(Interpreter& in, Value value, bool case_sensitive) {
  if (case_sensitive || !value.is_string()) return value;
  return map_text(value.text(), to_lower, in.budget());
}

Value generator(Interpreter& in, std::vector<Value> items) {
  return make_list(std::move(items), in.budget(), Flavor::kGenerator);
}

// Items sorted by their keys, equal ones in the order they came.
std::vector<Value> sorted(Interpreter& in, const std::vector<Value>& items,
                          const std::vector<Value>& keys, bool reverse) {
  std::vector<size_t> order(items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return reverse ? compare(keys[b], keys[a], "<", in.budget()) < 0
                   : compare(keys[a], keys[b], "<", in.budget()) < 0;
  });
  std::vector<Value> out;
  for (const size_t i : order) out.push_back(items[i]);
  return out;
}

Value f_length(Interpreter&, const Value& input, Args& args) {
  const Params params("length", args, {});
  return Int{length_of(input)};
}

Value f_first(Interpreter& in, const Value& input, Args& args) {
  const Params params("first", args, {});
  const Items items = in.iterate(input);
  if (items.size() == 0) return Value::undefined("No first item, sequence was empty.");
  return items.all().front();
}

Value f_last(Interpreter& in, const Value& input, Args& args) {
  const Params params("last", args, {});
  if (input.is_list() && input.list().flavor == Flavor::kGenerator) {
    throw TemplateError("'generator' object is not reversible");
  }
  const Items items = in.iterate(input);
  if (items.size() == 0) return Value::undefined("No last item, sequence was empty.");
  return items.all().back();
}

Value f_join(Interpreter& in, const Value& input, Args& args) {
  const Params params("join", args, {"d", "attribute"});
  const Text separator = params.find(0) != nullptr ? to_text(params.get(0), in.budget()) : Text{};
  const Getter getter(in, params.find(1));
  const Items items = in.iterate(input);
  TextBuilder out(in.budget());
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out.add(separator);
    out.add(to_text(getter(items.all()[i]), in.budget()));
  }
  return out.take();
}

Value f_list(Interpreter& in, const Value& input, Args& args) {
  const Params params("list", args, {});
  return make_list(in.iterate(input).all(), in.budget());
}

Value f_reverse(Interpreter& in, const Value& input, Args& args) {
  const Params params("reverse", args, {});
  if (input.is_string()) {
    return slice_value(input, plan_slice(length_of(input), {}, {}, -1), in.budget());
  }
  const bool was_generator = input.is_list() && input.list().flavor == Flavor::kGenerator;
  std::vector<Value> items = in.iterate(input).all();
  std::reverse(items.begin(), items.end());
  return was_generator ? make_list(std::move(items), in.budget()) : generator(in, std::move(items));
}

Value f_items(Interpreter& in, const Value& input, Args& args) {
  const Params params("items", args, {});
  if (input.is_undefined()) return generator(in, {});
  if (!input.is_dict()) throw TemplateError("Can only get item pairs from a mapping.");
  std::vector<Value> items;
  for (const auto& [key, value] : input.dict().entries) {
    items.push_back(make_list({key, value}, in.budget(), Flavor::kTuple));
  }
  return generator(in, std::move(items));
}

Value f_dictsort(Interpreter& in, const Value& input, Args& args) {
  const Params params("dictsort", args, {"case_sensitive", "by", "reverse"});
  const bool by_value = params.find(1) != nullptr && params.get(1).is_text("value");
  if (params.find(1) != nullptr && !by_value && !params.get(1).is_text("key")) {
    throw TemplateError("You can only sort by either \"key\" or \"value\"");
  }
  if (!input.is_dict()) throw TemplateError("dictsort needs a mapping");
  std::vector<Value> items;
  std::vector<Value> keys;
  for (const auto& [key, value] : input.dict().entries) {
    items.push_back(make_list({key, value}, in.budget(), Flavor::kTuple));
    keys.push_back(without_case(in, by_value ? value : key, params.flag(0)));
  }
  return make_list(sorted(in, items, keys, params.flag(2)), in.budget());
}

// attribute="a,b" sorts by both.
Value f_sort(Interpreter& in, const Value& input, Args& args) {
  const Params params("sort", args, {"reverse", "case_sensitive", "attribute"});
  std::vector<Value> names;
  const Value* attribute = params.not_none(2);
  if (attribute != nullptr && attribute->is_string()) {
    const std::string& all = attribute->text().bytes;
    for (size_t begin = 0; begin <= all.size();) {
      const size_t end = std::min(all.find(',', begin), all.size());
      names.push_back(Value::string(all.substr(begin, end - begin)));
      begin = end + 1;
    }
  } else {
    names.push_back(attribute != nullptr ? *attribute : Value());
  }
  const Items items = in.iterate(input);
  std::vector<Value> keys;
  for (const Value& item : items.all()) {
    std::vector<Value> key;
    for (const Value& name : names) {
      key.push_back(without_case(in, Getter(in, &name)(item), params.flag(1)));
    }
    keys.push_back(make_list(std::move(key), in.budget()));
  }
  return make_list(sorted(in, items.all(), keys, params.flag(0)), in.budget());
}

Value f_unique(Interpreter& in, const Value& input, Args& args) {
  const Params params("unique", args, {"case_sensitive", "attribute"});
  const Getter getter(in, params.find(1));
  std::vector<Value> kept;
  std::vector<Value> seen;
  for (const Value& item : in.iterate(input)) {
    const Value key = without_case(in, getter(item), params.flag(0));
    require_hashable(key);
    const bool known = std::any_of(seen.begin(), seen.end(), [&](const Value& other) {
      return equal(key, other, in.budget());
    });
    if (known) continue;
    seen.push_back(key);
    kept.push_back(item);
  }
  return generator(in, std::move(kept));
}

Value extreme(Interpreter& in, const Value& input, const Params& params, bool greatest) {
  const Getter getter(in, params.find(1));
  const Items items = in.iterate(input);
  if (items.size() == 0) return Value::undefined("No aggregated item, sequence was empty.");
  size_t best = 0;
  Value best_key = without_case(in, getter(items.all()[0]), params.flag(0));
  for (size_t i = 1; i < items.size(); ++i) {
    const Value key = without_case(in, getter(items.all()[i]), params.flag(0));
    const int order = greatest ? compare(key, best_key, ">", in.budget())
                               : -compare(key, best_key, "<", in.budget());
    if (order > 0) {
      best = i;
      best_key = key;
    }
  }
  return items.all()[best];
}

Value f_min(Interpreter& in, const Value& input, Args& args) {
  return extreme(in, input, Params("min", args, {"case_sensitive", "attribute"}), false);
}

Value f_max(Interpreter& in, const Value& input, Args& args) {
  return extreme(in, input, Params("max", args, {"case_sensitive", "attribute"}), true);
}

Value f_sum(Interpreter& in, const Value& input, Args& args) {
  const Params params("sum", args, {"attribute", "start"});
  const Getter getter(in, params.find(0));
  Value total = params.find(1) != nullptr ? params.get(1) : Value(0);
  if (total.is_string()) throw TemplateError("sum() can't sum strings");
  for (const Value& item : in.iterate(input)) {
    total = binary(Op::kAdd, total, getter(item), in.budget());
  }
  return total;
}

Value f_map(Interpreter& in, const Value& input, Args& args) {
  std::vector<Value> out;
  if (!truthy(input)) return generator(in, {});
  if (args.positional.empty()) {
    const Params params("map", args, {"attribute", "default"}, 1);
    const Getter getter(in, params.find(0), params.not_none(1));
    for (const Value& item : in.iterate(input)) out.push_back(getter(item));
    return generator(in, std::move(out));
  }
  if (!args.positional[0].is_string()) throw TemplateError("map needs the name of a filter");
  const std::string name = args.positional[0].text().bytes;
  Args rest = args;
  rest.positional.erase(rest.positional.begin());
  for (const Value& item : in.iterate(input)) {
    in.budget().step();
    out.push_back(in.apply_filter(name, item, rest));
  }
  return generator(in, std::move(out));
}

Value filtered(Interpreter& in, const Value& input, Args& args, bool by_attribute, bool wanted) {
  if (!truthy(input)) return generator(in, {});
  size_t used = 0;
  Value attribute;
  if (by_attribute) {
    if (args.positional.empty()) throw TemplateError("Missing parameter for attribute name");
    attribute = args.positional[used++];
  }
  const Getter getter(in, &attribute);
  std::string test;
  if (used < args.positional.size()) {
    if (!args.positional[used].is_string()) throw TemplateError("expected the name of a test");
    test = args.positional[used++].text().bytes;
  }
  Args rest = args;
  rest.positional.erase(rest.positional.begin(),
                        rest.positional.begin() + static_cast<std::ptrdiff_t>(used));
  std::vector<Value> kept;
  for (const Value& item : in.iterate(input)) {
    in.budget().step();
    const Value value = getter(item);
    const bool passes = test.empty() ? truthy(value) : in.apply_test(test, value, rest);
    if (passes == wanted) kept.push_back(item);
  }
  return generator(in, std::move(kept));
}

Value f_select(Interpreter& in, const Value& input, Args& args) {
  return filtered(in, input, args, false, true);
}
Value f_reject(Interpreter& in, const Value& input, Args& args) {
  return filtered(in, input, args, false, false);
}
Value f_selectattr(Interpreter& in, const Value& input, Args& args) {
  return filtered(in, input, args, true, true);
}
Value f_rejectattr(Interpreter& in, const Value& input, Args& args) {
  return filtered(in, input, args, true, false);
}

Value f_batch(Interpreter& in, const Value& input, Args& args) {
  const Params params("batch", args, {"linecount", "fill_with"}, 1);
  const int64_t size = params.integer(0, 1);
  std::vector<Value> batches;
  std::vector<Value> row;
  const auto close = [&] { batches.push_back(make_list(std::exchange(row, {}), in.budget())); };
  bool any = false;
  for (const Value& item : in.iterate(input)) {
    if (static_cast<int64_t>(row.size()) == size && any) close();
    row.push_back(item);
    any = true;
  }
  if (any) {
    const Value* fill = params.not_none(1);
    if (fill != nullptr && size > static_cast<int64_t>(row.size())) {
      in.budget().check_size(static_cast<size_t>(size) * sizeof(Value));
      row.resize(static_cast<size_t>(size), *fill);
    }
    close();
  }
  return generator(in, std::move(batches));
}

Value f_slice(Interpreter& in, const Value& input, Args& args) {
  const Params params("slice", args, {"slices", "fill_with"}, 1);
  const int64_t count = params.integer(0, 1);
  const Items items = in.iterate(input);
  const auto length = static_cast<int64_t>(items.size());
  if (count == 0) throw TemplateError("integer division or modulo by zero");
  in.budget().step(std::max<int64_t>(count, 0));
  in.budget().check_size(static_cast<size_t>(std::max<int64_t>(count, 0)) * sizeof(Value));
  const int64_t each = count > 0 ? length / count : 0;
  const int64_t num_longer = count > 0 ? length % count : 0;
  std::vector<Value> slices;
  int64_t at = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t size = each + (i < num_longer ? 1 : 0);
    std::vector<Value> slice(items.all().begin() + at, items.all().begin() + at + size);
    at += size;
    const Value* fill = params.not_none(1);
    if (fill != nullptr && i >= num_longer) slice.push_back(*fill);
    slices.push_back(make_list(std::move(slice), in.budget()));
  }
  return generator(in, std::move(slices));
}

Value f_groupby(Interpreter& in, const Value& input, Args& args) {
  const Params params("groupby", args, {"attribute", "default", "case_sensitive"}, 1);
  const Getter getter(in, params.find(0), params.not_none(1));
  const std::vector<Value> items = in.iterate(input).all();
  std::vector<Value> keys;
  for (const Value& item : items) {
    keys.push_back(without_case(in, getter(item), params.flag(2)));
  }
  const std::vector<Value> ordered = sorted(in, items, keys, false);
  std::vector<Value> groups;
  for (size_t begin = 0; begin < ordered.size();) {
    const Value key = without_case(in, getter(ordered[begin]), params.flag(2));
    std::vector<Value> members;
    size_t end = begin;
    while (end < ordered.size() &&
           equal(without_case(in, getter(ordered[end]), params.flag(2)), key, in.budget())) {
      members.push_back(ordered[end++]);
    }
    groups.push_back(make_list({getter(ordered[begin]), make_list(std::move(members), in.budget())},
                               in.budget(), Flavor::kTuple, "group"));
    begin = end;
  }
  return make_list(std::move(groups), in.budget());
}

}  // namespace

const std::vector<std::pair<std::string_view, FilterFn>>& sequence_filters() {
  static const std::vector<std::pair<std::string_view, FilterFn>> filters = {
      {"length", f_length},
      {"count", f_length},
      {"first", f_first},
      {"last", f_last},
      {"join", f_join},
      {"list", f_list},
      {"reverse", f_reverse},
      {"items", f_items},
      {"dictsort", f_dictsort},
      {"sort", f_sort},
      {"unique", f_unique},
      {"min", f_min},
      {"max", f_max},
      {"sum", f_sum},
      {"map", f_map},
      {"select", f_select},
      {"reject", f_reject},
      {"selectattr", f_selectattr},
      {"rejectattr", f_rejectattr},
      {"batch", f_batch},
      {"slice", f_slice},
      {"groupby", f_groupby},
  };
  return filters;
}

}  // namespace eyrie::chat::jinja
