#include "bench/timeline.h"

#include <algorithm>
#include <cmath>

namespace eyrie::bench {

const char* token_source_name(TokenSource source) {
  switch (source) {
    case TokenSource::kUsage:
      return "usage in every chunk";
    case TokenSource::kTokenIds:
      return "token ids in every chunk";
    case TokenSource::kOnePerChunk:
      return "one token per chunk";
    case TokenSource::kEvenShare:
      return "total spread evenly over chunks";
  }
  return "";
}

double RequestRecord::ttft() const { return chunks.empty() ? 0.0 : chunks.front().at - start; }
double RequestRecord::latency() const { return chunks.empty() ? 0.0 : chunks.back().at - start; }

double RequestRecord::tpot() const {
  if (output_tokens <= 1) return 0.0;
  return (latency() - ttft()) / static_cast<double>(output_tokens - 1);
}

std::vector<double> RequestRecord::inter_token_gaps() const {
  std::vector<double> gaps;
  if (output_tokens <= 1 || chunks.empty()) return gaps;
  const auto wanted = static_cast<size_t>(output_tokens - 1);
  gaps.reserve(wanted);
  if (token_source == TokenSource::kEvenShare) {
    gaps.assign(wanted, tpot());
    return gaps;
  }
  gaps.assign(static_cast<size_t>(std::max(0.0, chunks.front().tokens - 1.0)), 0.0);
  double since = chunks.front().at;
  for (size_t i = 1; i < chunks.size(); ++i) {
    const auto tokens = static_cast<size_t>(chunks[i].tokens);
    if (tokens == 0) continue;  // an end mark: its time joins the next chunk that bears tokens
    gaps.insert(gaps.end(), tokens, (chunks[i].at - since) / static_cast<double>(tokens));
    since = chunks[i].at;
  }
  return gaps;
}

void TimelineBuilder::add(const StreamChunk& chunk, double at) {
  if (!chunk.error.empty()) error_ = chunk.error;
  if (chunk.done || !chunk.error.empty()) return;
  if (chunk.completion_tokens) completion_tokens_ = *chunk.completion_tokens;
  if (chunk.prompt_tokens) prompt_tokens_ = *chunk.prompt_tokens;
  if (chunk.cached_tokens) cached_tokens_ = *chunk.cached_tokens;
  if (!chunk.has_choices) return;
  text_ += chunk.text;
  if (!chunk.finish_reason.empty()) finish_reason_ = chunk.finish_reason;
  const bool role_only = is_chat_ && arrivals_.empty() && !chunk.bears_content &&
                         chunk.finish_reason.empty() && chunk.completion_tokens.value_or(0) == 0;
  if (role_only) return;
  arrivals_.push_back({at, chunk.completion_tokens.value_or(-1), chunk.num_token_ids.value_or(-1)});
}

int64_t TimelineBuilder::tokens_so_far() const {
  return std::max(completion_tokens_, num_chunks());
}

void TimelineBuilder::finish(RequestRecord& record) {
  record.prompt_tokens = prompt_tokens_ > 0 ? prompt_tokens_ : record.prompt_tokens;
  record.cached_tokens = cached_tokens_;
  record.finish_reason = std::move(finish_reason_);
  record.text = std::move(text_);
  const int64_t total = completion_tokens_;
  record.output_tokens = total;

  const auto all_of = [&](auto&& has) {
    return std::all_of(arrivals_.begin(), arrivals_.end(), has);
  };
  const bool has_usage = all_of([](const Arrival& a) { return a.usage_total >= 0; });
  int64_t listed = 0;
  for (const auto& arrival : arrivals_) listed += std::max<int64_t>(0, arrival.num_token_ids);
  const auto num_chunks = static_cast<int64_t>(arrivals_.size());

  record.chunks.reserve(arrivals_.size());
  if (has_usage && !arrivals_.empty() && arrivals_.back().usage_total == total) {
    record.token_source = TokenSource::kUsage;
    int64_t before = 0;
    for (const auto& arrival : arrivals_) {
      const int64_t tokens = std::max<int64_t>(0, arrival.usage_total - before);
      record.chunks.push_back({arrival.at, static_cast<double>(tokens)});
      before = std::max(before, arrival.usage_total);
    }
  } else if (listed > 0 && listed == total) {
    record.token_source = TokenSource::kTokenIds;
    for (const auto& arrival : arrivals_) {
      const int64_t tokens = std::max<int64_t>(0, arrival.num_token_ids);
      record.chunks.push_back({arrival.at, static_cast<double>(tokens)});
    }
  } else {
    const bool single = num_chunks == total;
    record.token_source = single ? TokenSource::kOnePerChunk : TokenSource::kEvenShare;
    const double share =
        num_chunks == 0 ? 0.0 : static_cast<double>(total) / static_cast<double>(num_chunks);
    for (const auto& arrival : arrivals_) record.chunks.push_back({arrival.at, share});
  }
}

}  // namespace eyrie::bench
