// What a front end gives the engine and what comes back. One GenerateRequest asks for n choices;
// every choice is one sequence. Tokens come back as OutputChunks through an OutputStream, which the
// engine thread fills and one front-end thread at a time empties.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "runtime/sampler.h"
#include "tokenizer/text_stream.h"

namespace eyrie::engine {

using Clock = std::chrono::steady_clock;
using RequestId = uint64_t;

struct GenerateRequest {
  std::vector<TokenId> prompt;
  runtime::SamplingParams params;  // eos_token_ids are filled in by the engine
  bool has_seed = false;           // params.seed counts; otherwise one is derived
  int32_t n = 1;
  TextStreamOptions text;
  int32_t first_choice_idx = 0;  // choices are first_choice_idx … + n - 1 in its chunks
  int32_t priority = 0;
  std::string cache_salt;
  Clock::time_point arrival = Clock::now();
};

enum class FinishReason { kNone, kStop, kLength, kAbort, kError, kRepetition };
std::string_view to_string(FinishReason reason);  // as OpenAI's finish_reason spells it

// News of one choice: the tokens that became certain, in order. Over all chunks of a choice, pieces
// are exactly its tokens: none is missing, none runs past a stop.
struct OutputChunk {
  int32_t choice_idx = 0;
  std::vector<TextPiece> pieces;
  std::vector<runtime::Logprobs> logprobs;  // one per piece when asked for
  // In the first chunk, when asked for: of prompt tokens 1 … size - 1.
  std::vector<runtime::Logprobs> prompt_logprobs;
  FinishReason finish = FinishReason::kNone;
  std::string stop_string;            // with kStop by a stop string
  std::optional<TokenId> stop_token;  // with kStop by one of the request's stop_token_ids
  int32_t num_cached_tokens = 0;      // of the prompt, found in the prefix cache
  Failure failure;                    // with kError
};

// Lives as long as either side needs it (hence shared_ptr): the client may leave before the engine
// is done with it, and the engine may be done before a slow client has read everything. Bounded:
// what is not taken grows to kMaxPendingBytes, then the stream is overrun and its request ends.
class OutputStream {
 public:
  // notify runs on the engine thread whenever the stream stops being empty: it must be quick and
  // may only wake somebody up.
  explicit OutputStream(std::function<void()> notify) : notify_(std::move(notify)) {}

  static constexpr size_t kMaxPendingBytes = size_t{16} << 20;

  // False: nobody has taken anything for so long that the chunk is dropped, as are all later ones.
  bool publish(OutputChunk&& chunk) {
    bool was_empty = false;
    {
      std::lock_guard lock(mutex_);
      was_empty = chunks_.empty();
      pending_bytes_ += approximate_bytes(chunk);
      overrun_ = overrun_ || (pending_bytes_ > kMaxPendingBytes && !was_empty);
      if (overrun_) return false;
      chunks_.push_back(std::move(chunk));
    }
    if (was_empty) notify_();
    return true;
  }

  // Everything published since the last take(), in order.
  std::vector<OutputChunk> take() {
    std::lock_guard lock(mutex_);
    pending_bytes_ = 0;
    return std::exchange(chunks_, {});
  }

  bool overrun() const {
    std::lock_guard lock(mutex_);
    return overrun_;
  }

 private:
  static size_t approximate_bytes(const OutputChunk& chunk) {
    size_t bytes = sizeof(chunk) + chunk.pieces.size() * sizeof(TextPiece);
    for (const auto* list : {&chunk.logprobs, &chunk.prompt_logprobs}) {
      for (const runtime::Logprobs& entry : *list) {
        bytes += sizeof(entry) + entry.top.size() * sizeof(entry.token);
      }
    }
    return bytes;
  }

  mutable std::mutex mutex_;
  std::vector<OutputChunk> chunks_;
  size_t pending_bytes_ = 0;
  bool overrun_ = false;
  const std::function<void()> notify_;
};

}  // namespace eyrie::engine
