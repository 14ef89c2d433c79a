#include "chat/jinja.h"

#include "chat/jinja_interpreter.h"

namespace eyrie::chat::jinja {
namespace {

constexpr size_t kMaxSourceBytes = size_t{1} << 20;

Failure template_failure(const std::string& message) {
  return {FailureKind::kInvalidArgument, "chat template: " + message, "chat_template"};
}

}  // namespace

Template::Template(std::unique_ptr<const Program> program) : program_(std::move(program)) {}
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;
Template::~Template() = default;

Result<Template> Template::parse(std::string_view source) {
  if (source.size() > kMaxSourceBytes) {
    return template_failure(
        fmt::format("{} bytes; at most {} are accepted", source.size(), kMaxSourceBytes));
  }
  auto program = std::make_unique<Program>();
  try {
    jinja::parse(source, *program);
  } catch (const TemplateError& error) {
    return template_failure(error.what());
  }
  return Template(std::move(program));
}

Result<Text> Template::render(const std::vector<Variable>& variables, const Limits& limits,
                              const std::tm* now) const {
  Interpreter in(*program_, limits, now);
  try {
    std::vector<std::pair<std::string, Value>> values;
    for (const Variable& variable : variables) {
      values.emplace_back(variable.name, from_json(variable.value, in.budget(), variable.trusted));
    }
    return in.run(values);
  } catch (const TemplateError& error) {
    return template_failure(fmt::format("line {}: {}", in.line(), error.what()));
  }
}

bool Template::mentions(std::string_view name) const {
  return program_->symbol_ids.contains(std::string(name));
}

}  // namespace eyrie::chat::jinja
