"""tools/gpu_projection.py against the published arithmetic of Kimi-K2.5 on eight H200."""

import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import gpu_projection  # noqa: E402

BANDWIDTH, LAYERS = 4.26e12, 8
FIXED, EFFICIENCY = 300e-6, 0.8


def point(count, context=1536):
    """A step of eight layers in MXFP4 with an FP8 cache, as `bench latency` writes it; timed by the formula."""
    expert, mxfp4 = 3 * 7168 * 2048, 4.25 / 8
    distinct = 384 * (1 - (1 - 8 / 384) ** count)
    read = {"attention": LAYERS * 101.122e6 * 2, "router": 7 * 384 * 7168 * 2, "dense": 3 * 7168 * 18432 * mxfp4,
            "shared": 7 * expert * mxfp4, "routed": 7 * distinct * expert * mxfp4, "head": 163840 * 7168 * 2,
            "KV": count * context * LAYERS * 576}
    step = FIXED + sum(read.values()) / (EFFICIENCY * BANDWIDTH)
    return {"batch_size": count, "draft_length": 0, "tokens_per_sequence_step": 1, "read_bytes": read,
            "step_ms": {"p50": 1e3 * step}}


class ProjectionTest(unittest.TestCase):
    def setUp(self):
        self.points = [point(count) for count in (4, 8, 16, 32, 64)]

    def test_the_fit_finds_what_the_steps_were_made_of(self):
        rows = [(gpu_projection.read_seconds(p, BANDWIDTH), gpu_projection.step_seconds(p)) for p in self.points]
        fixed, efficiency = gpu_projection.fit(rows)
        self.assertAlmostEqual(fixed, FIXED, places=9)
        self.assertAlmostEqual(efficiency, EFFICIENCY, places=6)

    def test_a_rank_reads_what_the_published_arithmetic_says(self):
        rows = gpu_projection.project(self.points, LAYERS, BANDWIDTH, FIXED / LAYERS)
        for row, published in zip(rows, (9.6, 14.9, 24.1, 38.7, 57.3)):
            self.assertAlmostEqual(row["rank_gb"], published, delta=0.15)
            self.assertAlmostEqual(row["efficiency"], EFFICIENCY, places=6)

    def test_a_step_is_the_sum_of_its_parts(self):
        rows = gpu_projection.project(self.points, LAYERS, BANDWIDTH, FIXED / LAYERS)
        for row in rows:
            self.assertAlmostEqual(row["step_ms"], row["fixed_ms"] + row["all_reduce_ms"] + row["read_ms"])
            self.assertAlmostEqual(row["tok_s_gpu"] * 8, row["batch_size"] / row["step_ms"] * 1e3)

    def test_a_layer_is_the_difference_of_two_depths(self):
        def scaled(p, share, extra):
            return {**p, "read_bytes": {k: share * v for k, v in p["read_bytes"].items()},
                    "step_ms": {"p50": extra + share * p["step_ms"]["p50"]}}
        rows = gpu_projection.layer_rows([scaled(p, 8, 5) for p in self.points],
                                         [scaled(p, 2, 5) for p in self.points[:3]], 6, BANDWIDTH)
        self.assertEqual([count for count, _, _ in rows], [4, 8, 16])
        for (_, read, seconds), p in zip(rows, self.points):
            self.assertAlmostEqual(read, gpu_projection.read_seconds(p, BANDWIDTH))
            self.assertAlmostEqual(seconds, gpu_projection.step_seconds(p))

    def test_all_reduce_is_the_table_and_what_lies_between(self):
        self.assertEqual(gpu_projection.all_reduce_us(1), 7.2)
        self.assertEqual(gpu_projection.all_reduce_us(256), 10.6)
        self.assertTrue(8.2 < gpu_projection.all_reduce_us(100) < 8.8)
        self.assertEqual(gpu_projection.all_reduce_us(2048), 28.0)


if __name__ == "__main__":
    unittest.main()
