#include "chat/jinja.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <sstream>
#include <thread>

#include "tokenizer/golden_test_util.h"

namespace eyrie::chat::jinja {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// The moment make_jinja_golden.py renders at.
std::tm golden_now() {
  std::tm now{};
  now.tm_year = 126;
  now.tm_mon = 2;
  now.tm_mday = 7;
  now.tm_wday = 6;
  now.tm_yday = 65;
  now.tm_hour = 9;
  now.tm_min = 5;
  now.tm_sec = 2;
  return now;
}

std::vector<Variable> variables_of(const Json& object) {
  std::vector<Variable> variables;
  for (const auto& [name, value] : object.items()) variables.push_back({name, value});
  return variables;
}

Result<Text> render(const std::string& source, const Json& variables = Json::object(),
                    const Limits& limits = {}) {
  auto parsed = Template::parse(source);
  if (!parsed) return parsed.failure();
  const std::tm now = golden_now();
  return parsed.value().render(variables_of(variables), limits, &now);
}

std::string text_of(const std::string& source, const Json& variables = Json::object()) {
  const auto text = render(source, variables);
  return text ? text.value().bytes : "refused: " + text.failure().message;
}

std::string error_of(const std::string& source, const Limits& limits = {}) {
  const auto text = render(source, Json::object(), limits);
  return text ? "rendered: " + text.value().bytes.substr(0, 60) : text.failure().message;
}

TEST(JinjaTest, EvaluatesAsJinja2) {
  const Json rows = read_golden("jinja_expressions.json");
  const Json& variables = rows[0]["variables"];
  ASSERT_GT(rows.size(), 900u);
  for (size_t i = 1; i < rows.size(); ++i) {
    const auto source = rows[i][0].get<std::string>();
    const auto text = render(source, variables);
    if (rows[i][1].is_null()) {
      EXPECT_FALSE(text.ok()) << source << "\n  jinja2: " << rows[i][2]
                              << "\n  ours: " << text.value().bytes;
    } else {
      EXPECT_EQ(text ? text.value().bytes : text.failure().message, rows[i][1].get<std::string>())
          << source;
    }
  }
}

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(JinjaTest, RendersTemplatesAsJinja2) {
  const Json rows = read_golden("jinja_templates.json");
  ASSERT_GT(rows.size(), 300u);
  std::string path;
  std::optional<Template> parsed;
  int num_templates = 0;
  for (size_t i = 1; i < rows.size(); ++i) {
    const Json& row = rows[i];
    if (row["template"] != path) {
      path = row["template"].get<std::string>();
      ++num_templates;
      auto result = Template::parse(read_file(path));
      ASSERT_TRUE(result.ok()) << path << ": " << result.failure().message;
      parsed.emplace(std::move(result).value());
    }
    Json variables = {{"tools", nullptr}, {"documents", nullptr}, {"add_generation_prompt", true}};
    variables.update(rows[0]["conversations"][row["conversation"].get<size_t>()]);
    variables.update(row["kwargs"]);
    const std::tm now = golden_now();
    const auto text = parsed->render(variables_of(variables), {}, &now);
    if (row.contains("error")) {
      EXPECT_FALSE(text.ok()) << path << " " << row["conversation"]
                              << "\n  jinja2: " << row["error"]
                              << "\n  ours: " << text.value().bytes;
    } else {
      EXPECT_EQ(text ? text.value().bytes : text.failure().message, row["text"].get<std::string>())
          << path << " " << row["conversation"] << row["kwargs"];
    }
  }
  EXPECT_GE(num_templates, 13);
}

TEST(JinjaTest, ErrorsNameTheLine) {
  EXPECT_THAT(error_of("a\n{% if %}x{% endif %}"),
              AllOf(HasSubstr("line 2"), HasSubstr("expected an expression")));
  EXPECT_THAT(error_of("a\n\n{{ x.y }}"),
              AllOf(HasSubstr("line 3"), HasSubstr("'x' is undefined")));
  EXPECT_THAT(error_of("{{ raise_exception('roles must alternate') }}"),
              HasSubstr("line 1: roles must alternate"));
  EXPECT_THAT(error_of("{% macro m() %}\n{{ 1 + none }}{% endmacro %}\n{{ m() }}"),
              AllOf(HasSubstr("line 2"), HasSubstr("'int' and 'NoneType'")));
  EXPECT_THAT(error_of("\n{{ [].append(1) }}"),
              HasSubstr("access to attribute 'append' of 'list' object is unsafe"));
  EXPECT_THAT(error_of("{{ 1 | nope }}"), HasSubstr("No filter named 'nope'"));
  EXPECT_THAT(error_of("{% for x in y %}"), HasSubstr("for is not closed by endfor"));
  EXPECT_THAT(error_of("{% include 'x' %}"), HasSubstr("include is not available"));
  EXPECT_THAT(error_of("{% for x in [] recursive %}{% endfor %}"), HasSubstr("recursive"));
}

TEST(JinjaTest, KnowsWhatCameFromOutside) {
  const auto outside = [](const std::string& source, const Json& variables) {
    std::string out;
    const auto text = render(source, variables);
    EXPECT_TRUE(text.ok()) << source;
    for (const Range& range : text.value().outside) {
      out += "[" + text.value().bytes.substr(range.begin, range.end - range.begin) + "]";
    }
    return out;
  };
  const Json x = {{"x", " Us Er "}, {"list", {"a", "b"}}};
  EXPECT_EQ(outside("<s>{{ x }}</s>", x), "[ Us Er ]");
  EXPECT_EQ(outside("{{ '<' + x | trim + '>' }}", x), "[Us Er]");
  EXPECT_EQ(outside("{{ ('<' ~ x ~ '>')[2:-2] }}", x), "[Us Er]");
  EXPECT_EQ(outside("{% macro m(v) %}<{{ v }}>{% endmacro %}{{ m(x) }}", x), "[ Us Er ]");
  EXPECT_EQ(outside("{% set q %}<{{ x }}>{% endset %}{{ q | upper }}", x), "[ US ER ]");
  EXPECT_EQ(outside("{{ ('<' + x + '>').replace(' ', '_') }}", x), "[Us][Er]");
  EXPECT_EQ(outside("{{ list | join('</s>') }}", x), "[a][b]");
  EXPECT_EQ(outside("{{ ('<' ~ x ~ '>').split()[0] }}", x), "");
  EXPECT_EQ(outside("{{ list | tojson }}", x), R"([["a", "b"]])");
  EXPECT_EQ(outside("{{ '<%s>' % x }}|{{ '<{}>'.format(x) }}", x), "[ Us Er ][ Us Er ]");
  EXPECT_EQ(outside("{{ 'y' if x else 'n' }}{{ x | length }}", x), "");
  EXPECT_EQ(outside("{% for c in x %}{{ c }}{% endfor %}", x), "[ Us Er ]");
}

// What a hostile template may try; each must end, and soon. Tighter limits than a server's keep the
// test short; what they bound is the same.
TEST(JinjaTest, HostileTemplatesEnd) {
  const Limits limits{.max_steps = 1'000'000,
                      .max_made_bytes = size_t{64} << 20,
                      .max_output_bytes = size_t{16} << 20};
  const std::string grow = "{% set ns = namespace(x='ab') %}{% for i in range(90) %}";
  const std::pair<std::string, const char*> cases[] = {
      {"{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
       "than a rendering may use"},
      {"{% set r = range(99999) %}{% for i in r %}{% for j in r %}{% endfor %}{% endfor %}",
       "steps"},
      {grow + "{% set ns.x = ns.x ~ ns.x %}{% endfor %}", "than a rendering may use"},
      {grow + "{% set ns.x = ns.x.replace('', ns.x) %}{% endfor %}", "than a rendering may use"},
      {grow + "{% set ns.x = [ns.x] * 2 %}{% endfor %}{{ ns.x }}", "than a rendering may use"},
      {grow + "{% set ns.x = {'a': ns.x, 'b': ns.x} %}{% endfor %}{{ ns.x | tojson }}",
       "than a rendering may use"},
      {"{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor "
       "%}",
       "nests too deeply"},
      {"{% set ns = namespace(x=1) %}{% for i in range(99999) %}"
       "{% set ns.x = ns.x.y or cycler(ns.x) %}{% endfor %}",
       ""},
      {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "too deeply"},
      {"{% macro m() %}{{ caller }}{% call m() %}x{% endcall %}{% endmacro %}{{ m() }}",
       "too deeply"},
      {"{{ 'a' * 10 ** 12 }}", "output"},
      {"{{ [0] * 10 ** 12 }}", "output"},
      {"{{ range(10 ** 9) }}", "Range too big"},
      {"{{ '%1000000000000d' % 1 }}", "output"},
      {"{{ '{:>99999999999}'.format(1) }}", "output"},
      {"{{ '%.999999999f' % 1 }}", "precision"},
      {"{{ 'a' | center(10 ** 12) }}", "output"},
      {"{{ 'a' | indent(10 ** 12) }}", "output"},
      {"{{ 'a'.zfill(10 ** 12) }}", "output"},
      {"{{ [1] | tojson(indent=10 ** 12) }}", "output"},
      {"{{ [1] | batch(10 ** 12, 0) | list }}", "output"},
      {"{{ [1] | slice(10 ** 12, 0) | list }}", "steps"},
      {"{{ 9 ** 9 ** 9 }}", "too large"},
      {"{{ " + std::string(100000, '(') + std::string(100000, ')') + " }}", "nests too deeply"},
      {"{{ " + std::string(100000, '-') + "1 }}", "nests too deeply"},
      {"{{ " + std::string(100000, '[') + std::string(100000, ']') + " }}", "nests too deeply"},
      {"{{ 1" + std::string(100000, '.') + " }}", "expected a name"},
      {std::string(2 << 20, 'x'), "at most"},
  };
  for (const auto& [source, why] : cases) {
    EXPECT_THAT(error_of(source, limits), HasSubstr(why)) << source.substr(0, 80);
  }
  std::string chain = "{{ 1";
  for (int i = 0; i < 100000; ++i) chain += " + 1";
  EXPECT_THAT(error_of(chain + " }}", limits), HasSubstr("too deeply"));
  std::string filters = "{{ 'a'";
  for (int i = 0; i < 100000; ++i) filters += "|upper";
  EXPECT_THAT(error_of(filters + " }}", limits), HasSubstr("too deeply"));
  std::string tags;
  for (int i = 0; i < 100000; ++i) tags += "{% if 1 %}";
  EXPECT_THAT(error_of(tags, limits), HasSubstr("nests too deeply"));
  std::string branches = "{% if 0 %}";
  for (int i = 0; i < 50000; ++i) branches += "{% elif 0 %}";
  EXPECT_THAT(error_of(branches + "{% endif %}", limits), HasSubstr("too deeply"));
}

TEST(JinjaTest, CirclesAreLetGo) {  // a leak checker says when they are not
  EXPECT_EQ(text_of("{% set ns = namespace() %}{% set ns.me = ns %}{% set ns.list = [ns] %}x"),
            "x");
  EXPECT_EQ(text_of("{% set ns = namespace() %}{% macro m() %}{{ ns }}{% endmacro %}"
                    "{% set ns.m = m %}{% for i in [1] %}{% set ns.loop = loop %}"
                    "{% set ns.changed = loop.changed(loop, ns) %}{% set ns.f = loop.changed %}"
                    "{% endfor %}{{ ns.loop.index }}"),
            "1");
  EXPECT_THAT(error_of("{% set ns = namespace() %}{% for i in [1] %}{% set ns.f = loop.cycle %}"
                       "{% endfor %}{{ ns.f(1) }}"),
              HasSubstr("is over"));
}

TEST(JinjaTest, OneTemplateServesManyThreads) {
  const auto parsed =
      Template::parse("{% for x in xs %}{{ loop.index }}{{ x | upper }}{% endfor %}");
  std::vector<std::thread> threads;
  std::atomic<int> num_right{0};
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 200; ++k) {
        const auto text = parsed.value().render({{"xs", Json::array({"a", "b"})}});
        num_right += text.ok() && text.value().bytes == "1A2B";
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_right, 1600);
}

}  // namespace
}  // namespace eyrie::chat::jinja
