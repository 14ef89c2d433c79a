// A template's source as tokens. White space is settled here: the newline behind a tag and the
// indentation before it go (trim_blocks, lstrip_blocks, as transformers sets them), "-" eats more,
// "+" keeps. Lines count from 1.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "chat/jinja_value.h"

namespace eyrie::chat::jinja {

struct Token {
  enum class Kind {
    kData,
    kPrintBegin,
    kPrintEnd,
    kTagBegin,
    kTagEnd,
    kName,
    kString,
    kInteger,
    kFloat,
    kOperator,
    kEnd,
  };
  Kind kind = Kind::kEnd;
  std::string text;  // data, a name, a string's value, an operator
  int line = 1;
  Value number{};

  bool is(std::string_view op) const { return kind == Kind::kOperator && text == op; }
  bool is_name(std::string_view name) const { return kind == Kind::kName && text == name; }
};

// An error that says its line.
class SyntaxError : public TemplateError {
 public:
  SyntaxError(const std::string& message, int line)
      : TemplateError(fmt::format("line {}: {}", line, message)) {}
};

// Ends with a kEnd token. Throws SyntaxError.
std::vector<Token> tokenize(std::string_view source);

// int() of digits in a base from 2 to 36, underscores allowed between them; none if they are not.
std::optional<Int> parse_int(std::string_view digits, int base);
// float() of a decimal literal without white space around.
std::optional<double> parse_float(std::string_view text);

}  // namespace eyrie::chat::jinja
