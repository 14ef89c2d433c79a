"""The first tutorial's commands, word for word but for `vllm` → `eyrie`, the model paths, and one rank
instead of four; the loop over C included (with fewer prompts a round, the counts it asks for are kept
by `make demo`)."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import harness

# As printed in the guide; $TARGET and $DRAFT are the model paths.
SERVE = """eyrie serve $TARGET --port $PORT --tensor-parallel-size 1 --gpu-memory-utilization 0.90 \
  --max-model-len 2304 --no-enable-prefix-caching --trust-remote-code --mm-encoder-tp-mode data \
  --speculative-config '{"model":"'$DRAFT'","method":"eagle3","num_speculative_tokens":6,"draft_tensor_parallel_size":1}'"""
BENCH = """for C in $LEVELS; do eyrie bench serve --model $TARGET --backend vllm --dataset-name random \
  --random-input-len $LEN --random-output-len $LEN --random-range-ratio 0.8 --num-prompts $((C * 2)) --max-concurrency $C \
  --request-rate inf --ignore-eos --use-chat-template --trust-remote-code --port $PORT \
  --save-result --result-filename $RESULTS/$C.json || exit 1; done"""


@harness.needs_models
class TutorialTest(unittest.TestCase):
    def test_serve_then_bench(self):
        with tempfile.TemporaryDirectory() as results:
            port = harness.free_port()
            env = {**os.environ, "PATH": f"{pathlib.Path(harness.EYRIE).parent}:{os.environ['PATH']}",
                   "TARGET": str(harness.quantized("kimi-k2.5-nano-mxfp4")),
                   "DRAFT": str(harness.quantized("kimi-k2.5-nano-eagle3-fp8")),
                   "PORT": str(port), "RESULTS": results, "LEVELS": "1 4", "LEN": "128"}
            log = pathlib.Path(results, "server.log").open("w+")
            server = subprocess.Popen(["bash", "-c", f"exec {SERVE}"], env=env, stdout=log, stderr=log)
            try:
                harness.wait_for_port(port)
                bench = subprocess.run(["bash", "-c", BENCH], env=env, capture_output=True, text=True,
                                       timeout=300 * harness.SLOW)
                self.assertEqual(bench.returncode, 0, bench.stdout + bench.stderr + pathlib.Path(log.name).read_text())
            finally:
                server.terminate()
                self.assertEqual(server.wait(60), 0)
            self.assertIn("Serving Benchmark Result", bench.stdout)
            self.assertIn("Mean draft length", bench.stdout)
            for level in (1, 4):
                result = json.loads(pathlib.Path(results, f"{level}.json").read_text())
                self.assertEqual(result["completed"], 2 * level)
                self.assertEqual(result["failed"], 0)
                self.assertEqual(result["max_concurrency"], level)
                # The InferenceX reading of --random-range-ratio: 0.8 L … L (both sides).
                self.assertTrue(all(102 <= n <= 128 for n in result.get("output_lens", [128])))
            text = pathlib.Path(log.name).read_text()
            for flag in ("trust-remote-code", "mm-encoder-tp-mode"):
                self.assertIn(flag, text)


if __name__ == "__main__":
    unittest.main()
