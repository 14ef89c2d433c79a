// What one request looked like from outside: when its chunks came and how many tokens each bore.
//
// TPOT and ITL of this benchmark are per token, not per chunk. With speculation one chunk carries
// several tokens that became ready together; counting chunks would call a server slower the better
// its drafts are. Each gap between chunks is shared evenly by the tokens of the later chunk, and
// tokens that came together with the first chunk have a gap of zero, so that a request's gaps sum
// to (last chunk - first chunk) and there is one for every token but the first.
// Times are seconds on the run's clock, which starts when the first request is released.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/stream_chunk.h"

namespace eyrie::bench {

// Where the tokens of a chunk were counted, best first.
enum class TokenSource {
  kUsage,        // usage.completion_tokens in every chunk (continuous_usage_stats)
  kTokenIds,     // the server listed token ids or logprobs per chunk
  kOnePerChunk,  // as many chunks as tokens
  kEvenShare,    // only the total is known: every chunk is given its share
};
const char* token_source_name(TokenSource source);

struct ChunkMark {
  double at = 0.0;
  double tokens = 0.0;  // a fraction only under kEvenShare
};

struct RequestRecord {
  int64_t index = 0;
  double start = 0.0;  // when it was sent
  double end = 0.0;    // when the exchange was over
  std::vector<ChunkMark> chunks;
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;
  int64_t asked_tokens = 0;
  int64_t cached_tokens = 0;
  TokenSource token_source = TokenSource::kEvenShare;
  bool ok = false;
  int status = 0;     // HTTP
  std::string error;  // one sentence when not ok
  std::string finish_reason;
  std::string text;

  double ttft() const;     // first chunk - start
  double latency() const;  // last chunk - start
  double tpot() const;     // (latency - ttft) / (output_tokens - 1); 0 for one token
  std::vector<double> inter_token_gaps() const;
};

// Collects the events of one response. Chat streams may open with a role-only chunk; it counts as
// an arrival only if it bears content.
class TimelineBuilder {
 public:
  explicit TimelineBuilder(bool is_chat) : is_chat_(is_chat) {}
  void add(const StreamChunk& chunk, double at);

  // Fills chunks, token counts, text and finish reason of the record. count_text gives the tokens
  // of a text by the client's tokenizer (0 when there is none): used when the server sends no
  // usage.
  template <typename CountText>
  void finish(RequestRecord& record, CountText&& count_text) {
    if (completion_tokens_ == 0 && !text_.empty()) completion_tokens_ = count_text(text_);
    finish(record);
  }

  const std::string& error() const { return error_; }
  int64_t num_chunks() const { return static_cast<int64_t>(arrivals_.size()); }
  int64_t tokens_so_far() const;

 private:
  struct Arrival {
    double at = 0.0;
    int64_t usage_total = -1;    // completion tokens so far
    int64_t num_token_ids = -1;  // in this chunk
  };
  void finish(RequestRecord& record);

  bool is_chat_;
  std::vector<Arrival> arrivals_;
  int64_t completion_tokens_ = 0;
  int64_t prompt_tokens_ = 0;
  int64_t cached_tokens_ = 0;
  std::string text_;
  std::string finish_reason_;
  std::string error_;
};

}  // namespace eyrie::bench
