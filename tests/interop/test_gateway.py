"""The real smg gateway in front of our gRPC front: its client is tonic, and it decides what a worker's answer is worth.

    test_gateway.py front FRONT_SERVER      in front of the front over an echoing engine
    test_gateway.py node RANKWISE           in front of a node with simulated ranks
"""

import contextlib
import json
import pathlib
import socket
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request

import harness
import tiny_tokenizer

MODEL = "tiny"
kind = ""
program = ""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def is_run_of_ascii(text):
    """Tokens are consecutive numbers modulo 94, and token i is the printable character i."""
    codes = [ord(c) - 33 for c in text]
    return all(0 <= a < 94 and (a + 1) % 94 == b for a, b in zip(codes, codes[1:]))


def start_worker(stack, folder, model):
    """Address of the gRPC worker."""
    if kind == "front":
        server = stack.enter_context(harness.Program(program, "--model", model, "--step-us", "2000", "--drain", "1"))
        return server.value("grpc")
    config = pathlib.Path(folder) / "node.toml"
    config.write_text(f'[model]\nmodel_path = "{model}"\ntokenizer_path = "{model}"\nserved_model_name = "{MODEL}"\n')
    node = stack.enter_context(harness.Program(program, "node", "--config", config, "--grpc", "127.0.0.1:0", "--handshake",
                                               "tcp://127.0.0.1:0", "--admin", "127.0.0.1:0", "--ranks", "4", "--state",
                                               pathlib.Path(folder) / "state"))
    prefix = "handshake=unified:"
    handshake = node.wait_for(lambda line: line.startswith(prefix))[len(prefix):]
    stack.enter_context(harness.Program(program, "engine", "--handshake", handshake, "--ranks", "4", "--die-with-parent"))
    node.wait_for(lambda line: line == "READY")
    return node.value("grpc")


class Gateway(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        stack = contextlib.ExitStack()
        cls.addClassCleanup(stack.close)
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        model = pathlib.Path(folder) / MODEL
        tiny_tokenizer.write(model)
        worker = start_worker(stack, folder, model)
        port = free_port()
        cls.url = f"http://127.0.0.1:{port}"
        cls.gateway = stack.enter_context(harness.Program(
            pathlib.Path(sys.executable).parent / "smg", "launch", "--host", "127.0.0.1", "--port", port, "--worker-urls",
            f"grpc://{worker}", "--policy", "round_robin", "--prometheus-port", free_port(),
            env={"HF_HUB_OFFLINE": "1"}))
        cls.wait_until_served(60)

    @classmethod
    def wait_until_served(cls, limit_s):
        until = time.monotonic() + limit_s
        while True:
            try:
                cls.models = json.load(urllib.request.urlopen(cls.url + "/v1/models", timeout=5))["data"]
                if cls.models:
                    return
            except (OSError, KeyError, ValueError):
                pass
            if time.monotonic() > until:
                raise AssertionError("the gateway serves no model:\n" + "\n".join(cls.gateway.lines[-40:]))
            time.sleep(0.2)

    def post(self, path, **body):
        body.setdefault("model", self.models[0]["id"])
        call = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"content-type": "application/json"})
        try:
            return urllib.request.urlopen(call, timeout=30)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path}: {error.code} {error.read().decode()}\n" +
                                 "\n".join(self.gateway.lines[-20:])) from error

    def events(self, path, **body):
        out = []
        with self.post(path, stream=True, **body) as answer:
            for line in answer:
                text = line.decode().strip()
                if text.startswith("data: "):
                    out.append(text[6:])
        self.assertEqual(out[-1], "[DONE]")
        return [json.loads(text) for text in out[:-1]]

    def check_text(self, text, length):
        self.assertEqual(len(text), length, text)
        self.assertTrue(is_run_of_ascii(text), text)

    def test_completions(self):
        answer = json.load(self.post("/v1/completions", prompt="hello there", max_tokens=20))
        self.check_text(answer["choices"][0]["text"], 20)
        self.assertEqual(answer["choices"][0]["finish_reason"], "length")
        self.assertEqual(answer["usage"]["completion_tokens"], 20)
        self.assertEqual(answer["usage"]["prompt_tokens"], len("hello there"))

    def test_completions_streaming(self):
        events = self.events("/v1/completions", prompt="hello", max_tokens=20)
        choices = [event["choices"][0] for event in events if event["choices"]]
        self.check_text("".join(choice["text"] for choice in choices), 20)
        self.assertEqual([c["finish_reason"] for c in choices if c.get("finish_reason")], ["length"])
        self.assertGreater(len(choices), 2)

    def test_chat_completions(self):
        answer = json.load(self.post("/v1/chat/completions", messages=[{"role": "user", "content": "hi"}], max_tokens=15))
        self.check_text(answer["choices"][0]["message"]["content"], 15)
        self.assertEqual(answer["choices"][0]["finish_reason"], "length")

    def test_chat_completions_streaming(self):
        events = self.events("/v1/chat/completions", messages=[{"role": "user", "content": "hi"}], max_tokens=15)
        choices = [event["choices"][0] for event in events if event["choices"]]
        self.check_text("".join(choice["delta"].get("content") or "" for choice in choices), 15)
        self.assertEqual([c["finish_reason"] for c in choices if c.get("finish_reason")], ["length"])

    def test_two_samples(self):
        answer = json.load(self.post("/v1/completions", prompt="twice", max_tokens=10, n=2))
        self.assertEqual(sorted(choice["index"] for choice in answer["choices"]), [0, 1])
        for choice in answer["choices"]:
            self.check_text(choice["text"], 10)

    def test_a_hundred_at_once(self):
        faults = []

        def one(number):
            try:
                answer = json.load(self.post("/v1/completions", prompt="x" * (1 + number), max_tokens=10 + number % 20))
                self.check_text(answer["choices"][0]["text"], 10 + number % 20)
            except Exception as error:
                faults.append(error)

        threads = [threading.Thread(target=one, args=(i,)) for i in range(100)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(faults, [])

    def test_a_worker_of_ours_is_healthy(self):
        with urllib.request.urlopen(self.url + "/health", timeout=10) as answer:
            self.assertEqual(answer.status, 200)
        with urllib.request.urlopen(self.url + "/workers", timeout=10) as answer:
            workers = json.load(answer)["workers"]
        self.assertEqual(len(workers), 1)
        self.assertTrue(workers[0]["is_healthy"], workers)


if __name__ == "__main__":
    kind, program = sys.argv[1:3]
    del sys.argv[1:3]
    unittest.main()
