#include "bench/warnings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace eyrie::bench {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// An honest run of four requests; each test spoils one thing.
struct Case {
  ServeOptions options;
  Dataset dataset;
  ServerInfo server;
  ServeRun run;
  double preemptions = 0.0;

  Case() {
    options.dataset.name = "custom";
    options.max_concurrency = 2;
    server.max_model_len = 100;
    for (int64_t i = 0; i < 4; ++i) {
      dataset.prompts.push_back({"p" + std::to_string(i), 50, 10});
      RequestRecord record;
      record.ok = true;
      record.output_tokens = record.asked_tokens = 10;
      record.token_source = TokenSource::kUsage;
      run.records.push_back(record);
    }
    run.metrics.completed = 4;
  }
  std::vector<std::string> after() const {
    return warnings_after(options, dataset, server, run, preemptions);
  }
  std::vector<std::string> before() const { return warnings_before(options, dataset, server); }
};

TEST(WarningsTest, AnHonestRunHasNone) {
  EXPECT_THAT(Case().after(), IsEmpty());
  EXPECT_THAT(Case().before(), IsEmpty());
}

TEST(WarningsTest, AModelTheServerDoesNotList) {
  Case c;
  c.server.is_listed = false;
  c.server.served_names = "nano";
  c.server.model_name = "amd/Kimi-K2.5-MXFP4";
  EXPECT_THAT(c.before(), ElementsAre(HasSubstr("lists nano, not amd/Kimi-K2.5-MXFP4")));
}

TEST(WarningsTest, RandomTokensWithSpeculation) {
  Case c;
  c.run.spec.emplace();
  c.run.spec->acceptance_length = 3.93;
  EXPECT_THAT(c.after(), IsEmpty());
  c.options.dataset.name = "random";
  EXPECT_THAT(c.after(), ElementsAre(HasSubstr("judged on nonsense (acceptance length 3.93)")));
}

TEST(WarningsTest, SaturatedClient) {
  Case c;
  c.run.client_cpu_share = 0.4;
  EXPECT_THAT(c.after(), IsEmpty());
  c.run.client_cpu_share = 0.9;
  EXPECT_THAT(c.after(), ElementsAre(HasSubstr("90 % of a core")));
}

TEST(WarningsTest, CachedAndRepeatedPrompts) {
  Case c;
  c.run.prefix_hit_rate = 0.125;
  c.dataset.num_repeated = 3;
  EXPECT_THAT(c.after(), ElementsAre(HasSubstr("12.5 % of prompt tokens"),
                                     HasSubstr("3 of 4 prompts repeat")));
}

TEST(WarningsTest, ContextExceeded) {
  Case c;
  c.dataset.prompts[0].output_len = 51;
  EXPECT_THAT(c.before(), ElementsAre(HasSubstr("1 of 4 requests ask for more than the server's "
                                                "context of 100 tokens")));
  EXPECT_THAT(c.before()[0], testing::Not(HasSubstr("inferencex")));
  c.options.dataset.name = "random";
  c.options.dataset.input_range_ratio = 0.8;
  EXPECT_THAT(c.before()[0], HasSubstr("--random-range-ratio-mode inferencex"));
  c.server.max_model_len = 0;  // the server does not say
  EXPECT_THAT(c.before(), IsEmpty());
}

TEST(WarningsTest, FailuresQuoteTheFirst) {
  Case c;
  c.run.records[1].ok = false;
  c.run.records[1].error = "HTTP 500";
  c.run.metrics.completed = 3;
  c.run.metrics.failed = 1;
  EXPECT_THAT(c.after(), ElementsAre(HasSubstr("1 of 4 requests failed and count only as failed; "
                                               "the first said: HTTP 500")));
}

TEST(WarningsTest, UnknownTokensPerChunkShortAnswersPreemptionsAndTooFewPrompts) {
  Case c;
  c.run.records[0].token_source = TokenSource::kEvenShare;
  EXPECT_THAT(c.after(), ElementsAre(HasSubstr("how many tokens a chunk holds (1 requests)")));
  c = Case();
  c.run.records[0].output_tokens = 3;
  EXPECT_THAT(c.after(), ElementsAre(HasSubstr("1 of 4 answers ended before the length asked for "
                                               "(33 of 40 tokens)")));
  c = Case();
  c.preemptions = 2.0;
  EXPECT_THAT(c.after(), ElementsAre(HasSubstr("preempted 2 times")));
  c = Case();
  c.options.max_concurrency = 8;
  EXPECT_THAT(c.after(), ElementsAre(HasSubstr("4 prompts never reach --max-concurrency 8")));
}

}  // namespace
}  // namespace eyrie::bench
