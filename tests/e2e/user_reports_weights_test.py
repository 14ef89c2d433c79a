"""What users of other engines reported about weights and drafts, tried on the bundled pair. Each name holds the case's
number in the project's list of reports: D, weights and quantization; C, loading of drafts."""

import json
import pathlib
import shutil
import struct
import tempfile
import unittest

import harness
from harness import DRAFT, TARGET, Server, run, spec

E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]


def e4m3(code):
    sign, exponent, mantissa = -1 if code & 128 else 1, code >> 3 & 15, code & 7
    return sign * (mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10))


class Files:
    """A checkpoint's tensors as (dtype, shape, bytes), and its config."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        data = (self.folder / "model.safetensors").read_bytes()
        length = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8:8 + length])
        header.pop("__metadata__", None)
        self.tensors = {}
        for name, entry in header.items():
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            self.tensors[name] = (entry["dtype"], entry["shape"], data[begin:end])
        self.config = json.loads((self.folder / "config.json").read_text())

    def write(self, folder):
        folder = pathlib.Path(folder)
        shutil.copytree(self.folder, folder, ignore=lambda *_: ["model.safetensors", "hf_quant_config.json"])
        header, offset = {}, 0
        for name, (dtype, shape, data) in self.tensors.items():
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
            offset += len(data)
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(folder / "model.safetensors", "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.writelines(data for _, _, data in self.tensors.values())
        (folder / "config.json").write_text(json.dumps(self.config))
        return folder

    def dequantize(self):
        """The same numbers in float32: no scales, no quantization_config."""
        scales = {name[:-len("_scale")]: name for name in self.tensors if name.endswith(".weight_scale")}
        for name, scale_name in scales.items():
            _, (rows, columns), codes = self.tensors[name]
            kind, _, scale = self.tensors.pop(scale_name)
            if kind == "U8":  # MXFP4: 16 bytes a scale
                pairs = {s: [struct.pack("<2f", *(E2M1[n] * 2.0 ** (s - 127) for n in (b & 15, b >> 4)))
                             for b in range(256)] for s in set(scale)}
                values = b"".join(pairs[s][b] for i, s in enumerate(scale) for b in codes[16 * i:16 * i + 16])
                columns *= 2
            else:
                of_row = struct.unpack(f"<{rows}f", scale)
                table = [e4m3(code) for code in range(256)]
                values = b"".join(struct.pack(f"<{columns}f", *(table[b] * of_row[r] for b in
                                                                codes[r * columns:(r + 1) * columns]))
                                  for r in range(rows))
            self.tensors[name] = ("F32", [rows, columns], values)
        self.config.pop("quantization_config")
        return self


PROMPTS = ["Question: Ann has 4 boxes of 6 pens. How many pens does she have?\nAnswer:", "The capital of", "1 2 3 4"]


def answers(model, *args):
    """(texts, accepted drafts, log)"""
    with Server(*args, model=model) as server:
        texts = [server.post("/v1/completions", {"model": str(model), "prompt": prompt, "max_tokens": 32,
                                                 "temperature": 0, "ignore_eos": True})["choices"][0]["text"]
                 for prompt in PROMPTS]
        return texts, server.metric("vllm:spec_decode_num_accepted_tokens_total"), server.log()


@harness.needs_models
class UserReportsWeightsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="eyrie-reports-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def quantize(self, name, *args, source=TARGET):
        made = run("quantize", source, self.folder / name, *args)
        self.assertEqual(made.returncode, 0, made.stderr)
        return self.folder / name

    def expect_as_dequantized(self, model):
        # By default 4-bit weights meet activations of 8 bits, and BF16 ones bfloat16: here both meet float32.
        texts, _, log = answers(model, "--activation-quantization", "off")
        plain = Files(model).dequantize().write(self.folder / "plain")
        self.assertEqual(texts, answers(plain, "--activation-quantization", "off")[0])
        return log

    def test_D50_expert_scales_of_quark_mxfp4(self):
        log = self.expect_as_dequantized(self.quantize("mx", "--scheme", "mxfp4"))
        self.assertNotIn("[checkpoint]", log)

    def test_D51_one_part_of_a_fused_projection_excluded(self):
        model = self.quantize("fp8", "--scheme", "fp8", "--exclude", "*q_a_proj", "lm_head", "*mlp.gate", "*up_proj")
        kinds = {name.rsplit(".", 2)[1]: dtype for name, (dtype, _, _) in Files(model).tensors.items()
                 if name.endswith(".weight") and "layers.1." in name}
        self.assertEqual([kinds[name] for name in ("q_a_proj", "kv_a_proj_with_mqa", "up_proj", "gate_proj")],
                         ["BF16", "F8_E4M3", "BF16", "F8_E4M3"])
        self.expect_as_dequantized(model)

    def test_D52_quantized_shared_expert(self):
        model = self.quantize("shared", "--scheme", "mxfp4", "--include", "*shared_experts*")
        self.assertIn("language_model.model.layers.1.mlp.shared_experts.up_proj.weight_scale", Files(model).tensors)
        self.expect_as_dequantized(model)

    def test_D53_D55_mxfp4_experts_with_fp8_attention(self):
        # No kernel of this machine multiplies FP8 by FP8, and kv_b_proj is absorbed: both are done in other numbers.
        files = Files(self.quantize("mx", "--scheme", "mxfp4"))
        attention = Files(self.quantize("fp8", "--scheme", "fp8", "--producer", "quark", "--exclude", "*mlp*", "lm_head"))
        files.tensors.update({name: tensor for name, tensor in attention.tensors.items() if ".self_attn." in name})
        quantization = files.config["quantization_config"]
        quantization["exclude"] = [name for name in quantization["exclude"] if "self_attn" not in name]
        quantization["layer_quant_config"] = {
            "*self_attn*": attention.config["quantization_config"]["global_quant_config"]}
        log = self.expect_as_dequantized(files.write(self.folder / "both"))
        self.assertNotIn("WARN", log.upper())

    def test_D56_experts_listed_one_by_one(self):
        files = Files(self.quantize("mx", "--scheme", "mxfp4"))
        expected = answers(self.folder / "mx")[0]
        quantization = files.config["quantization_config"]
        everything = quantization["global_quant_config"]
        quantization["layer_quant_config"] = {
            name.removesuffix(".weight_scale"): everything for name in files.tensors if name.endswith(".weight_scale")}
        texts, _, log = answers(files.write(self.folder / "listed"))
        self.assertEqual(texts, expected)
        self.assertNotIn("[checkpoint]", log)

    def test_D58_a_weight_that_is_not_a_number(self):
        files = Files(TARGET)
        name = "language_model.model.embed_tokens.weight"
        dtype, shape, data = files.tensors[name]
        with Server() as server:
            ids = server.post("/tokenize", {"model": str(TARGET), "prompt": "zebra"})["tokens"]
        bad, width = ids[-1], 2 * shape[1]
        files.tensors[name] = (dtype, shape, data[:bad * width] + b"\xc0\x7f" + data[bad * width + 2:])
        model = files.write(self.folder / "nan")
        good = PROMPTS[0] * 8
        ask = {"model": str(model), "max_tokens": 8, "temperature": 0}
        with Server("--max-num-batched-tokens", "64", model=model) as server:
            expected = server.post("/v1/completions", {**ask, "prompt": good})["choices"][0]["text"]
        with Server("--max-num-batched-tokens", "64", model=model) as server:
            for prompt in (good + " zebra", good + " zebra" + good):
                for stream in (False, True):
                    body = {**ask, "prompt": prompt, "stream": stream}
                    status, answer, _ = server.request("POST", "/v1/completions", body)
                    self.assertEqual(status, 500)
                    self.assertIn("numeric fault", answer["error"]["message"])
            for _ in range(2):  # in the blocks the faulted ones gave back
                self.assertEqual(server.post("/v1/completions", {**ask, "prompt": good})["choices"][0]["text"], expected)
            self.assertEqual(server.request("GET", "/health")[0], 200)

    def test_C38_a_draft_does_not_inherit_the_targets_quantization(self):
        model = self.quantize("mx", "--scheme", "mxfp4")
        texts, accepted, log = answers(model, *spec(DRAFT))
        self.assertEqual(texts, answers(model)[0])
        self.assertGreater(accepted, 0)
        self.assertNotIn("[checkpoint]", log)

    def test_C39_a_quantized_fc(self):
        draft = self.quantize("draft", "--scheme", "fp8", "--include", "fc", source=DRAFT)
        files = Files(draft)
        self.assertEqual(files.tensors["fc.weight"][0], "F8_E4M3")
        texts, accepted, _ = answers(TARGET, *spec(draft))
        plain = files.dequantize().write(self.folder / "plain")
        self.assertEqual((texts, accepted), answers(TARGET, *spec(plain))[:2])
        self.assertGreater(accepted, 0)

    def test_C40_plain_names_and_expressions_exclude_alike(self):
        draft = self.quantize("draft", "--scheme", "fp8", source=DRAFT)
        files = Files(draft)
        self.assertEqual(files.config["quantization_config"]["exclude"], ["re:.*fc.*", "re:.*lm_head.*"])
        files.config["quantization_config"]["exclude"] = ["fc", "lm_head"]
        plain = files.write(self.folder / "plain")
        formats = [json.loads(run("inspect", folder, "--json").stdout)["groups"] for folder in (draft, plain)]
        self.assertEqual(formats[0], formats[1])
        expected, got = answers(TARGET, *spec(draft)), answers(TARGET, *spec(plain))
        self.assertEqual(expected[:2], got[:2])
        self.assertNotIn("[checkpoint]", expected[2] + got[2])

    def test_C42_a_draft_with_another_kind_of_attention(self):
        self.assertIn("kv_b_proj", " ".join(Files(TARGET).tensors))
        self.assertIn("k_proj", " ".join(Files(DRAFT).tensors))
        texts, accepted, _ = answers(TARGET, *spec(DRAFT))
        self.assertEqual(texts, answers(TARGET)[0])
        self.assertGreater(accepted, 0)

    def test_C43_eagle3_without_a_draft(self):
        ended = run("serve", TARGET, "--port", harness.free_port(), "--speculative-config",
                    '{"method": "eagle3", "num_speculative_tokens": 3}')
        self.assertNotEqual(ended.returncode, 0)
        self.assertIn('method eagle3 needs "model"', ended.stderr + ended.stdout)
        self.assertNotIn("weights", ended.stderr + ended.stdout)


if __name__ == "__main__":
    unittest.main()
