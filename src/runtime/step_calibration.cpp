#include "runtime/step_calibration.h"

#include <algorithm>
#include <chrono>

#include "base/math.h"

namespace eyrie::runtime {
namespace {

using Clock = std::chrono::steady_clock;

// Every sequence shares this much context (whole blocks), computed once.
constexpr int32_t kContext = 128;
constexpr int32_t kMostSequences = 64;
constexpr int32_t kMostRows = 256;
// A shape that is quickly done is measured so often in a row, for its first steps find the caches
// full of other weights; the cheapest counts. More than once, some time apart, where there is time:
// a pause of the machine may last longer than a row of them.
constexpr int kInARow = 4;
constexpr double kQuickSeconds = 0.002;
constexpr int kRounds = 3;
// A proposal of two shows a pass on the draft's own output too.
constexpr int32_t kProposed = 2;

struct Shape {
  int32_t num_sequences;
  int32_t rows_each;
};

class Calibrator {
 public:
  Calibrator(Runner& runner, const StepCalibration& calibration)
      : runner_(runner), calibration_(calibration), block_size_(runner.kv().block_size()) {
    const int32_t deepest = std::max(calibration.num_speculative_tokens, kProposed);
    num_own_blocks_ = static_cast<int32_t>(div_ceil(deepest + 1 + kProposed, block_size_));
    num_shared_blocks_ = std::max(1, kContext / block_size_);
    params_.temperature = 0;
    params_.ignore_eos = true;
  }

  sched::StepCosts run() {
    sched::StepCosts costs;
    if (num_shared_blocks_ + num_own_blocks_ > runner_.kv().num_blocks()) return costs;
    make_shapes();
    compute_context();
    best_.resize(shapes_.size());
    for (int round = 0; round < kRounds; ++round) {
      for (size_t i = 0; i < shapes_.size(); ++i) {
        // Wide steps are last and dear: once is enough. A step costs at most what its rows say.
        const bool wide = shapes_[i].rows_each > 1;
        const double expected = seconds_a_row_ * shapes_[i].num_sequences * shapes_[i].rows_each;
        const bool fits = seconds_since_start() + expected < calibration_.max_seconds;
        if (i > 0 && (!fits || (wide && round > 0))) break;
        int num_left = kInARow;
        do {
          measure(shapes_[i], best_[i]);
        } while (--num_left > 0 && best_[i].total_seconds() < kQuickSeconds);
      }
    }
    for (const sched::StepTimes& times : best_) costs.set(times);
    return costs;
  }

 private:
  void make_shapes() {
    const auto num_blocks = static_cast<int32_t>(
        std::min<int64_t>(runner_.kv().num_blocks(), std::numeric_limits<int32_t>::max()));
    const int32_t most = std::min({calibration_.max_num_seqs, kMostSequences,
                                   (num_blocks - num_shared_blocks_) / num_own_blocks_});
    for (int32_t n = 1; n <= most; n *= 2) shapes_.push_back({n, 1});
    const int32_t rows_each = calibration_.num_speculative_tokens + 1;
    for (int32_t rows = 2 * most; rows <= kMostRows; rows *= 2) {
      if (rows / rows_each >= 1 && rows / rows_each <= most) {
        shapes_.push_back({rows / rows_each, rows_each});
      }
    }
  }

  double seconds_since_start() const {
    return std::chrono::duration<double>(Clock::now() - start_).count();
  }

  void compute_context() {
    context_.assign(static_cast<size_t>(num_shared_blocks_ * block_size_), TokenId{0});
    for (TokenId& token : context_) token = next_token();
    sched::StepRow row;
    row.num_tokens = static_cast<int32_t>(context_.size());
    row.next_token = 0;
    row.tokens = context_;
    for (int32_t block = 0; block < num_shared_blocks_; ++block) row.block_table.push_back(block);
    context_.push_back(0);
    execute({&row, 1});
  }

  void measure(const Shape& shape, sched::StepTimes& best) {
    std::vector<sched::StepRow> rows(static_cast<size_t>(shape.num_sequences));
    for (size_t i = 0; i < rows.size(); ++i) {
      sched::StepRow& row = rows[i];
      row.seq_id = static_cast<int64_t>(i);
      row.first_position = static_cast<int32_t>(context_.size()) - 1;
      row.num_tokens = shape.rows_each;
      row.num_draft_tokens = shape.rows_each - 1;
      row.samples = true;
      row.num_drafts_to_propose = shape.rows_each == 1 ? kProposed : 0;
      row.draft_waits = row.num_drafts_to_propose == 0;
      for (int32_t j = 0; j < shape.rows_each; ++j) row.tokens.push_back(next_token());
      for (int32_t block = 0; block < num_shared_blocks_; ++block) row.block_table.push_back(block);
      for (int32_t block = 0; block < num_own_blocks_; ++block) {
        row.block_table.push_back(num_shared_blocks_ + static_cast<int32_t>(i) * num_own_blocks_ +
                                  block);
      }
    }
    const sched::StepTimes& times = execute(rows);
    seconds_a_row_ = times.total_seconds() / times.num_rows;
    if (best.num_rows == 0 || times.total_seconds() < best.total_seconds()) best = times;
  }

  // All different, or every row would go to the same experts.
  TokenId next_token() {
    const auto vocab = static_cast<TokenId>(runner_.model_config().vocab_size);
    return static_cast<TokenId>(num_tokens_made_++ * 37 + 11) % vocab;
  }

  const sched::StepTimes& execute(std::span<const sched::StepRow> rows) {
    sched::StepPlan plan;
    plan.rows.assign(rows.begin(), rows.end());
    for (const sched::StepRow& row : rows) {
      plan.num_tokens += row.num_tokens;
      runner_.add_sequence(row.seq_id, context_, params_);
    }
    const sched::StepTimes& times = runner_.execute(plan).times;
    for (const sched::StepRow& row : rows) runner_.remove_sequence(row.seq_id);
    return times;
  }

  Runner& runner_;
  const StepCalibration calibration_;
  const int32_t block_size_;
  int32_t num_shared_blocks_ = 0;
  int32_t num_own_blocks_ = 0;
  SamplingParams params_;
  std::vector<TokenId> context_;
  std::vector<Shape> shapes_;
  std::vector<sched::StepTimes> best_;
  double seconds_a_row_ = 0;
  int32_t num_tokens_made_ = 0;
  const Clock::time_point start_ = Clock::now();
};

}  // namespace

sched::StepCosts calibrate_steps(Runner& runner, const StepCalibration& calibration) {
  return Calibrator(runner, calibration).run();
}

}  // namespace eyrie::runtime
