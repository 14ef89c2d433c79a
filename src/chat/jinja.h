// Jinja as Hugging Face's transformers runs chat templates: jinja2's language with trim_blocks and
// lstrip_blocks, break and continue, {% generation %}, tojson as json.dumps, raise_exception and
// strftime_now, in the sandbox that changes nothing (no list.append). Parsed once, rendered by any
// number of threads. Not there, and said so: include, import, extends, autoescape, recursive loops.
//
// A template may be hostile (a request can bring one): parsing and rendering spend bounded time,
// memory and stack, and whatever is wrong is a Failure that names the template's line.
#pragma once

#include <ctime>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "chat/jinja_text.h"
#include "chat/message.h"

namespace eyrie::chat::jinja {

struct Program;

struct Variable {
  std::string name;
  Json value;
  bool trusted = false;  // its text may become control tokens: "<s>", not a user's message
};

class Template {
 public:
  static Result<Template> parse(std::string_view source);
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;
  ~Template();

  // now: for strftime_now, instead of the clock.
  Result<Text> render(const std::vector<Variable>& variables, const Limits& limits = {},
                      const std::tm* now = nullptr) const;

  // Whether the template reads a variable of that name anywhere.
  bool mentions(std::string_view name) const;

 private:
  explicit Template(std::unique_ptr<const Program> program);
  std::unique_ptr<const Program> program_;
};

}  // namespace eyrie::chat::jinja
