"""`bench serve` against our server: its counts are the server's counts; `bench sweep` end to end."""

import json
import pathlib
import sqlite3
import subprocess
import tempfile
import unittest

import harness
from harness import DRAFT, ROOT, TARGET, Server, spec

NANO_MIX = ROOT / "data/prompts/nano-mix.jsonl"


@harness.needs_models
class BenchTest(unittest.TestCase):
    def test_spec_decode_lines_agree_with_metrics(self):
        with Server(*spec(DRAFT, 6)) as server, tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder, "result.json")
            result = harness.run("bench", "serve", "--model", TARGET, "--port", server.port, "--dataset-name", "custom",
                                 "--dataset-path", NANO_MIX, "--num-prompts", "12", "--max-concurrency", "4",
                                 "--ignore-eos", "--custom-output-len", "32", "--skip-chat-template", "--num-warmups", "0",
                                 "--save-result", "--result-filename", out, timeout=200)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            drafts = server.metric("vllm:spec_decode_num_drafts_total")
            drafted = server.metric("vllm:spec_decode_num_draft_tokens_total")
            accepted = server.metric("vllm:spec_decode_num_accepted_tokens_total")
            answer = json.loads(out.read_text())
            self.assertEqual(answer["completed"], 12)
            self.assertEqual(answer["total_output_tokens"], 12 * 32)
            self.assertAlmostEqual(answer["spec_decode_acceptance_length"], 1 + accepted / drafts, places=2)
            self.assertAlmostEqual(answer["spec_decode_acceptance_rate"], 100 * accepted / drafted, places=1)
            self.assertIn(f"{1 + accepted / drafts:.2f}", result.stdout)
            # Tokens the server says it made for this run are the tokens the client counted.
            self.assertEqual(server.metric("vllm:generation_tokens_total"), 12 * 32)

    def test_connection_refused_names_the_port(self):
        port = harness.free_port()
        result = harness.run("bench", "serve", "--model", TARGET, "--port", port, "--dataset-name", "random",
                             "--num-prompts", "1", "--ready-check-timeout-sec", "1")
        self.assertEqual(result.returncode, 1)
        self.assertIn(f"nobody listens at http://127.0.0.1:{port}", result.stderr)


@harness.needs_models
class SweepTest(unittest.TestCase):
    def sweep(self, folder, *extra):
        draft = " ".join(f"'{a}'" if "{" in a else a for a in spec(DRAFT, 4))
        return harness.run("bench", "sweep", TARGET, "--config", "no draft", "--config", f"BF16 draft={draft}",
                           "--concurrency", "1,2", "--prompts-per-concurrency", "2", "--port", harness.free_port(), "--dataset-name", "custom",
                           "--dataset-path", NANO_MIX, "--ignore-eos", "--custom-output-len", "16",
                           "--skip-chat-template", "--temperature", "0",
                           "--reference", "amd-mi355x-tp4", "--out", folder, *extra, timeout=300)

    def test_table_report_and_resume(self):
        with tempfile.TemporaryDirectory() as folder:
            first = self.sweep(folder)
            self.assertEqual(first.returncode, 0, first.stdout + first.stderr)
            for word in ("no draft", "BF16 draft", "165.2"):
                self.assertIn(word, first.stdout)
            html = next(pathlib.Path(folder).glob("*.html")).read_text()
            self.assertIn("<svg", html)
            self.assertNotIn("http://", html.replace("http://www.w3.org", ""))
            database = next(pathlib.Path(folder).glob("*.sqlite*"))
            count = lambda: sqlite3.connect(database).execute("select count(*) from runs").fetchone()[0]
            self.assertEqual(count(), 4)
            again = self.sweep(folder)
            self.assertEqual(again.returncode, 0)
            self.assertEqual(count(), 4, "a finished sweep runs nothing again")


if __name__ == "__main__":
    unittest.main()
