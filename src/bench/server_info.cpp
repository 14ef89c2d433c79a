#include "bench/server_info.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "base/mapped_file.h"

namespace eyrie::bench {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;

std::string string_field(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

fs::path hub_cache() {
  if (const char* cache = std::getenv("HF_HUB_CACHE")) return cache;
  if (const char* home = std::getenv("HF_HOME")) return fs::path(home) / "hub";
  const char* user = std::getenv("HOME");
  return fs::path(user == nullptr ? "/" : user) / ".cache" / "huggingface" / "hub";
}

// Servers that read stream_options.continuous_usage_stats. Others may refuse a field they do not
// know, so they are not asked.
bool knows_continuous_usage(const std::string& owner) {
  return owner == "vllm" || owner == "eyrie" || owner == "sglang";
}

}  // namespace

std::string refused_hint(const ServeOptions& options) {
  std::string hint = fmt::format("nobody listens at {}", options.base());
  if (options.base_url.empty() && !options.port_given) {
    hint += fmt::format(
        ": the client's default port is {}; a server started with --port 8888 needs --port 8888 "
        "here too",
        options.port);
  } else {
    hint += ": is the server up, and on this port?";
  }
  return hint;
}

ServerInfo read_models(const std::string& body, const ServeOptions& options) {
  ServerInfo info;
  const json answer = json::parse(body, nullptr, false);
  const auto data = answer.is_object() ? answer.find("data") : answer.end();
  const json* chosen = nullptr;
  const std::string wanted =
      options.served_model_name.empty() ? options.model : options.served_model_name;
  if (answer.is_object() && data != answer.end() && data->is_array()) {
    for (const auto& model : *data) {
      if (!model.is_object()) continue;
      const std::string id = string_field(model, "id");
      info.served_names += (info.served_names.empty() ? "" : ", ") + id;
      if (wanted.empty() ? chosen == nullptr : id == wanted) chosen = &model;
    }
    info.is_listed = chosen != nullptr || data->empty();
    // A card for the model under another name still tells context and usage.
    if (chosen == nullptr && !data->empty() && data->front().is_object()) chosen = &data->front();
  }
  info.model_name = wanted;
  if (chosen != nullptr) {
    if (wanted.empty()) info.model_name = string_field(*chosen, "id");
    info.model_root = string_field(*chosen, "root");
    if (const auto len = chosen->find("max_model_len");
        len != chosen->end() && len->is_number_integer()) {
      info.max_model_len = len->get<int64_t>();
    }
    info.continuous_usage = knows_continuous_usage(string_field(*chosen, "owned_by"));
  }
  if (info.model_name.empty()) {
    fail("{}/v1/models lists no model: name one with --model", options.base());
  }
  return info;
}

ServerInfo ask_server(const HttpRequest& models, const ServeOptions& options) {
  const auto begin = Clock::now();
  while (true) {
    const HttpResponse response = http_fetch(models);
    if (response.ok()) return read_models(response.body, options);
    const bool may_come = seconds_between(begin, Clock::now()) < options.ready_check_timeout_s;
    if (response.result.status == 401 || response.result.status == 403) {
      fail("{} answered {}: set OPENAI_API_KEY to the server's key", models.url,
           response.result.status);
    }
    if (response.result.status != 0) return read_models("", options);  // no such endpoint there
    if (!may_come) {
      fail("{} ({})", refused_hint(options), response.result.error);
    }
    constexpr useconds_t kRetryMicros = 500'000;
    usleep(kRetryMicros);
  }
}

std::string find_model_dir(const std::string& name) {
  std::error_code ignored;
  if (name.empty()) return "";
  if (fs::is_directory(name, ignored)) return name;
  std::string folder = "models--";
  for (const char c : name) folder += c == '/' ? std::string("--") : std::string(1, c);
  const fs::path repo = hub_cache() / folder;
  const fs::path main_ref = repo / "refs" / "main";
  if (!fs::is_regular_file(main_ref, ignored)) return "";
  std::string commit = read_text_file(main_ref.string());
  while (!commit.empty() && std::isspace(static_cast<unsigned char>(commit.back())) != 0) {
    commit.pop_back();
  }
  const fs::path snapshot = repo / "snapshots" / commit;
  return fs::is_directory(snapshot, ignored) ? snapshot.string() : "";
}

TokenizerChoice open_tokenizer(const ServeOptions& options, const ServerInfo& server) {
  if (!options.tokenizer.empty()) {
    const std::string dir = find_model_dir(options.tokenizer);
    if (dir.empty()) {
      fail("--tokenizer {}: no such directory, and not in the hub cache ({})", options.tokenizer,
           hub_cache().string());
    }
    return {options.tokenizer, dir};
  }
  for (const std::string& id : {options.model, server.model_root, server.model_name}) {
    if (const std::string dir = find_model_dir(id); !dir.empty()) return {id, dir};
  }
  return {options.model.empty() ? server.model_name : options.model, ""};
}

std::unique_ptr<TextCodec> load_codec_if_any(const TokenizerChoice& tokenizer,
                                             const ServeOptions& options) {
  if (options.skip_tokenizer_init || tokenizer.dir.empty()) return nullptr;
  return with_context(fmt::format("tokenizer of {}", tokenizer.dir),
                      [&] { return load_text_codec(tokenizer.dir, options.chat_template_kwargs); });
}

}  // namespace eyrie::bench
