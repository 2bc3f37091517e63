"""Faults of ranks with the real plugin's code, and of the node before them.

    test_real_faults.py RANKWISE [ROUNDS]      path of the program rankwise; rounds of killing the node
"""

import collections
import json
import pathlib
import signal
import sys
import tempfile
import time
import unittest
import urllib.request

import harness
from harness import request

RANKS = 4
rankwise = ""
rounds = 5


class RealFaults(unittest.TestCase):
    """Four processes of one rank each."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.journals = []
        self.start_node()
        self.handshake = self.node_says("handshake=unified:")
        self.ranks = [self.start_rank(number) for number in range(RANKS)]
        self.node.wait_for(lambda line: line == "READY")

    def node_says(self, prefix):
        return self.node.wait_for(lambda line: line.startswith(prefix))[len(prefix):]

    def start_node(self):
        self.node = harness.Program(rankwise, "node", "--grpc", "127.0.0.1:0", "--handshake", "tcp://127.0.0.1:0",
                                    "--admin", "127.0.0.1:0", "--ranks", RANKS, "--state", self.folder / "state")
        self.addCleanup(self.node.stop)
        self.target = self.node_says("grpc=")
        self.admin = self.node_says("admin=")

    def start_rank(self, number):
        journal = self.folder / f"rank-{number}-{len(self.journals)}.jsonl"
        self.journals.append(journal)
        program = harness.python_program("real_ranks.py", "--handshake", self.handshake, "--ranks", 1, "--first-rank",
                                         number, "--dp-size", RANKS, "--log", journal)
        self.addCleanup(program.stop)
        return program

    def rank_states(self):
        with urllib.request.urlopen(f"http://{self.admin}/ranks", timeout=5) as answer:
            return {rank["rank"]: rank["state"] for rank in json.load(answer)["pools"][0]["ranks"]}

    def wait_state(self, rank, wanted, limit_s=30):
        until = time.monotonic() + limit_s
        while self.rank_states().get(rank) != wanted:
            self.assertLess(time.monotonic(), until, f"rank {rank} is {self.rank_states().get(rank)}")
            time.sleep(0.02)

    def entries(self):
        return [json.loads(line) for path in self.journals if path.exists() for line in path.read_text().splitlines()]

    def drive(self, prefix, count=20):
        requests = [request(f"{prefix}-{i}", tokens=20) for i in range(count)]
        self.assertEqual(harness.drive(self.target, requests, concurrency=20), [])

    def test_one_stopped_resumed_killed_and_replaced_while_requests_arrive(self):
        self.drive("before")
        self.ranks[2].signal(signal.SIGSTOP)
        self.drive("stopped")
        self.wait_state(2, "down")
        self.ranks[2].signal(signal.SIGCONT)
        self.drive("resumed")
        self.wait_state(2, "ready")
        self.ranks[2].signal(signal.SIGKILL)
        self.drive("killed")
        self.wait_state(2, "down")
        self.ranks[2] = self.start_rank(2)
        self.wait_state(2, "ready")
        time.sleep(2.5)  # its slow start
        self.drive("replaced", 80)
        share = collections.Counter(entry["rank"] for entry in self.entries() if
                                    entry.get("add", "").startswith("replaced-"))
        self.assertGreater(share[2], 80 / RANKS / 2, share)

    def test_a_killed_node_has_its_ranks_back_within_two_seconds(self):
        slowest = 0
        for number in range(rounds):
            stub = harness.rpc.SglangSchedulerStub(harness.grpc.insecure_channel(self.target))
            streams = [stub.Generate(request(f"old-{number}-{i}", tokens=100_000), timeout=60) for i in range(8)]
            for stream in streams:
                next(stream)
            self.node.signal(signal.SIGKILL)
            self.node.process.wait()
            begun = time.monotonic()
            self.start_node()
            self.node.wait_for(lambda line: line == "READY")
            slowest = max(slowest, time.monotonic() - begun)
            self.assertLess(slowest, 2.0)
            self.drive(f"new-{number}")
            until = time.monotonic() + 20
            while True:  # what the ranks ran for the old process is aborted as it shows up
                aborted = {entry["abort"].partition("~")[0] for entry in self.entries() if entry.get("known")}
                missing = {f"old-{number}-{i}" for i in range(8)} - aborted
                if not missing:
                    break
                self.assertLess(time.monotonic(), until, f"never aborted: {missing}")
                time.sleep(0.1)
        joined = [entry for entry in self.entries() if entry.get("joined")]
        self.assertEqual(len(joined), RANKS, "nobody shook hands again")
        print(f"restart of the node to READY with {RANKS} ranks: slowest of {rounds} {slowest:.3f} s")


if __name__ == "__main__":
    rankwise = sys.argv.pop(1)
    if len(sys.argv) > 1 and sys.argv[1].isdigit():
        rounds = int(sys.argv.pop(1))
    unittest.main()
