"""`bench latency` and `bench throughput`: the engine without a server, vLLM's report and keys."""

import json
import pathlib
import tempfile
import unittest

import harness
from harness import DRAFT, ROOT, TARGET, spec

NANO_MIX = ROOT / "data/prompts/nano-mix.jsonl"


def bench(*args, timeout=200):
    """(output, result JSON)"""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "result.json")
        result = harness.run("bench", *args, "--output-json", out, timeout=timeout)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout, json.loads(out.read_text())


@harness.needs_models
class LatencyTest(unittest.TestCase):
    def test_vllms_report_and_a_step_table_for_every_batch_size(self):
        text, result = bench("latency", "--model", TARGET, "--batch-size", "1,3", "--input-len", "40", "--output-len",
                             "24", "--num-iters-warmup", "1", "--num-iters", "3", "--bandwidth", "20")
        self.assertEqual(set(result), {"avg_latency", "latencies", "percentiles", "eyrie"})
        self.assertEqual(set(result["percentiles"]), {"10", "25", "50", "75", "90", "99"})
        self.assertEqual(len(result["latencies"]), 3)
        self.assertAlmostEqual(result["avg_latency"], sum(result["latencies"]) / 3, places=9)
        for words in ("Avg latency: ", "99% percentile latency: ", "Batch size 3", "of limit"):
            self.assertIn(words, text)
        one, three = result["eyrie"]["batches"]
        self.assertEqual((one["batch_size"], three["batch_size"]), (1, 3))
        self.assertAlmostEqual(one["expected_experts"], 4)
        self.assertGreater(three["expected_experts"], 4)
        # Every step of one sequence between its first and its last token.
        self.assertEqual(one["num_steps"], 3 * (24 - 2))
        self.assertEqual(one["tokens_per_sequence_step"], 1)
        self.assertGreater(one["share_of_limit"], 0)
        self.assertNotIn("draft", one["read_bytes"])

    def test_a_whole_batch_runs_at_once_however_short(self):
        _, result = bench("latency", TARGET, "--batch-size", "2,8", "--input-len", "18", "--output-len", "12",
                          "--num-iters-warmup", "1", "--num-iters", "1", "--enable-prefix-caching")
        for point in result["eyrie"]["batches"]:
            self.assertGreaterEqual(point["num_steps"], 6, point)

    def test_drafts_bring_more_tokens_a_step_and_are_read_too(self):
        text, result = bench("latency", TARGET, "--load-format", "dummy", "--batch-size", "4", "--input-len", "32",
                             "--output-len", "64", "--num-iters-warmup", "0", "--num-iters", "1",
                             *spec(DRAFT, 4, rejection_sample_method="synthetic", synthetic_acceptance_length=3))
        point = result["eyrie"]["batches"][0]
        self.assertEqual(point["draft_length"], 4)
        self.assertAlmostEqual(point["tokens_per_sequence_step"], 3, delta=0.8)
        self.assertGreater(point["read_bytes"]["draft head"], 0)
        self.assertIn("draft KV", text)

    def test_a_shape_without_a_vocabulary(self):
        overrides = {"text_config": {"num_hidden_layers": 2, "n_routed_experts": 8}}
        _, result = bench("latency", ROOT / "models/kimi-k2.5-mini", "--load-format", "dummy", "--hf-overrides",
                          json.dumps(overrides), "--batch-size", "1", "--input-len", "8", "--output-len", "4",
                          "--num-iters-warmup", "0", "--num-iters", "1", "--enable-prefix-caching")
        self.assertIn("made up", result["eyrie"]["load"])

    def test_mistakes_are_named(self):
        for flags, word in ((["--batch-size", "1,,2"], "batch-size"), (["--input-len", "0"], "input-len"),
                            (["--output-len", "9000"], "max-model-len"), (["--num-iters", "0"], "num-iters")):
            result = harness.run("bench", "latency", TARGET, *flags)
            self.assertEqual(result.returncode, 1, result.stdout)
            self.assertIn(word, result.stderr)


@harness.needs_models
class ThroughputTest(unittest.TestCase):
    def test_random_prompts(self):
        text, result = bench("throughput", "--model", TARGET, "--num-prompts", "6", "--input-len", "30", "--output-len",
                             "10", "--num-warmups", "1")
        self.assertEqual(result["num_requests"], 6)
        self.assertEqual(result["eyrie"]["num_output_tokens"], 60)
        self.assertAlmostEqual(result["requests_per_second"], 6 / result["elapsed_time"])
        self.assertAlmostEqual(result["tokens_per_second"], result["total_num_tokens"] / result["elapsed_time"])
        self.assertIn(" total tokens/s, ", text)
        self.assertIn("Total num output tokens:  60", text)

    def test_a_file_with_drafts(self):
        _, result = bench("throughput", TARGET, "--dataset-name", "custom", "--dataset-path", NANO_MIX,
                          "--skip-chat-template", "--num-prompts", "4", "--custom-output-len", "12", "--n", "2",
                          *spec(DRAFT, 3))
        self.assertEqual(result["eyrie"]["num_output_tokens"], 4 * 2 * 12)
        self.assertGreater(result["eyrie"]["num_accepted_tokens"], 0)


if __name__ == "__main__":
    unittest.main()
