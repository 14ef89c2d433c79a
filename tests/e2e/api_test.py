"""The server over plain HTTP: endpoints, bad requests (right status, server alive), clients that
leave, floods."""

import concurrent.futures
import json
import socket
import tempfile
import threading
import time
import unittest

import harness
from harness import DRAFT, TARGET, Server, spec

PROMPT = "Question: Tom has 3 apples and buys 4 more. How many apples does Tom have?\nAnswer:"


@harness.needs_models
class ApiTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--max-model-len", "1024", "--max-num-seqs", "32", "--enable-tokenizer-info-endpoint",
                            "--enable-server-load-tracking", *spec(DRAFT, 4))
        cls.model = str(TARGET)

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        assert code == 0, f"exit code {code}\n{cls.server.log()}"

    def complete(self, **fields):
        return self.server.post("/v1/completions", {"model": self.model, "prompt": PROMPT, "max_tokens": 16,
                                                    "temperature": 0, **fields})

    # Endpoints

    def test_models_version_health(self):
        status, models, _ = self.server.request("GET", "/v1/models")
        self.assertEqual(status, 200)
        self.assertEqual(models["data"][0]["id"], self.model)
        self.assertEqual(models["data"][0]["max_model_len"], 1024)
        self.assertIn("version", self.server.request("GET", "/version")[1])
        self.assertEqual(self.server.request("GET", "/health")[0], 200)

    def test_tokenize_and_back(self):
        text = "Żółw 月 3.5 👋 <think>"
        tokens = self.server.post("/tokenize", {"model": self.model, "prompt": text})
        self.assertEqual(tokens["count"], len(tokens["tokens"]))
        back = self.server.post("/detokenize", {"model": self.model, "tokens": tokens["tokens"]})
        self.assertEqual(back["prompt"], text)

    def test_tokenizer_info(self):
        status, info, _ = self.server.request("GET", "/tokenizer_info")
        self.assertEqual(status, 200)
        self.assertEqual(info["eos_token"], "[EOS]")
        self.assertIn("tokenizer_class", info)
        self.assertIn("<|im_middle|>", info["chat_template"])

    def test_load_counts_requests_under_way(self):
        load = lambda: self.server.request("GET", "/load")[1]["server_load"]
        chunks = self.server.stream("/v1/completions", {"model": self.model, "prompt": PROMPT, "max_tokens": 900,
                                                        "ignore_eos": True})
        next(chunks)
        self.assertEqual(load(), 1)
        chunks.close()
        self.wait_until(lambda: load() == 0, "load of a departed client")

    def tokens(self, text):
        return self.server.post("/tokenize", {"prompt": text})["tokens"]

    def test_scores_of_prompts_as_lm_eval_asks(self):
        """Nested ids, two prompts at once: a logprob for every token of the prompt and one more."""
        prompts = [self.tokens(PROMPT), self.tokens("The sun")]
        answer = self.server.post("/v1/completions", {
            "model": self.model, "prompt": prompts, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234,
            "echo": True})
        for choice, prompt in zip(answer["choices"], prompts):
            logprobs = choice["logprobs"]
            for name in ("token_logprobs", "top_logprobs", "tokens", "text_offset"):
                self.assertEqual(len(logprobs[name]), len(prompt) + 1, name)
            self.assertIsNone(logprobs["token_logprobs"][0])
            for token, logprob, top in list(zip(*(logprobs[n] for n in ("tokens", "token_logprobs", "top_logprobs"))))[1:]:
                self.assertEqual(top[token], logprob)
                self.assertLessEqual(logprob, max(top.values()))
            self.assertEqual("".join(logprobs["tokens"]), choice["text"])
        # The same numbers one at a time, and as prompt_logprobs.
        alone = self.complete(prompt=prompts[1], max_tokens=1, logprobs=1, echo=True)["choices"][0]["logprobs"]
        self.assertEqual(alone["token_logprobs"], answer["choices"][1]["logprobs"]["token_logprobs"])
        scored = self.complete(prompt=prompts[1], max_tokens=1, prompt_logprobs=1)["choices"][0]["prompt_logprobs"]
        self.assertEqual([entry[str(token)]["logprob"] for entry, token in list(zip(scored, prompts[1]))[1:]],
                         alone["token_logprobs"][1:-1])

    def test_fields_do_what_they_say(self):
        base = self.complete(max_tokens=40, return_token_ids=True)["choices"][0]
        ids, text = base["token_ids"], base["text"]
        self.assertEqual(self.tokens(PROMPT), base["prompt_token_ids"])

        def choice(**fields):
            return self.complete(**{"max_tokens": 40, "return_token_ids": True, **fields})["choices"][0]

        word = text.split()[2]
        cut = choice(stop=[word])
        self.assertEqual((cut["text"], cut["finish_reason"], cut["stop_reason"]), (text[:text.index(word)], "stop", word))
        kept = choice(stop=[word], include_stop_str_in_output=True)
        self.assertEqual(kept["text"], text[:text.index(word)] + word)
        stopped = choice(stop_token_ids=[ids[4]])
        self.assertEqual(stopped["stop_reason"], ids[4])
        self.assertEqual(len(stopped["token_ids"]), ids.index(ids[4]) + 1)
        # A bias, a ban and a list of what is allowed.
        self.assertEqual(choice(logit_bias={str(ids[3]): 100}, max_tokens=3)["token_ids"], [ids[3]] * 3)
        self.assertNotIn(ids[0], choice(logit_bias={str(ids[0]): -100})["token_ids"])
        self.assertNotIn(word, choice(bad_words=[word])["text"].split())
        self.assertLessEqual(set(choice(allowed_token_ids=ids[:2], max_tokens=8)["token_ids"]), set(ids[:2]))
        longer = choice(min_tokens=40, stop=[word])
        self.assertEqual(len(longer["token_ids"]), 40)
        self.assertEqual(choice(priority=-3, user="me", metadata={"a": "b"})["token_ids"], ids)
        self.assertEqual(choice(truncate_prompt_tokens=3)["prompt_token_ids"], base["prompt_token_ids"][-3:])

    def test_best_of_and_seeds(self):
        ask = dict(prompt="I", temperature=2.0, seed=7, max_tokens=12)
        choices = self.complete(**ask, n=4, logprobs=0)["choices"]
        self.assertGreater(len({c["text"] for c in choices}), 1)
        mean = lambda c: sum(c["logprobs"]["token_logprobs"]) / len(c["logprobs"]["token_logprobs"])
        best = self.complete(**ask, n=1, best_of=4)
        self.assertEqual(best["choices"][0]["text"], max(choices, key=mean)["text"])
        self.assertEqual(best["usage"]["completion_tokens"], sum(len(c["logprobs"]["tokens"]) for c in choices))

    def test_reasoning_tokens(self):
        answer = self.server.post("/v1/chat/completions", {
            "model": self.model, "temperature": 0, "max_tokens": 300, "messages": [{"role": "user", "content": "Hello!"}]})
        details = answer["usage"]["completion_tokens_details"]
        self.assertGreater(details["reasoning_tokens"], 0)
        self.assertLess(details["reasoning_tokens"], answer["usage"]["completion_tokens"])

    def test_a_thinking_budget_ends_the_thought(self):
        ask = {"model": self.model, "temperature": 0, "max_tokens": 300, "return_token_ids": True,
               "messages": [{"role": "user", "content": "Tom has 3 apples and buys 4 more. How many?"}]}
        free = self.server.post("/v1/chat/completions", ask)["choices"][0]
        end = self.server.post("/tokenize", {"model": self.model, "prompt": "</think>"})["tokens"]
        self.assertEqual(len(end), 1)
        length = free["token_ids"].index(end[0])
        self.assertGreater(length, 4)
        for budget in (0, 3, length + 1):
            body = ask | {"thinking_token_budget": budget}
            choice = self.server.post("/v1/chat/completions", body)["choices"][0]
            self.assertEqual(choice["token_ids"].index(end[0]), min(budget, length))
            self.assertEqual(choice["token_ids"][:min(budget, length)], free["token_ids"][:min(budget, length)])
            self.assertTrue(choice["message"]["content"])
            streamed = "".join(part["delta"].get("content") or "" for chunk in self.server.stream(
                "/v1/chat/completions", body) for part in chunk["choices"])
            self.assertEqual(streamed, choice["message"]["content"])

    def test_a_repeated_pattern_ends_an_answer(self):
        loop = {"max_tokens": 50, "logit_bias": {"100": 100}, "return_token_ids": True, "ignore_eos": True}
        for limit, length in (({"max_pattern_size": 1, "min_count": 3}, 3), ({"max_pattern_size": 0}, 50),
                              ({"max_pattern_size": 4, "min_pattern_size": 4, "min_count": 2}, 8)):
            choice = self.complete(**loop, repetition_detection=limit)["choices"][0]
            self.assertEqual(choice["token_ids"], [100] * length)
            self.assertEqual(choice["finish_reason"], "length" if length == 50 else "repetition")
        self.assertEqual(self.server.metrics()['vllm:request_success_total{engine="0",model_name="%s",'
                                               'finished_reason="repetition"}' % self.model], 2)

    def test_the_prompt_as_text(self):
        answer = self.server.post("/v1/chat/completions", {
            "model": self.model, "max_tokens": 1, "messages": [{"role": "user", "content": "Hello!"}],
            "return_prompt_text": True, "return_token_ids": True})
        self.assertIn("Hello!", answer["prompt_text"])
        again = self.server.post("/tokenize", {"model": self.model, "prompt": answer["prompt_text"]})["tokens"]
        self.assertEqual(again, answer["prompt_token_ids"])

    def test_stream_equals_whole(self):
        for fields in ({}, {"stop": ["apples"]}, {"logprobs": 2}, {"n": 2, "seed": 5, "temperature": 1.0},
                       {"echo": True}, {"max_tokens": 1}):
            body = {"model": self.model, "prompt": PROMPT, "max_tokens": 40, "temperature": 0, **fields}
            whole = self.server.post("/v1/completions", body)
            text, finish = {}, {}
            for chunk in self.server.stream("/v1/completions", body):
                for choice in chunk["choices"]:
                    text[choice["index"]] = text.get(choice["index"], "") + choice["text"]
                    finish[choice["index"]] = choice["finish_reason"] or finish.get(choice["index"])
            for choice in whole["choices"]:
                self.assertEqual(choice["text"], text[choice["index"]], fields)
                self.assertEqual(choice["finish_reason"], finish[choice["index"]], fields)

    def test_chat_thinking_on_and_off(self):
        for thinking in (True, False):
            body = {"model": self.model, "max_tokens": 300, "temperature": 0,
                    "messages": [{"role": "user", "content": "Tom has 3 apples and buys 4 more. How many?"}],
                    "chat_template_kwargs": {"thinking": thinking}}
            message = self.server.post("/v1/chat/completions", body)["choices"][0]["message"]
            streamed = {"content": "", "reasoning": ""}
            for chunk in self.server.stream("/v1/chat/completions", body):
                for choice in chunk["choices"]:
                    for key in streamed:
                        streamed[key] += choice["delta"].get(key) or ""
            self.assertEqual(streamed["content"], message["content"] or "")
            self.assertEqual(streamed["reasoning"], message.get("reasoning") or "")
            if not thinking:
                self.assertFalse(message.get("reasoning"))
                self.assertTrue(message["content"])

    def test_usage_counts(self):
        answer = self.complete(max_tokens=7, ignore_eos=True)
        self.assertEqual(answer["usage"]["completion_tokens"], 7)
        prompt_tokens = self.server.post("/tokenize", {"model": self.model, "prompt": PROMPT})["count"]
        self.assertEqual(answer["usage"]["prompt_tokens"], prompt_tokens)
        self.assertEqual(answer["choices"][0]["finish_reason"], "length")

    def test_speculation_counters_rise(self):
        before = self.server.metric("vllm:spec_decode_num_drafts_total")
        self.complete(max_tokens=60, ignore_eos=True)
        self.assertGreater(self.server.metric("vllm:spec_decode_num_drafts_total"), before)

    # Bad requests

    def refused(self, status, body, *, says, path="/v1/completions", **kwargs):
        got, answer, _ = self.server.request("POST", path, body, **kwargs)
        self.assertEqual(got, status, answer)
        error = answer["error"] if "error" in answer else answer
        self.assertIn(says, error["message"], answer)
        self.assertEqual(self.server.request("GET", "/health")[0], 200)

    def test_malformed_json(self):
        self.refused(400, '{"model": ', says="JSON")

    def test_wrong_types_are_named(self):
        ok = {"model": self.model, "prompt": PROMPT}
        self.refused(400, {**ok, "max_tokens": "many"}, says="max_tokens")
        self.refused(400, {**ok, "temperature": [1]}, says="temperature")
        self.refused(400, {**ok, "stop": 5}, says="stop")
        self.refused(400, {**ok, "prompt": {"a": 1}}, says="prompt")
        self.refused(400, {**ok, "n": 0}, says="n")
        self.refused(400, {**ok, "top_p": 2}, says="top_p")
        self.refused(400, {"model": self.model, "messages": "hi"}, says="messages", path="/v1/chat/completions")

    def test_too_long(self):
        self.refused(400, {"model": self.model, "prompt": [5] * 1000, "max_tokens": 100}, says="1024")
        self.refused(400, {"model": self.model, "prompt": [5] * 2000}, says="1024")

    def test_empty_prompt(self):
        self.refused(400, {"model": self.model, "prompt": ""}, says="prompt")
        self.refused(400, {"model": self.model, "prompt": []}, says="prompt")
        self.refused(400, {"model": self.model, "messages": []}, says="messages", path="/v1/chat/completions")

    def test_token_ids_out_of_range(self):
        self.refused(400, {"model": self.model, "prompt": [10 ** 8]}, says="100000000")
        self.refused(400, {"model": self.model, "prompt": [-1]}, says="-1")

    def test_unknown_model_and_path(self):
        self.refused(404, {"model": "someone-else", "prompt": "x"}, says="someone-else")
        self.assertEqual(self.server.request("GET", "/v2/nothing")[0], 404)
        self.assertEqual(self.server.request("GET", "/v1/completions")[0], 405)

    def test_what_needs_constrained_decoding_says_so(self):
        chat = {"model": self.model, "messages": [{"role": "user", "content": "Hi"}]}
        tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
        for kind in ({"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}):
            self.refused(400, {**chat, "response_format": kind}, says="constrained", path="/v1/chat/completions")
        for kind in ({"regex": "a+"}, {"grammar": "root ::= 'a'"}, {"choice": ["a"]}, {"json": {}}):
            self.refused(400, {"model": self.model, "prompt": "x", "structured_outputs": kind}, says="constrained")
        for choice in ("required", {"type": "function", "function": {"name": "f"}}):
            self.refused(400, {**chat, "tools": tools, "tool_choice": choice}, says="constrained",
                         path="/v1/chat/completions")

    def test_null_means_absent(self):
        self.complete(max_tokens=None, temperature=None, stop=None, seed=None)

    def test_images_are_refused_with_the_reason(self):
        content = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
        self.refused(400, {"model": self.model, "messages": [{"role": "user", "content": content}]},
                     says="image", path="/v1/chat/completions")

    # Clients that leave, floods

    def wait_until(self, condition, what, seconds=20):
        deadline = time.monotonic() + seconds * harness.SLOW
        while not condition():
            self.assertLess(time.monotonic(), deadline, what)
            time.sleep(0.02)

    def test_a_client_that_leaves_gives_its_blocks_back(self):
        body = json.dumps({"model": self.model, "prompt": PROMPT, "max_tokens": 900, "ignore_eos": True,
                           "stream": True, "temperature": 0})
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", self.server.port)) as client:
                client.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                               f"Content-Length: {len(body)}\r\n\r\n{body}".encode())
                client.recv(100)
        idle = lambda: (self.server.metric("vllm:num_requests_running") == 0
                        and self.server.metric("vllm:num_requests_waiting") == 0)
        self.wait_until(idle, "requests of departed clients still run")
        self.wait_until(lambda: self.server.metric("vllm:kv_cache_usage_perc") == 0, "blocks still held")

    def test_a_thousand_at_once(self):
        count = int(1000 / harness.SLOW)
        statuses, lock = [], threading.Lock()

        def one(i):
            status, _, _ = self.server.request("POST", "/v1/completions", {
                "model": self.model, "prompt": f"{PROMPT} {i}", "max_tokens": 4, "temperature": 0}, timeout=300)
            with lock:
                statuses.append(status)

        with concurrent.futures.ThreadPoolExecutor(count) as pool:
            list(pool.map(one, range(count)))
        self.assertEqual(len(statuses), count)
        self.assertLessEqual(set(statuses), {200, 429, 503})
        self.assertIn(200, statuses)
        self.assertEqual(self.server.request("GET", "/health")[0], 200)


@harness.needs_models
class KeysAndShutdownTest(unittest.TestCase):
    def test_keys(self):
        with Server("--api-key", "one", "two", "--served-model-name", "nano") as server:
            body = {"model": "nano", "prompt": "x", "max_tokens": 1}
            self.assertEqual(server.request("POST", "/v1/completions", body)[0], 401)
            self.assertEqual(server.request("POST", "/v1/completions", body,
                                            {"Authorization": "Bearer three"})[0], 401)
            for key in ("one", "two"):
                self.assertEqual(server.request("POST", "/v1/completions", body,
                                                {"Authorization": f"Bearer {key}"})[0], 200)
            self.assertEqual(server.request("GET", "/health")[0], 200)

    def test_sigterm_lets_a_running_request_finish(self):
        server = Server()
        chunks = server.stream("/v1/completions", {"model": str(TARGET), "prompt": PROMPT, "max_tokens": 300,
                                                   "ignore_eos": True, "temperature": 0})
        next(chunks)
        server.process.terminate()
        tokens = 1 + sum(bool(c["choices"][0]["text"]) for c in chunks if c["choices"])
        self.assertGreater(tokens, 20)
        # Not stop(): a second SIGTERM ends the drain.
        self.assertEqual(server.process.wait(30 * harness.SLOW), 0)

    def test_the_ledger(self):
        with Server() as server:
            log = server.log()
            for phase in ("config", "weights", "KV", "ready"):
                self.assertIn(phase, log)


@harness.needs_models
class ChatTemplateTest(unittest.TestCase):
    MESSAGES = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"},
                {"role": "user", "content": "bye"}]

    def prompt(self, server, **fields) -> str:
        tokens = server.post("/tokenize", {"model": "nano", "messages": self.MESSAGES, **fields})["tokens"]
        return server.post("/detokenize", {"model": "nano", "tokens": tokens})["prompt"]

    def test_a_template_of_ones_own(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
            template.write("{% for m in messages %}[{{ m.role | upper }}] {{ m.content }}{% if not loop.last %}; "
                           "{% endif %}{% endfor %}{% if mood is defined %} ({{ mood }}){% endif %}")
            template.flush()
            with Server("--served-model-name", "nano", "--chat-template", template.name) as server:
                rendered = "[USER] hello; [ASSISTANT] hi; [USER] bye"
                self.assertEqual(self.prompt(server), rendered)
                self.assertEqual(self.prompt(server, chat_template_kwargs={"mood": "calm"}), rendered + " (calm)")
                usage = server.post("/v1/chat/completions", {"model": "nano", "messages": self.MESSAGES,
                                                             "max_tokens": 1})["usage"]
                alone = server.post("/tokenize", {"model": "nano", "prompt": rendered})["count"]
                self.assertEqual(usage["prompt_tokens"], alone)

    def test_a_requests_template_is_rendered_where_clients_are_trusted(self):
        own = {"chat_template": "{{ messages[-1].content }}!"}
        with Server("--served-model-name", "nano") as server:
            status, answer, _ = server.request("POST", "/v1/chat/completions", {
                "model": "nano", "messages": self.MESSAGES, "max_tokens": 1, **own})
            self.assertEqual(status, 400)
            self.assertIn("--trust-request-chat-template", answer["error"]["message"])
        with Server("--served-model-name", "nano", "--trust-request-chat-template") as server:
            self.assertEqual(self.prompt(server, **own), "bye!")
            status, answer, _ = server.request("POST", "/v1/chat/completions", {
                "model": "nano", "messages": self.MESSAGES, "chat_template": "{% for m in"})
            self.assertEqual(status, 400, answer)
            self.assertEqual(server.request("GET", "/health")[0], 200)


if __name__ == "__main__":
    unittest.main()
