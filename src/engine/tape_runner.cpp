#include "engine/tape_runner.h"

#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/check.h"

namespace eyrie::engine {
namespace {

std::string base64_of_byte(int byte) {
  static constexpr char kAlphabet[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  return {kAlphabet[byte >> 2], kAlphabet[(byte & 3) << 4], '=', '='};
}

}  // namespace

Tokenizer make_byte_tokenizer() {
  std::string dir = (std::filesystem::temp_directory_path() / "eyrie-bytes-XXXXXX").string();
  CHECK(mkdtemp(dir.data()) != nullptr);
  {
    std::ofstream file(dir + "/tiktoken.model");
    for (int byte = 0; byte < 256; ++byte) file << base64_of_byte(byte) << ' ' << byte << '\n';
  }
  Tokenizer tokenizer = Tokenizer::load(dir);
  std::filesystem::remove_all(dir);
  return tokenizer;
}

void TapeRunner::add_sequence(sched::SequenceId seq_id, std::span<const TokenId> prompt,
                              const runtime::SamplingParams& params) {
  const bool added =
      sequences_.try_emplace(seq_id, Sequence{{prompt.begin(), prompt.end()}, params}).second;
  CHECK(added, "sequence {} added twice", seq_id);
  ++num_sequences;
}

void TapeRunner::remove_sequence(sched::SequenceId seq_id) {
  CHECK_EQ(sequences_.erase(seq_id), 1U);
  --num_sequences;
}

const runtime::StepOutput& TapeRunner::execute(const sched::StepPlan& plan) {
  if (before_step) before_step();
  output_.rows.assign(plan.rows.size(), {});
  output_.extras.assign(plan.rows.size(), {});
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const sched::StepRow& row = plan.rows[i];
    const Sequence& sequence = sequences_.at(row.seq_id);
    sched::RowResult& result = output_.rows[i];
    runtime::RowExtras& extras = output_.extras[i];
    result.seq_id = row.seq_id;
    const auto num_prompt = static_cast<int64_t>(sequence.prompt.size());
    const auto target = [&](int64_t idx) { return tape_(sequence.prompt, sequence.params, idx); };

    for (int64_t p = row.first_position; p < row.first_position + row.num_tokens; ++p) {
      const TokenId token = row.tokens[static_cast<size_t>(p - row.first_position)];
      if (p < num_prompt) CHECK_EQ(token, sequence.prompt[static_cast<size_t>(p)]);
      if (sequence.params.prompt_logprobs && p + 1 < num_prompt) {
        extras.prompt_logprobs.push_back(logprobs(sequence.prompt[static_cast<size_t>(p + 1)],
                                                  *sequence.params.prompt_logprobs));
      }
    }
    if (!row.samples) continue;

    const int64_t first_idx =
        row.first_position + row.num_tokens - row.num_draft_tokens - num_prompt;
    int64_t accepted = 0;
    for (;; ++accepted) {
      const TokenId token = target(first_idx + accepted);
      if (token == runtime::Sampler::kNumericFault) {
        extras.numeric_fault = true;
        result.sampled.clear();
        break;
      }
      result.sampled.push_back(token);
      if (sequence.params.logprobs) {
        extras.logprobs.push_back(logprobs(token, *sequence.params.logprobs));
      }
      const auto draft = static_cast<size_t>(row.num_tokens - row.num_draft_tokens + accepted);
      if (accepted == row.num_draft_tokens || row.tokens[draft] != token) break;
    }
    if (extras.numeric_fault) continue;
    const int64_t next_idx = first_idx + accepted + 1;
    const int64_t right = drafts_(next_idx);
    for (int64_t d = 0; d < row.num_drafts_to_propose; ++d) {
      const TokenId truth = std::max(target(next_idx + d), 0);
      result.proposed.push_back(d < right ? truth : (truth + 1) % 256);
    }
  }
  return output_;
}

runtime::Logprobs TapeRunner::logprobs(TokenId token, int32_t num_top) const {
  runtime::Logprobs out;
  out.token = {token, logprob_of(token), 1};
  for (int32_t i = 0; i < num_top; ++i) {
    const TokenId other = (token + i) % 256;
    out.top.push_back({i == 0 ? token : other, logprob_of(token) - static_cast<float>(i), i + 1});
  }
  return out;
}

TapeRunner::Tape say(const Tokenizer& tokenizer, const std::string& text) {
  const std::vector<TokenId> ids = tokenizer.encode(text, AllowSpecial::kAll);
  const TokenId end = tokenizer.id_of("<|im_end|>").value();
  return [ids, end](std::span<const TokenId>, const runtime::SamplingParams& params, int64_t idx) {
    const auto i = static_cast<size_t>(idx);
    const TokenId token = i < ids.size() ? ids[i] : end;
    // As the sampler would, an end token is masked until min_tokens.
    return token == end && idx < params.min_tokens ? TokenId{'~'} : token;
  };
}

}  // namespace eyrie::engine
