"""`eyrie inspect` explains every kind of checkpoint: formats, sizes, exclusions, tokens, template, kernels, fit."""

import json
import pathlib
import shutil
import tempfile
import unittest

import harness
from harness import DRAFT, TARGET, run


@harness.needs_models
class InspectTest(unittest.TestCase):
    def inspect(self, *args):
        done = run("inspect", *args)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_quantized_target_and_its_draft(self):
        model = harness.quantized("kimi-k2.5-nano-mxfp4")
        told = json.loads(self.inspect(model, "--json"))
        experts = [g for g in told["groups"] if ".experts." in g["group"]]
        self.assertEqual({g["format"] for g in experts}, {"mxfp4"})
        self.assertTrue(all(g["kernel"].startswith("mxfp4 panels") for g in experts))
        self.assertEqual(sum(g["bytes"] for g in told["groups"]), told["total"]["bytes"])
        self.assertEqual(sum(g["tensors"] for g in told["groups"]), told["total"]["tensors"])
        # Exclusions are counted against the layers that are there: lm_head is one, attention 5 a layer.
        layers = {e["group"]: e["layers"] for e in told["quantization"]["excluded"]}
        self.assertEqual(layers["lm_head"], 1)
        self.assertEqual(layers["model.layers.*.self_attn.o_proj"], 7)
        self.assertEqual(told["text"]["tokens"], "tiktoken.model, 3840 tokens and 256 control tokens")
        self.assertIn("chat_template.jinja", told["text"]["template"])
        table = self.inspect(model, "--draft", harness.quantized("kimi-k2.5-nano-eagle3-fp8"))
        for words in ("mxfp4 panels", "template", "tokens", "excluded", "draft fit", "captured layers"):
            self.assertIn(words, table)
        self.assertNotIn("DOES NOT FIT", table)

    def test_draft_has_no_text_side(self):
        told = json.loads(self.inspect(DRAFT, "--json"))
        self.assertEqual(told["role"], "draft")
        self.assertIsNone(told["text"])

    def test_broken_template_is_told(self):
        with tempfile.TemporaryDirectory() as folder:
            model = pathlib.Path(folder, "model")
            shutil.copytree(TARGET, model)
            (model / "chat_template.jinja").write_text("{% if messages %}never closed")
            self.assertIn("chat_template.jinja", json.loads(self.inspect(model, "--json"))["text"]["template"])

    def test_diff_of_a_model_and_its_quantized_twin(self):
        diff = json.loads(self.inspect("--diff", TARGET, harness.quantized("kimi-k2.5-nano-mxfp4"), "--json"))
        changed = [t for t in diff["tensors"] if t["max_error"] > 0]
        self.assertEqual(len(changed), 6 * 16 * 3)  # the routed experts and nothing else
        self.assertTrue(all(".experts." in t["name"] and t["cosine"] > 0.98 for t in changed))


if __name__ == "__main__":
    unittest.main()
