"""Engine ranks that speak the dial-in wire with the real plugin's own code, without a model.

    real_ranks.py --handshake tcp://127.0.0.1:PORT --ranks 8 [--first-rank 0] [--dp-size 8] [--log FILE]

Handshake, registration, request decoding and output encoding are those of smg_grpc_servicer.sglang.zmq_msgpack and of the
installed sglang. Only the model is ours: every running request gets one token per step, token i being
(crc32(the client's part of the rid) + i) % 94, so that any client can check any token. One thread a rank; one JSON line for
each thing that happens.
"""

import argparse
import importlib.metadata
import json
import os
import sys
import threading
import time
import zlib

import stand_ins  # noqa: F401  before sglang

import zmq
from sglang.srt.managers import io_struct
from smg_grpc_servicer.sglang import zmq_msgpack

HANDSHAKE_WAIT_MS = 120_000


class Journal:
    def __init__(self, path):
        self._out = open(path, "a", buffering=1) if path else sys.stdout
        self._lock = threading.Lock()

    def note(self, **fields):
        with self._lock:
            print(json.dumps(fields), file=self._out, flush=True)


class Load:
    """The attributes that the plugin reads for the load tail of an output batch."""

    def __init__(self, kv_tokens):
        self.num_running_reqs = 0
        self.num_waiting_reqs = 0
        self.num_used_tokens = 0
        self.max_total_num_tokens = kv_tokens


def client_part(rid):
    """What the client called the request: a node adds '~' and its own handle."""
    return rid.rpartition("~")[0] if "~" in rid else rid


class Running:
    def __init__(self, request):
        self.seed = zlib.crc32(client_part(request.rid).encode())
        self.prompt = len(request.input_ids)
        self.limit = max(1, request.sampling_params.max_new_tokens or 1)
        self.done = 0

    def step(self):
        token = (self.seed + self.done) % 94
        self.done += 1
        return token

    @property
    def finished(self):
        return "length" if self.done >= self.limit else ""


class Rank(threading.Thread):
    def __init__(self, number, options, journal):
        super().__init__(daemon=True, name=f"rank-{number}")
        self.number = number
        self.options = options
        self.journal = journal
        self.load = Load(options.kv_tokens)
        self.running = {}

    def registration(self):
        options = self.options
        return zmq_msgpack.WireEngineCoreReadyResponse(
            max_model_len=131072,
            num_gpu_blocks=options.kv_tokens,
            block_size=1,
            vllm_version="sglang-" + importlib.metadata.version("sglang"),
            data_parallel_size=options.dp_size or options.first_rank + options.ranks,
            data_parallel_rank=self.number,
            max_num_seqs=256,
            max_num_batched_tokens=8192,
            instance_id=f"interop-{os.getpid()}",
            kv_cache_size_tokens=options.kv_tokens,
            positional_layouts=zmq_msgpack.request_layouts(),
        )

    def run(self):
        try:
            self.serve()
        except Exception as error:  # a rank that died silently would only look slow
            self.journal.note(rank=self.number, died=repr(error))
            raise

    def serve(self):
        self.output = zmq_msgpack.MsgpackSendSocket(self.number)
        requests = zmq_msgpack.connect_msgpack_engine(
            zmq.Context(1), self.options.handshake, self.number, self.registration(), HANDSHAKE_WAIT_MS, self.output,
            load_probe=lambda: self.load)
        self.journal.note(rank=self.number, joined=True)
        step_s = self.options.step_ms / 1000
        due = time.monotonic()
        while True:
            if not self.running:
                requests.socket.poll(50)
                due = time.monotonic()
            for message in requests.drain(-1):
                self.take(message)
            if not self.running:
                continue
            due += step_s
            time.sleep(max(0.0, due - time.monotonic()))
            self.step()

    def take(self, message):
        if isinstance(message, io_struct.TokenizedGenerateReqInput):
            self.running[message.rid] = Running(message)
            self.journal.note(rank=self.number, add=message.rid, tokens=len(message.input_ids),
                              room=message.bootstrap_room)
        elif isinstance(message, io_struct.AbortReq):
            known = self.running.pop(message.rid, None) is not None
            if known:
                self.output.send_terminal_abort(message.rid, "aborted", status=None)
            self.journal.note(rank=self.number, abort=message.rid, known=known)
        else:
            self.journal.note(rank=self.number, other=type(message).__name__)

    def step(self):
        batch = list(self.running.items())
        count = len(batch)
        tokens = [[one.step()] for _, one in batch]
        finished = [one.finished for _, one in batch]
        self.load.num_running_reqs = count
        self.load.num_used_tokens = sum(one.prompt + one.done for _, one in batch)
        self.output._send_slim(zmq_msgpack.BatchTokenIDSlimOutput(
            rids=[rid for rid, _ in batch],
            output_ids=tokens,
            finished_reasons=finished,
            finished_messages=[None] * count,
            finished_matched=[None] * count,
            prompt_tokens=[one.prompt for _, one in batch],
            completion_tokens=[one.done for _, one in batch],
            cached_tokens=[0] * count,
            output_token_logprobs_val=[[]] * count,
            output_token_logprobs_idx=[[]] * count,
            engine_index=self.number,
            finished_status=[None] * count,
            **self.output._load_tail(),
        ))
        for (rid, _), reason in zip(batch, finished):
            if reason:
                del self.running[rid]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--handshake", required=True)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--first-rank", type=int, default=0)
    parser.add_argument("--dp-size", type=int, default=0, help="0 = first rank + ranks")
    parser.add_argument("--step-ms", type=float, default=5)
    parser.add_argument("--kv-tokens", type=int, default=1 << 20)
    parser.add_argument("--log", default="", help="file for the JSON lines; default standard output")
    options = parser.parse_args()
    journal = Journal(options.log)
    ranks = [Rank(options.first_rank + i, options, journal) for i in range(options.ranks)]
    for rank in ranks:
        rank.start()
    while all(rank.is_alive() for rank in ranks):
        time.sleep(0.2)
    return 1


if __name__ == "__main__":
    sys.exit(main())
