"""Ranks with the real plugin's code join a node and serve checked requests.

    test_real_ranks.py RANKWISE      path of the program rankwise
"""

import collections
import json
import pathlib
import sys
import tempfile
import unittest

import grpc
import harness
from harness import pb, request, rpc

RANKS = 8
REQUESTS = 1000
rankwise = ""


class RealRanks(unittest.TestCase):
    """Eight ranks, in two processes, of the SGLang release that is installed here."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.node = harness.Program(rankwise, "node", "--grpc", "127.0.0.1:0", "--handshake", "tcp://127.0.0.1:0",
                                   "--admin", "127.0.0.1:0", "--ranks", RANKS, "--state",
                                   pathlib.Path(cls.folder.name) / "state")
        cls.addClassCleanup(cls.node.stop)
        cls.target = cls.node.value("grpc")
        prefix = "handshake=unified:"
        cls.handshake = cls.node.wait_for(lambda line: line.startswith(prefix))[len(prefix):]
        cls.journals = []
        for first in (0, RANKS // 2):
            journal = pathlib.Path(cls.folder.name) / f"ranks-{first}.jsonl"
            cls.journals.append(journal)
            ranks = harness.python_program("real_ranks.py", "--handshake", cls.handshake, "--ranks", RANKS // 2,
                                           "--first-rank", first, "--dp-size", RANKS, "--log", journal)
            cls.addClassCleanup(ranks.stop)
        cls.node.wait_for(lambda line: line == "READY")
        cls.channel = grpc.insecure_channel(cls.target)
        cls.addClassCleanup(cls.channel.close)
        cls.stub = rpc.SglangSchedulerStub(cls.channel)

    def journal(self):
        return [json.loads(line) for path in self.journals for line in path.read_text().splitlines()]

    def adds(self, prefix):
        return [entry for entry in self.journal() if entry.get("add", "").startswith(prefix)]

    def test_a_thousand_requests_are_answered_right_and_spread_over_all_ranks(self):
        requests = [request(f"k-{i}", tokens=4 + i % 30, prompt=range(1 + 7 * i % 900)) for i in range(REQUESTS)]
        self.assertEqual(harness.drive(self.target, requests, concurrency=128), [])
        adds = self.adds("k-")
        self.assertEqual(len(adds), REQUESTS)
        per_rank = collections.Counter(entry["rank"] for entry in adds)
        self.assertEqual(len(per_rank), RANKS)
        self.assertGreater(min(per_rank.values()), REQUESTS / RANKS / 3, per_rank)

    def test_samples_are_requests_of_their_own(self):
        self.assertEqual(harness.drive(self.target, [request(f"n-{i}", samples=3, tokens=8) for i in range(10)]), [])
        self.assertEqual(len(self.adds("n-")), 30)

    def test_an_answer_in_one_piece(self):
        self.assertEqual(harness.drive(self.target, [request(f"one-{i}", stream=False) for i in range(10)]), [])

    def test_a_pin_is_kept(self):
        requests = [request(f"pin-{i}", data_parallel_rank=i % RANKS) for i in range(40)]
        self.assertEqual(harness.drive(self.target, requests), [])
        for entry in self.adds("pin-"):
            number = int(entry["add"].partition("~")[0].removeprefix("pin-"))
            self.assertEqual(entry["rank"], number % RANKS)

    def test_a_cancelled_stream_is_one_abort_at_its_rank(self):
        call = self.stub.Generate(request("gone", tokens=100_000), timeout=60)
        next(call)
        call.cancel()
        for _ in range(200):
            aborts = [entry for entry in self.journal() if entry.get("abort", "").startswith("gone")]
            if aborts:
                break
            harness.time.sleep(0.05)
        # A request after it, so that a second abort would have been seen.
        self.assertEqual(harness.drive(self.target, [request(f"after-{i}") for i in range(RANKS)]), [])
        aborts = [entry for entry in self.journal() if entry.get("abort", "").startswith("gone")]
        self.assertEqual([entry["known"] for entry in aborts], [True])

    def test_the_node_tells_of_its_ranks(self):
        info = self.stub.GetServerInfo(pb.GetServerInfoRequest(), timeout=10)
        self.assertEqual(dict(info.server_args)["dp_size"], RANKS)
        self.assertEqual(info.sglang_version, harness.sglang_version())
        loads = self.stub.GetLoads(pb.GetLoadsRequest(), timeout=10)
        self.assertEqual(sorted(load.dp_rank for load in loads.loads), list(range(RANKS)))
        self.assertTrue(all(load.max_total_num_tokens == 1 << 20 for load in loads.loads))
        self.assertTrue(self.stub.HealthCheck(pb.HealthCheckRequest(), timeout=10).healthy)

    def test_no_rank_saw_anything_that_it_could_not_read(self):
        harness.drive(self.target, [request("last")])
        self.assertEqual([entry for entry in self.journal() if "died" in entry or "other" in entry], [])


if __name__ == "__main__":
    rankwise = sys.argv.pop(1)
    unittest.main()
