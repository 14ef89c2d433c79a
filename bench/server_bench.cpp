// What a token costs outside the model: schedule, sample, detokenize, parse, serialise, send.
//
// A runner without a model (a fixed text, drawn by the real sampler from made-up logits) under the
// real engine and server, 64 chat streams over loopback. Everything but the client is pinned to one
// core and its CPU time is counted; the client reads on another. The runner sleeps in each step, as
// long as a model would compute, so that every token is an event and a write of its own: faster
// steps would share them. Then each part alone, in a loop of its own; "send" is what is left:
// wake-ups, framing, the write call, the kernel's TCP.
//
//   server_bench [MODEL] [streams]      the tokenizer and template of models/kimi-k2.5-nano, 64
#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <thread>

#include "base/check.h"
#include "base/rng.h"
#include "chat/parser.h"
#include "chat/template.h"
#include "engine/engine.h"
#include "sched/scheduler.h"
#include "server/answer.h"
#include "server/generation.h"
#include "server/server.h"
#include "tokenizer/tokenizer.h"

namespace eyrie {
namespace {

using Json = nlohmann::json;

constexpr int kTokensPerStream = 512;
constexpr int kRounds = 5;
constexpr std::chrono::milliseconds kModelTime{4};  // of a step
constexpr const char* kText =
    "The shop sells 12 boxes with 8 apples each, so there are 12 * 8 = 96 apples in all. "
    "Of these 96 apples, a quarter is given away: 96 / 4 = 24. What is left is 96 - 24 = 72. "
    "Each of the 6 friends gets 72 / 6 = 12 apples.</think>The answer is 12.\n";

double cpu_seconds(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

void pin_to_core(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
}

// The bench text over and over, as token ids.
std::vector<TokenId> script(const Tokenizer& tokenizer) {
  std::vector<TokenId> ids;
  const auto thought = tokenizer.encode(kText, AllowSpecial::kAll);
  const auto said = tokenizer.encode(std::string(kText).substr(0, 83), AllowSpecial::kNone);
  ids = thought;
  while (ids.size() < kTokensPerStream) ids.insert(ids.end(), said.begin(), said.end());
  ids.resize(kTokensPerStream);
  return ids;
}

// Logits of one row in which `token` is the most likely by far.
class Logits {
 public:
  explicit Logits(int64_t vocab_size) : row_(static_cast<size_t>(vocab_size)) {
    for (size_t i = 0; i < row_.size(); ++i)
      row_[i] = static_cast<float>((i * 7919) % 1000) * 4e-3F;
  }
  std::span<const float> peaked_at(TokenId token) {
    if (peak_ >= 0) row_[static_cast<size_t>(peak_)] = before_;
    peak_ = token;
    before_ = std::exchange(row_[static_cast<size_t>(token)], 30.0F);
    return row_;
  }

 private:
  std::vector<float> row_;
  TokenId peak_ = -1;
  float before_ = 0;
};

class ScriptedRunner final : public runtime::ModelRunner {
 public:
  ScriptedRunner(std::vector<TokenId> script, int64_t vocab_size)
      : script_(std::move(script)),
        vocab_size_(vocab_size),
        logits_(vocab_size),
        sampler_(vocab_size) {}

  void add_sequence(sched::SequenceId id, std::span<const TokenId> prompt,
                    const runtime::SamplingParams& params) override {
    sequences_.emplace(id, Sequence{prompt.size(), params, {prompt, params, vocab_size_}});
  }
  void remove_sequence(sched::SequenceId id) override { sequences_.erase(id); }
  const runtime::StepOutput& execute(const sched::StepPlan& plan) override {
    std::this_thread::sleep_for(kModelTime);
    output_.rows.resize(plan.rows.size());
    output_.extras.resize(plan.rows.size());
    for (size_t i = 0; i < plan.rows.size(); ++i) {
      const sched::StepRow& row = plan.rows[i];
      output_.rows[i].seq_id = row.seq_id;
      output_.rows[i].sampled.clear();
      if (!row.samples) continue;
      Sequence& sequence = sequences_.at(row.seq_id);
      const auto idx = static_cast<size_t>(sequence.history.num_output_tokens());
      const TokenId token =
          sampler_.sample(logits_.peaked_at(script_[idx % script_.size()]), sequence.params,
                          sequence.history, static_cast<int64_t>(sequence.num_prompt + idx));
      sequence.history.push(token);
      output_.rows[i].sampled.push_back(token);
    }
    return output_;
  }

 private:
  struct Sequence {
    size_t num_prompt;
    runtime::SamplingParams params;
    runtime::TokenHistory history;
  };
  std::vector<TokenId> script_;
  int64_t vocab_size_;
  Logits logits_;
  runtime::Sampler sampler_;
  std::unordered_map<sched::SequenceId, Sequence> sequences_;
  runtime::StepOutput output_;
};

// --- the whole way -------------------------------------------------------------------------------

std::string request_text(bool greedy) {
  const Json body = {
      {"messages", Json::array({{{"role", "user"}, {"content", "How many apples?"}}})},
      {"max_tokens", kTokensPerStream},
      {"ignore_eos", true},
      {"stream", true},
      {"temperature", greedy ? 0.0 : 0.6},
      {"top_p", greedy ? 1.0 : 0.95}};
  const std::string text = body.dump();
  return fmt::format(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
      "Connection: close\r\nContent-Length: {}\r\n\r\n{}",
      text.size(), text);
}

int64_t count_of(std::string_view what, std::string_view text) {
  int64_t count = 0;
  for (size_t at = 0; (at = text.find(what, at)) != text.npos; at += what.size()) ++count;
  return count;
}

// Asks for `count` streams at once and reads them all; how many events came. CPU seconds of this
// thread are added to *own_cpu.
int64_t read_streams(int port, int count, const std::string& request, double* own_cpu) {
  const double start = cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
  std::vector<pollfd> open;
  for (int i = 0; i < count; ++i) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    CHECK_EQ(send(fd, request.data(), request.size(), MSG_NOSIGNAL),
             static_cast<ssize_t>(request.size()));
    open.push_back({fd, POLLIN, 0});
  }
  int64_t events = 0;
  std::vector<char> buffer(size_t{256} << 10);
  while (!open.empty()) {
    poll(open.data(), open.size(), -1);
    for (pollfd& one : open) {
      if (one.revents == 0) continue;
      const ssize_t n = recv(one.fd, buffer.data(), buffer.size(), 0);
      if (n > 0) {
        events += count_of("data: ", {buffer.data(), static_cast<size_t>(n)});
      } else {
        close(one.fd);
        one.fd = -1;
      }
    }
    std::erase_if(open, [](const pollfd& one) { return one.fd < 0; });
  }
  *own_cpu += cpu_seconds(CLOCK_THREAD_CPUTIME_ID) - start;
  return events;
}

struct Rig {
  Rig(const Tokenizer& the_tokenizer, const chat::ChatTemplate& chat_template, int streams)
      : tokenizer(the_tokenizer) {
    config.served_model_names = {"kimi-k2.5-nano"};
    config.vocab_size = tokenizer.vocab_size();
    config.access_log = false;
    engine_config.scheduler = {.max_num_seqs = streams,
                               .max_num_batched_tokens = 8192,
                               .max_model_len = 4096,
                               .block_size = 16,
                               .num_blocks = streams * 64};
    engine_config.log_interval = std::chrono::seconds(0);
    engine = std::make_unique<engine::Engine>(
        engine_config, std::make_unique<ScriptedRunner>(script(tokenizer), config.vocab_size),
        tokenizer);
    server = std::make_unique<server::Server>(config, server::Listener("127.0.0.1", 0), *engine,
                                              tokenizer, chat_template);
    engine->start();
    server->start();
  }
  ~Rig() { server.reset(); }

  const Tokenizer& tokenizer;
  server::ServerConfig config;
  engine::EngineConfig engine_config;
  std::unique_ptr<engine::Engine> engine;
  std::unique_ptr<server::Server> server;
};

// Microseconds of CPU a token, the median of some rounds.
double whole_way(const Tokenizer& tokenizer, const chat::ChatTemplate& chat_template, int streams,
                 bool greedy) {
  Rig rig(tokenizer, chat_template, streams);
  const std::string request = request_text(greedy);
  std::vector<double> rounds;
  for (int round = 0; round <= kRounds; ++round) {
    double client = 0;
    int64_t events = 0;
    const int64_t tokens_before = rig.engine->stats().generation_tokens;
    const double before = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID);
    std::thread([&] {
      pin_to_core(1);
      events = read_streams(rig.server->port(), streams, request, &client);
    }).join();
    const double used = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) - before - client;
    const auto tokens = static_cast<double>(rig.engine->stats().generation_tokens - tokens_before);
    CHECK_EQ(static_cast<int>(tokens), streams * kTokensPerStream);
    if (static_cast<double>(events) < 0.98 * tokens) {
      fmt::print("round {}: {} events for {:.0f} tokens: some shared a write\n", round, events,
                 tokens);
    }
    if (round > 0) rounds.push_back(used / tokens * 1e6);  // the first warms up
  }
  std::sort(rounds.begin(), rounds.end());
  return rounds[rounds.size() / 2];
}

// --- the parts alone -----------------------------------------------------------------------------

// Microseconds of CPU of work(), which does `count` tokens; the median of some rounds.
template <typename Work>
double part(double count, Work work) {
  std::vector<double> rounds;
  for (int round = 0; round <= kRounds; ++round) {
    const double before = cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
    work();
    rounds.push_back((cpu_seconds(CLOCK_THREAD_CPUTIME_ID) - before) / count * 1e6);
  }
  std::sort(rounds.begin() + 1, rounds.end());
  return rounds[1 + kRounds / 2];
}

double schedule_part(int streams) {
  return part(static_cast<double>(streams) * kTokensPerStream, [&] {
    sched::Scheduler scheduler({.max_num_seqs = streams,
                                .max_num_batched_tokens = 8192,
                                .max_model_len = 4096,
                                .block_size = 16,
                                .num_blocks = streams * 64});
    for (int i = 0; i < streams; ++i) {
      sched::NewSequence sequence;
      sequence.seq_id = i + 1;
      sequence.prompt.assign(32, i + 1);
      sequence.max_tokens = kTokensPerStream;
      sequence.ignore_eos = true;
      CHECK(scheduler.add(std::move(sequence)));
    }
    std::vector<sched::RowResult> results;
    while (scheduler.has_work()) {
      const sched::StepPlan& plan = scheduler.schedule();
      results.resize(plan.rows.size());
      for (size_t i = 0; i < plan.rows.size(); ++i) {
        results[i].seq_id = plan.rows[i].seq_id;
        results[i].sampled.assign(plan.rows[i].samples ? 1 : 0, 7);
      }
      scheduler.update(plan, results);
    }
  });
}

double sample_part(int64_t vocab_size, const std::vector<TokenId>& ids, bool greedy) {
  runtime::Sampler sampler(vocab_size);
  Logits logits(vocab_size);
  runtime::SamplingParams params;
  params.temperature = greedy ? 0.0 : 0.6;
  params.top_p = greedy ? 1.0 : 0.95;
  const std::vector<TokenId> prompt = {1, 2, 3};
  return part(static_cast<double>(ids.size()), [&] {
    runtime::TokenHistory history(prompt, params, vocab_size);
    for (size_t i = 0; i < ids.size(); ++i) {
      history.push(
          sampler.sample(logits.peaked_at(ids[i]), params, history, static_cast<int64_t>(i) + 3));
    }
  });
}

std::vector<std::vector<TextPiece>> pieces_of(const Tokenizer& tokenizer,
                                              const std::vector<TokenId>& ids) {
  std::vector<std::vector<TextPiece>> pieces;
  TextStream text(tokenizer, {});
  for (const TokenId id : ids) text.push(id, pieces.emplace_back());
  return pieces;
}

struct AnswerParts {
  double detokenize, parse, serialise;
};

AnswerParts answer_parts(const Tokenizer& tokenizer, const chat::ChatTemplate& chat_template,
                         const server::ServerConfig& config, const std::vector<TokenId>& ids) {
  const auto count = static_cast<double>(ids.size());
  AnswerParts parts{};
  parts.detokenize = part(count, [&] { pieces_of(tokenizer, ids); });
  const auto pieces = pieces_of(tokenizer, ids);
  const Json body = Json::parse(request_text(true).substr(request_text(true).find('{')));
  const auto generation = server::parse_chat(body, {config, tokenizer, chat_template});
  CHECK(generation.ok());
  parts.parse = part(count, [&] {
    chat::OutputParser parser(&tokenizer, generation.value().parser);
    std::vector<chat::Delta> deltas;
    for (const auto& step : pieces) {
      for (const TextPiece& piece : step) parser.push(piece, deltas);
      deltas.clear();
    }
  });
  parts.serialise = part(count, [&] {
    const auto answer = server::make_answer(
        {"chatcmpl-0123456789abcdef0123456789abcdef", 1700000000, "eyrie-bench"},
        generation.value(), config, tokenizer);
    std::string events;
    for (const auto& step : pieces) {
      engine::OutputChunk chunk;
      chunk.pieces = step;
      answer->take(std::move(chunk), events);
      events.clear();
    }
  });
  parts.serialise -= parts.parse;
  return parts;
}

int bench(const std::string& model, int streams) {
  pin_to_core(0);
  const Tokenizer tokenizer = Tokenizer::load(model);
  const auto chat_template = chat::load_chat_template({.tokenizer_dir = model, .model_dir = model});
  server::ServerConfig config;
  config.served_model_names = {"kimi-k2.5-nano"};
  config.vocab_size = tokenizer.vocab_size();
  const std::vector<TokenId> ids = script(tokenizer);

  const double greedy = whole_way(tokenizer, *chat_template, streams, true);
  const double sampled = whole_way(tokenizer, *chat_template, streams, false);
  const double schedule = schedule_part(streams);
  const double sample = sample_part(config.vocab_size, ids, true);
  const AnswerParts answer = answer_parts(tokenizer, *chat_template, config, ids);
  const double rest =
      greedy - schedule - sample - answer.detokenize - answer.parse - answer.serialise;
  fmt::print("CPU time a token outside the model, {} streams, one core, vocabulary {}\n", streams,
             config.vocab_size);
  const auto row = [](const char* name, double us) {
    fmt::print("  {:<34} {:7.2f} us\n", name, us);
  };
  row("whole way, greedy", greedy);
  row("  schedule and update", schedule);
  row("  sample (greedy)", sample);
  row("  detokenize", answer.detokenize);
  row("  parse", answer.parse);
  row("  serialise", answer.serialise);
  row("  publish, wake, frame, send", rest);
  row("whole way, temperature and top_p", sampled);
  row("sample alone, temperature and top_p", sample_part(config.vocab_size, ids, false));
  row("sample alone, greedy, 163840 ids", sample_part(163840, ids, true));
  return 0;
}

}  // namespace
}  // namespace eyrie

int main(int argc, char** argv) {
  return eyrie::bench(argc > 1 ? argv[1] : "models/kimi-k2.5-nano",
                      argc > 2 ? std::stoi(argv[2]) : 64);
}
