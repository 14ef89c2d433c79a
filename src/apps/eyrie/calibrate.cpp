#include "apps/eyrie/calibrate.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/math.h"
#include "model/config.h"
#include "ops/observe.h"
#include "runtime/kv_storage.h"

namespace eyrie::apps {
namespace {

constexpr int32_t kBlockSize = ops::kAttentionTile;
constexpr int64_t kRowsPerPass = 512;

// "….mlp.experts.7.down_proj" → "….mlp.experts.*.down_proj"; nothing for other modules.
std::string expert_group(const std::string& module) {
  constexpr std::string_view kExperts = ".experts.";
  const size_t begin = module.find(kExperts);
  if (begin == std::string::npos) return "";
  const size_t end = module.find('.', begin + kExperts.size());
  if (end == std::string::npos) return "";
  return module.substr(0, begin + kExperts.size()) + "*" + module.substr(end);
}

class Calibrator {
 public:
  Calibrator(checkpoint::Checkpoint* files, const std::vector<std::string>& modules,
             int64_t max_tokens, int num_threads)
      : pool_(num_threads),
        observer_(ops::cpu_ops()),
        ctx_{.table = &ops::cpu_ops(), .pool = &pool_, .arena = &arena_},
        wanted_(modules.begin(), modules.end()),
        model_(model::KimiK25::load(ctx_, *files, model::ModelConfig::parse(files->config()))),
        kv_(runtime::KvLayout::of(model_.config(), nullptr), div_ceil(max_tokens, kBlockSize),
            kBlockSize),
        block_table_(static_cast<size_t>(kv_.num_blocks())) {
    std::iota(block_table_.begin(), block_table_.end(), 0);
    for (int64_t layer = 0; layer < model_.config().num_hidden_layers; ++layer) {
      kv_b_proj_amax_[model_.kv_b_proj_name(layer)] = 0.0f;
    }
    check_modules(files->path());
  }

  // One prompt, in passes over kRowsPerPass rows at most.
  void run(std::span<const TokenId> ids, const std::function<void(int64_t)>& on_rows) {
    for (size_t begin = 0; begin < ids.size(); begin += kRowsPerPass) {
      const auto part = ids.subspan(begin, std::min<size_t>(kRowsPerPass, ids.size() - begin));
      run_rows(part, static_cast<int32_t>(begin));
      on_rows(static_cast<int64_t>(part.size()));
    }
  }

  Calibration result() const {
    Calibration result;
    std::map<std::string, float> groups;  // of experts
    for (const model::NamedWeight& named : model_.named_weights()) {
      const float largest = observer_.largest(*named.weight);
      bool is_expert = false;
      for (const std::string& module : named.modules) {
        if (!wanted_.contains(module)) continue;
        result.amax[module] = largest;
        const std::string group = expert_group(module);
        if (group.empty()) continue;
        is_expert = is_expert || module.ends_with(".down_proj");
        float& shared = groups.emplace(group, 0.0f).first->second;
        if (!(largest <= shared)) shared = largest;  // NaN stays
      }
      if (!is_expert) continue;
      ++result.num_experts;
      if (largest == 0.0f) ++result.num_idle_experts;
    }
    for (const auto& [module, largest] : kv_b_proj_amax_) {
      if (wanted_.contains(module)) result.amax[module] = largest;
    }
    for (auto& [module, largest] : result.amax) {
      const auto group = groups.find(expert_group(module));
      if (group != groups.end()) largest = group->second;
    }
    return result;
  }

 private:
  void check_modules(const std::string& path) const {
    std::set<std::string> known;
    for (const model::NamedWeight& named : model_.named_weights()) {
      known.insert(named.modules.begin(), named.modules.end());
    }
    for (const std::string& module : wanted_) {
      if (known.contains(module) || kv_b_proj_amax_.contains(module)) continue;
      fail("{}: calibration runs the text model, which has no layer {}; --exclude it", path,
           module);
    }
  }

  void run_rows(std::span<const TokenId> ids, int32_t first_position) {
    arena_.reset();
    std::vector<int32_t> positions(ids.size());
    std::iota(positions.begin(), positions.end(), first_position);
    const ops::SequenceRows sequence = {.first_row = 0,
                                        .num_rows = static_cast<int32_t>(ids.size()),
                                        .first_position = first_position,
                                        .block_table = block_table_.data()};
    const model::TapSink tap = [&](std::string_view name, int64_t layer, const Tensor& tensor) {
      if (name != "kv_latent") return;
      float& largest = kv_b_proj_amax_[model_.kv_b_proj_name(layer)];
      largest = ops::largest_magnitude(tensor, largest);
    };
    const model::Step step = {.ctx = observer_.watched(ctx_),
                              .positions = positions,
                              .sequences = {&sequence, 1},
                              .caches = kv_.target(),
                              .tap_sink = &tap};
    const Tensor hidden = model_.forward(step, ids);
    if (!wanted_.contains(model_.lm_head_name()))
      return;  // the head costs much and is rarely asked
    const auto num_rows = static_cast<int64_t>(ids.size());
    std::vector<int32_t> rows(ids.size());
    std::iota(rows.begin(), rows.end(), 0);
    model_.logits(step, hidden, rows, step.f32({num_rows, model_.config().vocab_size}));
  }

  ThreadPool pool_;
  Arena arena_;
  ops::ActivationObserver observer_;
  const ops::Ctx ctx_;
  const std::set<std::string> wanted_;
  const model::KimiK25 model_;
  runtime::KvStorage kv_;
  std::vector<int32_t> block_table_;
  std::map<std::string, float> kv_b_proj_amax_;
};

}  // namespace

Calibration calibrate(checkpoint::Checkpoint* files, const std::vector<std::string>& modules,
                      std::span<const std::vector<TokenId>> prompts, int num_threads,
                      const std::function<void(const CalibrationProgress&)>& on_progress) {
  using Clock = std::chrono::steady_clock;
  int64_t longest = 1, total = 0, done = 0;
  for (const std::vector<TokenId>& ids : prompts) {
    longest = std::max(longest, static_cast<int64_t>(ids.size()));
    total += static_cast<int64_t>(ids.size());
  }
  Calibrator calibrator(files, modules, longest, num_threads);
  const Clock::time_point start = Clock::now();
  for (const std::vector<TokenId>& ids : prompts) {
    calibrator.run(ids, [&](int64_t rows) {
      done += rows;
      if (!on_progress) return;
      on_progress({done, total, std::chrono::duration<double>(Clock::now() - start).count()});
    });
  }
  Calibration result = calibrator.result();
  result.num_tokens = total;
  return result;
}

}  // namespace eyrie::apps
