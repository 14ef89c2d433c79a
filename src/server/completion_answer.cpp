// Answers of /v1/completions.
#include <algorithm>

#include "server/answer.h"
#include "server/event_template.h"
#include "tokenizer/utf8.h"

namespace eyrie::server {
namespace {

class CompletionAnswer final : public Answer {
 public:
  CompletionAnswer(AnswerHeader header, const CompletionGeneration& generation,
                   const ServerConfig& config, const Tokenizer& tokenizer)
      : Answer(std::move(header), generation, config, tokenizer),
        prompt_texts_(generation.prompt_texts),
        wants_logprobs_(generation.shows_logprobs),
        num_shown_(generation.num_shown),
        num_candidates_(generation.n),
        own_(static_cast<size_t>(generation.num_choices())) {}

 private:
  // The lists of a logprobs object, those not yet streamed.
  struct Lists {
    Json text_offset = Json::array();
    Json token_logprobs = Json::array();
    Json tokens = Json::array();
    Json top_logprobs = Json::array();
  };
  struct Own {
    std::string text;
    Lists lists;
    int64_t text_offset = 0;  // characters, as Python counts them
    double sum_logprob = 0;   // of the answer's tokens
    int64_t num_logprobs = 0;
    EventTemplate event;
    double mean_logprob() const {
      return sum_logprob / static_cast<double>(std::max<int64_t>(num_logprobs, 1));
    }
  };

  const char* object_name() const override { return "text_completion"; }

  void take_choice(Choice& choice, int32_t choice_idx, engine::OutputChunk& chunk,
                   std::string& events) override {
    Own& own = own_[static_cast<size_t>(choice_idx)];
    const bool is_first = !choice.started;
    if (is_first && !prompt_texts_.empty()) {
      own.text += prompt_texts_[choice.prompt_idx];
      if (wants_logprobs_) add_prompt(choice, own);
    }
    for (const TextPiece& piece : chunk.pieces) own.text += piece.text;
    for (const runtime::Logprobs& entry : chunk.logprobs) {
      own.sum_logprob += finite_logprob(entry.token.logprob);
      ++own.num_logprobs;
      if (wants_logprobs_) add(entry, own);
    }
    if (!is_stream_) return;

    const bool is_plain = choice.finish == engine::FinishReason::kNone && !wants_logprobs_ &&
                          !return_token_ids_ && !continuous_usage_;
    if (is_plain && !own.event.empty()) {
      own.event.append(own.text, events);
      own.text.clear();
      return;
    }
    Json entry = {{"index", choice_idx},
                  {"text", is_plain ? EventTemplate::kSlot : std::exchange(own.text, {})},
                  {"logprobs", take_logprobs(own)},
                  {"finish_reason", finish_json(choice)},
                  {"stop_reason", choice.stop_reason}};
    if (is_plain) {
      own.event = EventTemplate(stream_chunk(std::move(entry), choice, choice.num_tokens));
      own.event.append(std::exchange(own.text, {}), events);
      return;
    }
    if (return_token_ids_) {
      entry["prompt_token_ids"] = is_first ? Json(prompt_of(choice)) : Json(nullptr);
      entry["token_ids"] = std::exchange(choice.token_ids, {});
    }
    append_event(stream_chunk(std::move(entry), choice, choice.num_tokens), events);
  }

  Json whole_choice(Choice& choice, int32_t choice_idx) override {
    Own& own = own_[static_cast<size_t>(choice_idx)];
    return {{"index", choice_idx},
            {"text", std::move(own.text)},
            {"logprobs", take_logprobs(own)},
            {"finish_reason", finish_json(choice)},
            {"stop_reason", choice.stop_reason},
            {"token_ids", return_token_ids_ ? Json(choice.token_ids) : Json(nullptr)},
            {"prompt_logprobs", prompt_logprobs_json(choice)},
            {"prompt_token_ids", return_token_ids_ ? Json(prompt_of(choice)) : Json(nullptr)}};
  }

  // With best_of, the likeliest of each prompt's candidates by the mean over their tokens.
  std::vector<int32_t> shown_choices() const override {
    std::vector<int32_t> order = Answer::shown_choices();
    if (num_shown_ == num_candidates_) return order;
    std::vector<int32_t> shown;
    for (auto begin = order.begin(); begin != order.end(); begin += num_candidates_) {
      std::stable_sort(begin, begin + num_candidates_, [&](int32_t a, int32_t b) {
        return own_[static_cast<size_t>(a)].mean_logprob() >
               own_[static_cast<size_t>(b)].mean_logprob();
      });
      shown.insert(shown.end(), begin, begin + num_shown_);
    }
    return shown;
  }

  static Json finish_json(const Choice& choice) {
    if (choice.finish == engine::FinishReason::kNone) return nullptr;
    return std::string(to_string(choice.finish));
  }

  void add_token(TokenId id, Own& own) {
    const std::string text = token_text(id);
    own.lists.text_offset.push_back(own.text_offset);
    own.text_offset += utf8_length(text);
    own.lists.tokens.push_back(text);
  }

  void add(const runtime::Logprobs& entry, Own& own) {
    add_token(entry.token.id, own);
    own.lists.token_logprobs.push_back(finite_logprob(entry.token.logprob));
    Json top = Json::object();
    top[token_text(entry.token.id)] = finite_logprob(entry.token.logprob);
    for (const runtime::TokenLogprob& other : entry.top) {
      const std::string key = token_text(other.id);
      if (!top.contains(key)) top[key] = finite_logprob(other.logprob);
    }
    own.lists.top_logprobs.push_back(std::move(top));
  }

  void add_prompt(const Choice& choice, Own& own) {
    add_token(prompt_of(choice).front(), own);
    own.lists.token_logprobs.push_back(nullptr);
    own.lists.top_logprobs.push_back(nullptr);
    for (const runtime::Logprobs& entry : choice.prompt_logprobs) add(entry, own);
  }

  Json take_logprobs(Own& own) const {
    if (!wants_logprobs_) return nullptr;
    Lists lists = std::exchange(own.lists, {});
    return {{"text_offset", std::move(lists.text_offset)},
            {"token_logprobs", std::move(lists.token_logprobs)},
            {"tokens", std::move(lists.tokens)},
            {"top_logprobs", std::move(lists.top_logprobs)}};
  }

  std::vector<std::string> prompt_texts_;  // with echo
  bool wants_logprobs_;
  int32_t num_shown_;       // choices of a prompt that the answer has
  int32_t num_candidates_;  // choices of a prompt that were generated
  std::vector<Own> own_;
};

}  // namespace

std::unique_ptr<Answer> make_answer(AnswerHeader header, const CompletionGeneration& generation,
                                    const ServerConfig& config, const Tokenizer& tokenizer) {
  return std::make_unique<CompletionAnswer>(std::move(header), generation, config, tokenizer);
}

}  // namespace eyrie::server
