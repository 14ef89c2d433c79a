"""What can be wrong before a server starts: each case ends with a non-zero code and one sentence that
names the file, field or flag, the value and what would be accepted."""

import json
import pathlib
import shutil
import socket
import struct
import tempfile
import unittest

import harness
from harness import DRAFT, TARGET, run, spec


def copy_model(source: pathlib.Path, to: pathlib.Path) -> pathlib.Path:
    shutil.copytree(source, to)
    return to


def edit_config(folder: pathlib.Path, change) -> pathlib.Path:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))
    return folder


def edit_header(folder: pathlib.Path, change) -> pathlib.Path:
    """Rewrites the JSON header of model.safetensors; the data stays as it is."""
    path = folder / "model.safetensors"
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = change(json.loads(data[8:8 + length]))
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length:])
    return folder


@harness.needs_models
class StartTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.tmp = pathlib.Path(self.folder.name)

    def tearDown(self):
        self.folder.cleanup()

    def refuses(self, *args, says):
        """The program ends by itself, says `says`, and its last line is one sentence."""
        result = run("serve", *args, "--port", harness.free_port())
        output = result.stdout + result.stderr
        self.assertNotEqual(result.returncode, 0, output)
        self.assertLess(result.returncode, 128, f"died of a signal: {output}")
        self.assertGreater(result.returncode, 0, f"died of a signal: {output}")
        last = output.strip().splitlines()[-1]
        for word in says if isinstance(says, (list, tuple)) else [says]:
            self.assertIn(word, last, output)
        return last

    def target(self):
        return copy_model(TARGET, self.tmp / "target")

    def draft(self):
        return copy_model(DRAFT, self.tmp / "draft")

    # Files

    def test_no_such_folder_says_how_to_get_the_model(self):
        self.refuses("nobody/no-such-model", says=["nobody/no-such-model", "download"])

    def test_missing_weights(self):
        model = self.target()
        (model / "model.safetensors").unlink()
        self.refuses(model, says="model.safetensors")

    def test_truncated_weights(self):
        model = self.target()
        path = model / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-1000])
        self.refuses(model, says="model.safetensors")

    def test_header_longer_than_the_file(self):
        model = self.target()
        path = model / "model.safetensors"
        path.write_bytes(struct.pack("<Q", 1 << 40) + path.read_bytes()[8:])
        self.refuses(model, says=["model.safetensors", "header"])

    def test_index_names_an_absent_shard(self):
        model = self.target()
        path = model / "model.safetensors"
        data = path.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        names = [n for n in json.loads(data[8:8 + length]) if n != "__metadata__"]
        path.rename(model / "model-00001-of-00002.safetensors")
        weight_map = {n: "model-00001-of-00002.safetensors" for n in names}
        weight_map[names[0]] = "model-00002-of-00002.safetensors"
        (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        self.refuses(model, says="model-00002-of-00002.safetensors")

    def test_missing_tensor(self):
        name = "language_model.model.norm.weight"
        model = edit_header(self.target(), lambda h: {k.replace(name, "renamed"): v for k, v in h.items()})
        self.refuses(model, says=name)

    def test_duplicate_tensor(self):
        def twice(header):
            text = json.dumps(header)
            entry = json.dumps(header["language_model.model.norm.weight"])
            return f'{text[:-1]}, "language_model.model.norm.weight": {entry}}}'.encode()
        self.refuses(edit_header(self.target(), twice), says="language_model.model.norm.weight")

    def test_wrong_shape(self):
        def reshape(header):
            header["language_model.lm_head.weight"]["shape"].reverse()
            return header
        self.refuses(edit_header(self.target(), reshape), says="language_model.lm_head.weight")

    def test_wrong_dtype(self):
        def retype(header):
            entry = header["language_model.model.layers.0.self_attn.q_a_proj.weight"]
            entry["dtype"], entry["shape"] = "I32", [entry["shape"][0], entry["shape"][1] // 2]
            return header
        self.refuses(edit_header(self.target(), retype), says=["q_a_proj", "I32"])

    def test_unknown_model_type(self):
        def other(config):
            config["model_type"] = "kimi_k9"
            config["architectures"] = ["KimiK9"]
        self.refuses(edit_config(self.target(), other), says="kimi_k9")

    def test_config_without_a_field(self):
        model = edit_config(self.target(), lambda c: c["text_config"].pop("kv_lora_rank"))
        self.refuses(model, says=["kv_lora_rank", "config.json"])

    # Drafts

    def test_draft_of_another_hidden_size(self):
        def wider(config):
            config["hidden_size"] *= 2
            config.pop("target_hidden_size", None)  # then it is the draft's own
        self.refuses(TARGET, *spec(edit_config(self.draft(), wider)), says="hidden_size")

    def test_draft_of_another_vocabulary(self):
        def larger(config):
            config["vocab_size"] += 1
        self.refuses(TARGET, *spec(edit_config(self.draft(), larger)), says="vocab_size")

    def test_draft_layer_ids_past_the_target(self):
        def past(config):
            config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [1, 2, 99]
        self.refuses(TARGET, *spec(edit_config(self.draft(), past)), says="99")

    def test_eagle3_without_a_model(self):
        config = '{"method":"eagle3","num_speculative_tokens":3}'
        self.refuses(TARGET, "--speculative-config", config, says=["eagle3", "model"])

    def test_no_drafts(self):
        self.refuses(TARGET, *spec(DRAFT, 0), says=["num_speculative_tokens", "0"])

    def test_unknown_method(self):
        config = json.dumps({"method": "crystal_ball", "model": str(DRAFT), "num_speculative_tokens": 3})
        self.refuses(TARGET, "--speculative-config", config, says="crystal_ball")

    def test_made_up_acceptance_of_a_real_model(self):
        config = spec(DRAFT, 3, rejection_sample_method="synthetic", synthetic_acceptance_length=2)
        self.refuses(TARGET, *config, says=["synthetic", "--load-format dummy"])

    # Flags

    def test_unknown_flag(self):
        self.refuses(TARGET, "--no-such-flag", says="--no-such-flag")

    def test_bad_json(self):
        self.refuses(TARGET, "--speculative-config", "{oops", says=["--speculative-config", "{oops"])

    def test_a_chat_template_that_is_none(self):
        self.refuses(TARGET, "--chat-template", self.tmp / "absent.jinja", says="absent.jinja")
        broken = self.tmp / "broken.jinja"
        broken.write_text("{% for m in messages %}{{ m.content }}")
        self.refuses(TARGET, "--chat-template", broken, says=["broken.jinja", "endfor"])

    def test_port_in_use(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            result = run("serve", TARGET, "--host", "127.0.0.1", "--port", port)
            self.assertEqual(result.returncode, 1)
            self.assertIn(str(port), result.stderr)

    def test_too_little_memory_says_what_fits(self):
        self.refuses(TARGET, "--kv-cache-memory-bytes", "1M", says=["--max-model-len", "tokens"])

    def test_context_past_the_model(self):
        self.refuses(TARGET, "--max-model-len", "1000000", says=["1000000", "4096"])

    def test_cache_types_that_are_not_made(self):
        for dtype in ("fp8_e5m2", "fp8_ds_mla", "nvfp4"):
            self.refuses(TARGET, "--kv-cache-dtype", dtype, says=["--kv-cache-dtype", dtype, "bf16", "fp8_e4m3"])

    def test_ranks_without_devices(self):
        self.refuses(TARGET, "-tp", "4", says=["tensor-parallel-size", "4"])

    def test_unknown_parser_names_the_known(self):
        self.refuses(TARGET, "--tool-call-parser", "hermes9", says=["hermes9", "kimi_k2"])


@harness.needs_models
class CalibrationTest(unittest.TestCase):
    """`eyrie quantize --calibration`: what is refused, and that what is made is served."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tmp = pathlib.Path(folder.name)
        self.prompts = self.tmp / "prompts.jsonl"
        self.prompts.write_text('{"prompt": "Ann has 4 boxes of 6 pens."}\n\n'
                                '{"messages": [{"role": "user", "content": "How many?"}]}\n')

    def quantize(self, source, *args):
        return run("quantize", source, self.tmp / "out", *args)

    def refuses(self, *args, source=TARGET, says):
        result = self.quantize(source, *args)
        self.assertEqual(result.returncode, 1, result.stderr)
        for word in says:
            self.assertIn(word, result.stderr.strip().splitlines()[-1])
        self.assertFalse((self.tmp / "out").exists())

    def test_refusals_name_the_flag(self):
        prompts = ["--calibration", self.prompts]
        for scheme in ("mxfp4", "int4-g32", "fp8", "fp8-block"):
            self.refuses("--scheme", scheme, *prompts, says=["--calibration", "not needed", scheme])
        nvfp4 = ["--scheme", "nvfp4"]
        self.refuses(*nvfp4, "--calibration-samples", "3", says=["--calibration-samples 3 needs --calibration"])
        self.refuses(*nvfp4, *prompts, "--calibration-tokens", "0", says=["--calibration-tokens 0", "at least 1"])
        self.refuses(*nvfp4, *prompts, source=DRAFT, says=[str(DRAFT), "is a draft"])
        self.refuses(*nvfp4, "--calibration", "/no/file", says=["/no/file"])
        self.prompts.write_text('{"prompt": "fine"}\n{"instruction": "what"}\n')
        self.refuses(*nvfp4, *prompts, says=[f"{self.prompts}:2", '"prompt"'])

    def test_a_calibrated_model_is_served(self):
        made = self.quantize(TARGET, "--scheme", "nvfp4", "--calibration", self.prompts)
        self.assertEqual(made.returncode, 0, made.stderr)
        self.assertIn("on 2 prompts", made.stdout)
        with harness.Server("--activation-quantization", "emulate", model=self.tmp / "out") as server:
            body = {"model": str(self.tmp / "out"), "prompt": "1 2 3", "max_tokens": 4, "ignore_eos": True}
            self.assertEqual(server.post("/v1/completions", body)["usage"]["completion_tokens"], 4)
            self.assertNotIn("[checkpoint]", server.log())


if __name__ == "__main__":
    unittest.main()
