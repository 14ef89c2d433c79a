// Tools as TypeScript declarations, the form Kimi-K2.5 was trained on (its tokenizer does this in
// Python). A schema that has no such form makes the whole list fall back to compact JSON.
#include <algorithm>
#include <map>
#include <optional>

#include "chat/json_text.h"
#include "chat/template.h"

namespace eyrie::chat {
namespace {

constexpr std::string_view kIndent = "  ";
constexpr std::string_view kFieldSeparator = ",\n";

// Keys in order at every level, as the declaration prints them. The depth was bounded on reading.
Json sorted(const Json& value) {
  if (value.is_array()) {
    Json out = Json::array();
    for (const Json& item : value) out.push_back(sorted(item));
    return out;
  }
  if (!value.is_object()) return value;
  std::map<std::string, Json> fields;
  for (const auto& [key, item] : value.items()) fields[key] = sorted(item);
  Json out = Json::object();
  for (auto& [key, item] : fields) out[key] = std::move(item);
  return out;
}

bool is_truthy(const Json& value) {
  if (value.is_string()) return !value.get_ref<const std::string&>().empty();
  if (value.is_number()) return value != 0;
  return value.is_boolean() ? value.get<bool>() : !value.empty();
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string out;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) out += separator;
    out += parts[i];
  }
  return out;
}

std::string comment_lines(std::string_view text, std::string_view indent) {
  std::string out;
  while (true) {
    const size_t newline = text.find('\n');
    const std::string_view line = text.substr(0, newline);
    if (!line.empty()) out.append(indent).append("// ").append(line);
    if (newline == std::string_view::npos) return out;
    out.push_back('\n');
    text.remove_prefix(newline + 1);
  }
}

// Writes one function. failed() afterwards: some schema has no TypeScript form.
class FunctionWriter {
 public:
  std::string write(const Json& function);
  bool failed() const { return failed_; }

 private:
  struct Field {
    std::string name;
    bool optional = false;
    std::string text;
  };

  const Json* find(const Json& object, const char* key) {
    const auto found = object.find(key);
    return found == object.end() ? nullptr : &*found;
  }
  std::string fail() {
    failed_ = true;
    return {};
  }
  std::string description(const Json& schema, std::string_view indent);
  std::string docstring(const Json& schema, std::string_view indent);
  std::string type(const Json& schema, const std::string& indent);
  std::string ref(const Json& target);
  std::string any_of(const Json& options, const std::string& indent);
  std::string enumeration(const Json& schema);
  std::string union_of(const Json& names);
  std::string array(const Json& schema, const std::string& indent);
  std::string object(const Json& schema, const std::string& indent);
  std::vector<Field> fields(const Json& schema, const std::string& indent);
  std::string field(const std::string& name, bool optional, const Json& schema,
                    const std::string& indent);
  void define(const Json& definitions);

  std::vector<std::pair<std::string, Json>> definitions_;  // $defs in the order they were met
  std::optional<std::string> additional_;  // written by fields(), joined by its caller
  bool refers_to_root_ = false;
  bool failed_ = false;
};

// The comment of a description, without a newline at the end; empty if there is none.
std::string FunctionWriter::description(const Json& schema, std::string_view indent) {
  const Json* text = find(schema, "description");
  if (text == nullptr || !is_truthy(*text)) return {};
  if (!text->is_string()) return fail();
  return comment_lines(text->get_ref<const std::string&>(), indent);
}

std::string FunctionWriter::docstring(const Json& schema, std::string_view indent) {
  if (!schema.is_object()) return {};
  std::string out = description(schema, indent);
  if (!out.empty()) out.push_back('\n');
  if (schema.contains("$ref") || schema.contains("anyOf") || schema.contains("enum")) return out;
  const Json* name = find(schema, "type");
  std::vector<const char*> keys;  // in order
  if (name != nullptr && *name == "string") keys = {"maxLength", "minLength", "pattern"};
  if (name != nullptr && (*name == "number" || *name == "integer")) keys = {"maximum", "minimum"};
  if (name != nullptr && *name == "array") keys = {"maxItems", "minItems"};
  std::vector<std::string> constraints;
  for (const char* key : keys) {
    if (const Json* value = find(schema, key)) {
      constraints.push_back(std::string(key) + ": " + python_str(*value));
    }
  }
  if (!constraints.empty()) out.append(indent).append("// " + join(constraints, ", ") + "\n");
  return out;
}

std::string FunctionWriter::type(const Json& schema, const std::string& indent) {
  if (schema.is_boolean()) return schema.get<bool>() ? "any" : "null";
  if (!schema.is_object()) return fail();
  if (const Json* target = find(schema, "$ref")) return ref(*target);
  if (const Json* options = find(schema, "anyOf")) return any_of(*options, indent);
  if (schema.contains("enum")) return enumeration(schema);
  if (const Json* name = find(schema, "type")) {
    if (name->is_array()) return union_of(*name);
    if (*name == "object") return object(schema, indent);
    if (*name == "array") return array(schema, indent);
    return *name == "integer" ? "number" : python_str(*name);
  }
  return schema.empty() ? "any" : fail();
}

std::string FunctionWriter::ref(const Json& target) {
  if (!target.is_string()) return fail();
  const std::string& path = target.get_ref<const std::string&>();
  if (path == "#") {
    refers_to_root_ = true;
    return "parameters";
  }
  if (!path.starts_with("#/$defs/")) return fail();
  const std::string name = path.substr(path.rfind('/') + 1);
  const bool known = std::any_of(definitions_.begin(), definitions_.end(),
                                 [&](const auto& entry) { return entry.first == name; });
  return known ? name : fail();
}

std::string FunctionWriter::any_of(const Json& options, const std::string& indent) {
  if (!options.is_array()) return fail();
  std::vector<std::string> types;
  for (const Json& option : options) types.push_back(type(option, indent));
  return join(types, " | ");
}

std::string FunctionWriter::enumeration(const Json& schema) {
  const Json& values = schema["enum"];
  if (!values.is_array()) return fail();
  Json name;
  if (const Json* declared = find(schema, "type")) name = *declared;
  if (name.is_array()) {
    const bool pair = name.size() == 2 && (name[0] == "null" || name[1] == "null");
    if (name.size() != 1 && !pair) return fail();
    name = Json(pair && name[0] == "null" ? name[1] : name[0]);
  }
  std::vector<std::string> texts;
  for (const Json& value : values) {
    // Python counts a boolean as an integer.
    const bool is_integer = value.is_number_integer() || value.is_boolean();
    const bool fits = value.is_null() || (name == "string" && value.is_string()) ||
                      (name == "number" && (value.is_number() || value.is_boolean())) ||
                      (name == "integer" && is_integer) ||
                      (name == "boolean" && value.is_boolean());
    const bool checked =
        name == "string" || name == "number" || name == "integer" || name == "boolean";
    if (checked && !fits) return fail();
    texts.push_back(value.is_string() ? "\"" + value.get<std::string>() + "\"" : python_str(value));
  }
  return join(texts, " | ");
}

std::string FunctionWriter::union_of(const Json& names) {
  static const std::map<std::string, std::string> kNames = {
      {"string", "string"}, {"number", "number"}, {"integer", "number"},  {"boolean", "boolean"},
      {"null", "null"},     {"object", "{}"},     {"array", "Array<any>"}};
  std::vector<std::string> types;
  for (const Json& name : names) {
    const auto found = name.is_string() ? kNames.find(name.get<std::string>()) : kNames.end();
    if (found == kNames.end()) return fail();
    types.push_back(found->second);
  }
  return join(types, " | ");
}

std::string FunctionWriter::array(const Json& schema, const std::string& indent) {
  const Json* items = find(schema, "items");
  if (items == nullptr || !is_truthy(*items)) return "Array<any>";
  const std::string deeper = indent + std::string(kIndent);
  const std::string comment = docstring(*items, deeper);
  if (comment.empty()) return "Array<" + type(*items, indent) + ">";
  return "Array<\n" + comment + deeper + type(*items, deeper) + "\n" + indent + ">";
}

std::string FunctionWriter::object(const Json& schema, const std::string& indent) {
  std::vector<Field> list = fields(schema, indent + std::string(kIndent));
  const std::optional<std::string> additional = std::move(additional_);
  additional_.reset();
  std::stable_sort(list.begin(), list.end(), [](const Field& a, const Field& b) {
    return a.optional != b.optional ? b.optional : a.name < b.name;
  });
  std::vector<std::string> texts;
  for (Field& one : list) texts.push_back(std::move(one.text));
  if (additional) texts.push_back(*additional);
  if (texts.empty()) return "{}";
  return "{\n" + join(texts, kFieldSeparator) + "\n" + indent + "}";
}

// indent: of the fields.
std::vector<FunctionWriter::Field> FunctionWriter::fields(const Json& schema,
                                                          const std::string& indent) {
  if (const Json* definitions = find(schema, "$defs")) define(*definitions);
  std::optional<std::string> additional;
  const Json* others = find(schema, "additionalProperties");
  if (others != nullptr && !others->is_null()) {
    std::string text =
        others->is_boolean() && !others->get<bool>() ? "never" : type(*others, indent);
    additional = indent + "[k: string]: " + text;
  }
  std::vector<Field> list;
  if (const Json* properties = find(schema, "properties")) {
    const Json* required = find(schema, "required");
    if (!properties->is_object() || (required != nullptr && !required->is_array())) {
      fail();
      return {};
    }
    for (const auto& [name, property] : properties->items()) {
      const bool optional = required == nullptr ||
                            std::find(required->begin(), required->end(), name) == required->end();
      list.push_back({name, optional, field(name, optional, property, indent)});
    }
  }
  additional_ = std::move(additional);
  return list;
}

std::string FunctionWriter::field(const std::string& name, bool optional, const Json& schema,
                                  const std::string& indent) {
  std::string out = docstring(schema, indent);
  const Json* value = schema.is_object() ? find(schema, "default") : nullptr;
  if (value != nullptr && !value->is_null()) {
    const bool plain = value->is_number() || value->is_boolean();
    out += indent + "// Default: " + (plain ? python_str(*value) : dump_json(*value)) + "\n";
  }
  return out + indent + name + (optional ? "?: " : ": ") + type(schema, indent);
}

void FunctionWriter::define(const Json& definitions) {
  if (!is_truthy(definitions)) return;
  if (!definitions.is_object()) {
    fail();
    return;
  }
  for (const auto& [name, schema] : definitions.items()) {
    const auto known =
        std::find_if(definitions_.begin(), definitions_.end(),
                     [&, key = name](const auto& entry) { return entry.first == key; });
    if (known == definitions_.end()) {
      definitions_.emplace_back(name, schema);
    } else {
      known->second = schema;
    }
  }
}

std::string FunctionWriter::write(const Json& function) {
  const Json* given = find(function, "parameters");
  const Json parameters = given != nullptr && is_truthy(*given) ? *given : Json::object();
  if (!parameters.is_object()) return fail();
  const std::string body = object(parameters, "");
  std::vector<std::string> parts;
  const bool named_root = refers_to_root_;
  if (named_root) {
    std::vector<std::string> texts;
    for (Field& one : fields(parameters, std::string(kIndent))) texts.push_back(one.text);
    additional_.reset();
    const std::string inner = join(texts, kFieldSeparator);
    parts.push_back("interface parameters {" + (inner.empty() ? "" : "\n" + inner + "\n") + "}");
  }
  const auto definitions = definitions_;  // writing one may meet more, which are not written
  for (const auto& [name, schema] : definitions) {
    if (!schema.is_object()) return fail();
    std::string comment = description(schema, "");
    if (!comment.empty()) comment.push_back('\n');
    parts.push_back(comment + "interface " + name + " " + type(schema, ""));
  }
  if (std::string comment = description(function, ""); !comment.empty()) parts.push_back(comment);
  const Json* name = find(function, "name");
  parts.push_back("type " + (name != nullptr ? python_str(*name) : "function") +
                  " = (_: " + (named_root ? "parameters" : body) + ") => any;");
  return join(parts, "\n");
}

std::optional<std::string> as_typescript(const Json& tools) {
  std::vector<std::string> functions;
  for (const Json& tool : tools) {
    if (tool.value("type", Json()) != "function") continue;
    const auto function = tool.find("function");
    if (function == tool.end() || !is_truthy(*function)) continue;
    FunctionWriter writer;
    functions.push_back(writer.write(*function));
    if (writer.failed()) return std::nullopt;
  }
  if (functions.empty()) return std::nullopt;
  return "# Tools\n\n## functions\nnamespace functions {\n" + join(functions, "\n") + "\n}\n";
}

}  // namespace

std::string declare_tools(const std::vector<ToolDefinition>& tools) {
  if (tools.empty()) return {};
  Json list = Json::array();
  for (const ToolDefinition& tool : tools) list.push_back(sorted(tool.json));
  if (auto typescript = as_typescript(list)) return *typescript;
  return dump_json(list, kCompactJson);
}

}  // namespace eyrie::chat
