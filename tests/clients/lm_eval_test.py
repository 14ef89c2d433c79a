"""lm_eval against our server: generation by completions and by chat, and log-likelihoods, whose scores must equal what
plain requests give. Needs build/venv-eval (make test-clients), so it is not part of make test."""

import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
import harness
from harness import DRAFT, ROOT, Server, spec

if importlib.util.find_spec("lm_eval") is None:
    print("skipped: lm_eval is not in this environment (make test-clients)")
    sys.exit(77)

NUM_DOCS = 12
TASKS = {
    "sums": """
task: sums
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
output_type: multiple_choice
test_split: test
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{gold}}"
target_delimiter: ""
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
""",
    "sums_text": """
task: sums_text
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
output_type: loglikelihood_rolling
test_split: test
doc_to_text: ""
doc_to_target: "{{question}}{{choices[gold]}}"
metric_list: [{metric: bits_per_byte}]
""",
}


def sums():
    """Choices of one and of several tokens, of which the right one comes first, second and third."""
    for i in range(NUM_DOCS):
        a, b = 13 + 7 * i, 5 * i + 2
        choices = [f"{a + b}>>{a + b} apples", f"{a + b + 1}>>{a + b + 1} apples", f"{a - 1} 🦅"]
        gold = i % 3
        choices[0], choices[gold] = choices[gold], choices[0]
        yield {"question": f"Question: Ann has {a} apples and gets {b} more. How many apples has she?\n"
                           f"Answer: Ann has {a}+{b} = <<{a}+{b}=", "choices": choices, "gold": gold}


@harness.needs_models
class LmEvalTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="eyrie-lm-eval-")
        tasks = pathlib.Path(cls.folder.name)
        data = tasks / "sums.jsonl"
        data.write_text("".join(json.dumps(doc) + "\n" for doc in sums()))
        for name, text in TASKS.items():
            (tasks / f"{name}.yaml").write_text(text.replace("DATA", str(data)))
        shutil.copy(ROOT / "tools/eval/gsm8k_nano.yaml", tasks)
        cls.server = Server("--served-model-name", "nano", "--enable-tokenizer-info-endpoint", *spec(DRAFT, 4))
        cls.url = f"http://127.0.0.1:{cls.server.port}"

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()
        assert cls.server.stop() == 0, cls.server.log()

    def lm_eval(self, model, task, *args, batch_size=1, **model_args):
        """(the task's results, its samples)."""
        out = pathlib.Path(tempfile.mkdtemp(dir=self.folder.name))
        path = "/v1/chat/completions" if "chat" in model else "/v1/completions"
        model_args = {"model": "nano", "base_url": self.url + path, "max_retries": 1, **model_args}
        command = [str(pathlib.Path(sys.executable).parent / "lm_eval"), "--model", model,
                   "--model_args", ",".join(f"{k}={v}" for k, v in model_args.items()), "--tasks", task,
                   "--include_path", self.folder.name, "--limit", str(NUM_DOCS), "--output_path", str(out),
                   "--batch_size", str(batch_size), "--log_samples", *args]
        env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(out / "hf")}
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900)
        self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-3000:])
        results = json.loads(next(out.glob("**/results_*.json")).read_text())["results"][task]
        lines = next(out.glob("**/samples_*.jsonl")).read_text().strip().split("\n")
        samples = [json.loads(line) for line in lines]
        return results, samples

    # Generation

    def check_exact_match(self, results, samples):
        """The score is the share of the answers that say the right number, counted by us."""
        strict = [s for s in samples if s["filter"] == "strict-match"]
        self.assertEqual(len(strict), NUM_DOCS)
        right = sum(f"#### {s['doc']['answer'].split('#### ')[1]}" in s["resps"][0][0] for s in strict)
        self.assertAlmostEqual(results["exact_match,strict-match"], right / NUM_DOCS)
        self.assertGreater(right, 0)  # the bundled model solves these
        return strict

    def test_generate_until_by_completions(self):
        for how in ({"tokenizer_backend": "None", "tokenized_requests": False, "num_concurrent": 8},
                    {"tokenizer_backend": "remote", "tokenized_requests": True, "batch_size": 4}):
            with self.subTest(**how):
                results, samples = self.lm_eval("local-completions", "gsm8k_nano", **how)
                for sample in self.check_exact_match(results, samples):
                    arguments = sample["arguments"]["gen_args_0"]
                    answer = self.server.post("/v1/completions", {
                        "model": "nano", "prompt": arguments["arg_0"], "temperature": 0, "max_tokens": 256,
                        "stop": arguments["arg_1"]["until"]})
                    self.assertEqual(sample["resps"][0][0], answer["choices"][0]["text"])

    def test_generate_until_by_chat(self):
        results, samples = self.lm_eval("local-chat-completions", "gsm8k_nano", "--apply_chat_template",
                                        "--num_fewshot", "0", "--gen_kwargs", "max_gen_toks=400", num_concurrent=4)
        for sample in self.check_exact_match(results, samples):
            arguments = sample["arguments"]["gen_args_0"]
            prompt = arguments["arg_0"]
            messages = json.loads(prompt[0] if isinstance(prompt, list) else prompt)
            answer = self.server.post("/v1/chat/completions", {
                "model": "nano", "messages": [{k: m[k] for k in ("role", "content")} for m in messages],
                "temperature": 0, "max_tokens": 400, "stop": arguments["arg_1"]["until"]})
            self.assertEqual(sample["resps"][0][0], answer["choices"][0]["message"]["content"] or "")

    # Log-likelihoods

    def tokenize(self, text):
        return self.server.post("/tokenize", {"model": "nano", "prompt": text})["tokens"]

    def by_echo(self, ids, begin):
        """(sum of the logprobs of ids[begin:], whether each is the likeliest), from echo and logprobs."""
        choice = self.server.post("/v1/completions", {
            "model": "nano", "prompt": ids, "temperature": 0, "max_tokens": 1, "echo": True, "logprobs": 1})["choices"][0]
        logprobs = choice["logprobs"]
        for values in logprobs.values():
            self.assertEqual(len(values), len(ids) + 1)
        own, top = logprobs["token_logprobs"][begin:-1], logprobs["top_logprobs"][begin:-1]
        return sum(own), all(value == max(others.values()) for value, others in zip(own, top))

    def by_prompt_logprobs(self, ids, begin):
        """The same from vLLM's prompt_logprobs, in which a rank says what is likeliest."""
        choice = self.server.post("/v1/completions", {
            "model": "nano", "prompt": ids, "temperature": 0, "max_tokens": 1, "prompt_logprobs": 0})["choices"][0]
        entries = choice["prompt_logprobs"]
        self.assertEqual(len(entries), len(ids))
        own = [entry[str(token)] for entry, token in zip(entries[begin:], ids[begin:])]
        return sum(entry["logprob"] for entry in own), all(entry["rank"] == 1 for entry in own)

    def test_loglikelihood(self):
        for how in ({"tokenized_requests": True}, {"tokenized_requests": True, "num_concurrent": 4},
                    {"tokenized_requests": True, "batch_size": 5}, {"tokenized_requests": False}):
            with self.subTest(**how):
                results, samples = self.lm_eval("local-completions", "sums", tokenizer_backend="remote", **how)
                self.assertEqual(len(samples), NUM_DOCS)
                right = 0
                for sample in samples:
                    said = [(float(resp[0][0]), str(resp[0][1]) == "True") for resp in sample["resps"]]
                    values = []
                    for arguments, one in zip(sample["arguments"].values(), said):
                        context = self.tokenize(arguments["arg_0"])
                        ids = self.tokenize(arguments["arg_0"] + arguments["arg_1"])
                        for direct in (self.by_echo, self.by_prompt_logprobs):
                            value, is_greedy = direct(ids, len(context))
                            self.assertAlmostEqual(one[0], value, places=4)
                            self.assertEqual(one[1], is_greedy)
                        values.append(value)
                    right += values.index(max(values)) == sample["doc"]["gold"]
                self.assertAlmostEqual(results["acc,none"], right / NUM_DOCS)
                self.assertEqual(right, NUM_DOCS)  # easy for the bundled model

    def test_loglikelihood_rolling(self):
        results, samples = self.lm_eval("local-completions", "sums_text", tokenizer_backend="remote",
                                        tokenized_requests=True)
        info = self.server.request("GET", "/tokenizer_info")[1]
        bits, num_bytes = 0.0, 0
        for sample in samples:
            text = sample["arguments"]["gen_args_0"]["arg_0"]
            # The first window starts with this token in place of a context.
            ids = [self.tokenize(info.get("bos_token") or info["eos_token"])[0], *self.tokenize(text)]
            value, _ = self.by_prompt_logprobs(ids, 1)
            self.assertAlmostEqual(float(sample["resps"][0][0]), value, places=3)
            bits -= value / 0.6931471805599453
            num_bytes += len(text.encode())
        self.assertAlmostEqual(results["bits_per_byte,none"], bits / num_bytes, places=5)


if __name__ == "__main__":
    unittest.main()
