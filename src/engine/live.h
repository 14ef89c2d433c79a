// A request and a sequence while the engine serves them; engine thread only. Private to the room.
#pragma once

#include "engine/engine.h"

namespace eyrie::engine {

struct Engine::LiveRequest {
  RequestId id = 0;
  std::shared_ptr<OutputStream> stream;
  std::vector<sched::SequenceId> live;  // choices that are not finished
};

struct Engine::LiveSequence {
  LiveRequest* request = nullptr;
  int32_t choice_idx = 0;
  TextStream text;
  bool include_stop = false;
  bool wants_logprobs = false;
  int32_t min_tokens = 0;
  int32_t max_tokens = 0;
  int32_t num_prompt_tokens = 0;
  int32_t num_tokens = 0;  // generated and reported
  // Logprobs of tokens whose text is still held back, and of the prompt until the first chunk.
  std::vector<runtime::Logprobs> logprobs;
  std::vector<runtime::Logprobs> prompt_logprobs;
  Clock::time_point arrival, scheduled, first_token, last_token;
  bool was_scheduled = false;
};

inline double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace eyrie::engine
