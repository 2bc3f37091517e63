"""What the tests of this folder share: programs that are started, watched and ended, and a gRPC client that checks tokens."""

import asyncio
import collections
import importlib.metadata
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import zlib

import grpc
from smg_grpc_proto.generated import sglang_scheduler_pb2 as pb
from smg_grpc_proto.generated import sglang_scheduler_pb2_grpc as rpc

HERE = pathlib.Path(__file__).parent
START_LIMIT_S = 60
STOP_LIMIT_S = 20


class Program:
    """A child process whose output is kept; ended with SIGTERM, then SIGKILL, when the `with` block is left."""

    def __init__(self, *command, env=None):
        self.command = [str(part) for part in command]
        self.lines = []
        self._news = threading.Condition()
        self._closed = False
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                        errors="replace", env={**os.environ, **(env or {})})
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            with self._news:
                self.lines.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._closed = True
            self._news.notify_all()

    def wait_for(self, wanted, limit_s=START_LIMIT_S, after=0):
        """The first line from `after` on that satisfies `wanted`; an AssertionError with the output otherwise."""
        until = time.monotonic() + limit_s
        seen = after
        with self._news:
            while True:
                for line in self.lines[seen:]:
                    if wanted(line):
                        return line
                seen = len(self.lines)
                left = until - time.monotonic()
                if left <= 0 or self._closed:
                    raise AssertionError(f"{self.command[0]} did not say it:\n" + "\n".join(self.lines[-40:]))
                self._news.wait(left)

    def value(self, key, limit_s=START_LIMIT_S):
        """X of a line `key=X`."""
        return self.wait_for(lambda line: line.startswith(key + "="), limit_s)[len(key) + 1:]

    def signal(self, number):
        self.process.send_signal(number)

    def stop(self):
        """Exit status after SIGTERM; None when it had to be killed."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            status = None
        self._reader.join(STOP_LIMIT_S)
        return status

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class FrontServer(Program):
    """The program front_server, with the figures that it prints on SIGUSR1."""

    def __init__(self, path, *options):
        super().__init__(path, *options)
        try:
            self.target = self.value("grpc")
        except BaseException:
            self.stop()
            raise

    def figures(self):
        before = len(self.lines)
        self.signal(signal.SIGUSR1)
        line = self.wait_for(lambda text: text.startswith("cpu_s="), 5, before)
        return {key: float(value) for key, value in (part.split("=") for part in line.split())}

    def settled(self, limit_s=10, **wanted):
        """These figures once all of them are as wanted, or as they are at the end of the limit."""
        until = time.monotonic() + limit_s
        while True:
            now = self.figures()
            seen = {key: now[key] for key in wanted}
            if seen == wanted or time.monotonic() > until:
                return seen
            time.sleep(0.05)

    def handshakes(self, limit_s=10):
        """How many of them were finished and how many failed, once that tells of every connection."""
        until = time.monotonic() + limit_s
        while True:
            now = self.figures()
            good, bad = now["tls_handshakes"], now["tls_handshakes_failed"]
            if good + bad == now["connections"]:
                return good, bad
            if time.monotonic() > until:
                raise AssertionError(f"{now['connections']} connections, {good} good and {bad} failed handshakes")
            time.sleep(0.05)


def python_program(name, *arguments):
    return Program(sys.executable, "-u", HERE / name, *arguments)


def sglang_version():
    return importlib.metadata.version("sglang")


def expected_tokens(rid, count):
    seed = zlib.crc32(rid.encode())
    return [(seed + i) % 94 for i in range(count)]


def request(rid, *, prompt=(1, 2, 3), tokens=10, samples=1, stream=True, **more):
    return pb.GenerateRequest(
        request_id=rid,
        tokenized=pb.TokenizedInput(input_ids=prompt),
        sampling_params=pb.SamplingParams(temperature=1, max_new_tokens=tokens, n=samples),
        stream=stream,
        logprob_start_len=-1,
        **more,
    )


class Answer:
    """One Generate stream, sample by sample."""

    def __init__(self, message):
        self.request = message
        self.chunks = collections.defaultdict(list)
        self.completes = {}
        self.faults = []

    def take(self, response):
        if response.request_id != self.request.request_id:
            self.faults.append(f"request_id {response.request_id}")
        if response.WhichOneof("response") == "chunk":
            chunk = response.chunk
            tokens = self.chunks[chunk.index]
            tokens.extend(chunk.token_ids)
            if chunk.completion_tokens != len(tokens):
                self.faults.append(f"completion_tokens {chunk.completion_tokens} after {len(tokens)} tokens")
            if chunk.index in self.completes:
                self.faults.append("a chunk behind its complete")
        else:
            if response.complete.index in self.completes:
                self.faults.append("two completes")
            self.completes[response.complete.index] = response.complete

    def check(self):
        """Everything that is wrong with it; empty = nothing."""
        faults = list(self.faults)
        samples = self.request.sampling_params.n
        count = self.request.sampling_params.max_new_tokens
        if sorted(self.completes) != list(range(samples)):
            faults.append(f"completes of samples {sorted(self.completes)}")
        for index, complete in self.completes.items():
            rid = self.request.request_id + (f"-{index}" if samples > 1 else "")
            wanted = expected_tokens(rid, count)
            if list(complete.output_ids) != wanted:
                faults.append(f"sample {index}: output_ids {list(complete.output_ids)[:5]}... of {len(complete.output_ids)}")
            if self.request.stream and self.chunks[index] != wanted:
                faults.append(f"sample {index}: chunks {self.chunks[index][:5]}... of {len(self.chunks[index])}")
            if complete.finish_reason != "length":
                faults.append(f"sample {index}: finish_reason {complete.finish_reason}")
            if complete.prompt_tokens != len(self.request.tokenized.input_ids):
                faults.append(f"sample {index}: prompt_tokens {complete.prompt_tokens}")
        return faults


async def _drive(target, requests, concurrency, limit_s):
    failures = []
    gate = asyncio.Semaphore(concurrency)
    async with grpc.aio.insecure_channel(target) as channel:
        stub = rpc.SglangSchedulerStub(channel)

        async def one(message):
            async with gate:
                answer = Answer(message)
                try:
                    async for response in stub.Generate(message, timeout=limit_s):
                        answer.take(response)
                except grpc.aio.AioRpcError as error:
                    failures.append(f"{message.request_id}: {error.code().name} {error.details()}")
                    return
                failures.extend(f"{message.request_id}: {fault}" for fault in answer.check())

        await asyncio.gather(*(one(message) for message in requests))
    return failures


def drive(target, requests, concurrency=64, limit_s=60):
    """Sends all of them, checks every token; what went wrong, a line each."""
    return run(_drive(target, requests, concurrency, limit_s))


# grpc.aio binds itself to the first event loop that it meets, so there is one.
_loop = asyncio.new_event_loop()


def run(coroutine):
    return _loop.run_until_complete(coroutine)
