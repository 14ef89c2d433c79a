// Values of the template language, as Python has them: what equality, order, truth, str() and
// repr() of a value are is written here. Lists and dicts never change once made (the sandbox that
// chat templates run in forbids it), so values are shared freely and make no cycles; namespaces,
// the one thing that changes, are held and emptied by the interpreter. Nesting is bounded, so
// walking a value may recurse. One rendering and one thread own all values.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/jinja_text.h"
#include "chat/message.h"

namespace eyrie::chat::jinja {

// Holds every integer of a JSON document; a result beyond it is an error.
__extension__ typedef __int128 Int;

class Interpreter;
class Object;
class Value;
struct Args;
struct Dict;
struct List;

class Value {
 public:
  Value() = default;                                       // None
  Value(bool value) : kind_(Kind::kBool), int_(value) {}   // NOLINT(google-explicit-constructor)
  Value(Int value) : kind_(Kind::kInt), int_(value) {}     // NOLINT as all of these
  Value(int value) : Value(Int{value}) {}                  // NOLINT
  Value(size_t value) : Value(static_cast<Int>(value)) {}  // NOLINT
  Value(double value) : kind_(Kind::kFloat), float_(value) {}  // NOLINT
  Value(Text text)                                             // NOLINT
      : kind_(Kind::kString), shared_(std::make_shared<const Text>(std::move(text))) {}
  Value(std::shared_ptr<const List> list)  // NOLINT
      : kind_(Kind::kList), shared_(std::move(list)) {}
  Value(std::shared_ptr<const Dict> dict)  // NOLINT
      : kind_(Kind::kDict), shared_(std::move(dict)) {}
  Value(std::shared_ptr<Object> object)  // NOLINT
      : kind_(Kind::kObject), shared_(std::move(object)) {}
  Value(const void*) = delete;  // no pointer becomes true

  static Value undefined(std::string message);  // said when something is done with it
  static Value string(std::string_view own) { return Text::own(own); }

  bool is_undefined() const { return kind_ == Kind::kUndefined; }
  bool is_none() const { return kind_ == Kind::kNone; }
  bool is_bool() const { return kind_ == Kind::kBool; }
  bool is_int() const { return kind_ == Kind::kInt; }
  bool is_float() const { return kind_ == Kind::kFloat; }
  bool is_number() const { return is_bool() || is_int() || is_float(); }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_list() const { return kind_ == Kind::kList; }  // of any flavor
  bool is_dict() const { return kind_ == Kind::kDict; }
  bool is_object() const { return kind_ == Kind::kObject; }

  // Each needs the kind it names.
  const std::string& undefined_message() const { return as<const std::string>(); }
  bool boolean() const { return int_ != 0; }
  Int integer() const { return int_; }  // of a bool too
  double number() const { return is_float() ? float_ : static_cast<double>(int_); }
  const Text& text() const { return as<const Text>(); }
  const List& list() const { return as<const List>(); }
  const Dict& dict() const { return as<const Dict>(); }
  Object& object() const { return *static_cast<Object*>(const_cast<void*>(shared_.get())); }

  bool is_text(std::string_view spelled) const { return is_string() && text().bytes == spelled; }
  bool same_object(const Value& other) const;  // Python's "is"

 private:
  enum class Kind : uint8_t {
    kUndefined,
    kNone,
    kBool,
    kInt,
    kFloat,
    kString,
    kList,
    kDict,
    kObject,
  };
  template <typename T>
  T& as() const {
    return *static_cast<T*>(shared_.get());
  }
  Kind kind_ = Kind::kNone;
  union {
    Int int_ = 0;
    double float_;
  };
  std::shared_ptr<const void> shared_;  // what kind_ says
};

enum class Flavor {
  kList,
  kTuple,
  kRange,
  kView,       // of a dict: has a length, no index
  kGenerator,  // of a filter: always true, no length, can be walked once
};

struct List {
  std::vector<Value> items;
  Flavor flavor = Flavor::kList;
  std::string shown{};  // repr of a range; name of a view
  int depth = 1;
  mutable bool consumed = false;  // a generator that was walked

  bool has_length() const { return flavor != Flavor::kGenerator; }
  bool has_index() const { return has_length() && flavor != Flavor::kView; }
};

struct Dict {
  std::vector<std::pair<Value, Value>> entries;  // in order of insertion, keys differ
  int depth = 1;

  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
};

struct Args {
  std::vector<Value> positional{};
  std::vector<std::pair<std::string, Value>> named{};
};

// Anything with behaviour: macros, methods, namespaces, loop.
class Object {
 public:
  virtual ~Object() = default;
  virtual std::string type_name() const = 0;
  virtual std::optional<Value> attribute(std::string_view name, Interpreter& in);
  virtual bool is_callable() const { return false; }
  virtual Value call(Interpreter& in, Args args);
  virtual int depth() const { return 0; }
};

// These check the bounds on nesting and memory.
Value make_list(std::vector<Value> items, Budget& budget, Flavor flavor = Flavor::kList,
                std::string shown = {});
Value make_dict(std::vector<std::pair<Value, Value>> entries, Budget& budget);
// Sets or adds one entry of a dict that is being made.
void set_entry(std::vector<std::pair<Value, Value>>& entries, const Value& key, Value value,
               Budget& budget);

// Strings within it count as from outside, unless trusted or one of the common values of "role".
Value from_json(const Json& json, Budget& budget, bool trusted = false);

std::string type_name(const Value& value);
bool truthy(const Value& value);
bool equal(const Value& a, const Value& b, Budget& budget);
// Below 0, 0 or above 0; an error where Python has no order. symbol is for its message.
int compare(const Value& a, const Value& b, std::string_view symbol, Budget& budget);
void require_hashable(const Value& value);

Text to_text(const Value& value, Budget& budget);  // str(value)
Text repr(const Value& value, Budget& budget);
std::string quote_text(std::string_view text);  // repr of a string
std::string show_int(Int value);

struct DumpStyle {
  bool ensure_ascii = false;
  std::optional<std::string> indent{};
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};
Text dump(const Value& value, const DumpStyle& style, Budget& budget);  // json.dumps

}  // namespace eyrie::chat::jinja
