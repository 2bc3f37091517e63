"""grpcio, in Python, against the front over an echoing engine.

    test_front.py FRONT_SERVER      path of the program front_server
"""

import asyncio
import signal
import sys
import unittest

import grpc
import harness
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from harness import pb, request, rpc
from smg_grpc_proto.generated import common_pb2

SERVICE = "sglang.grpc.scheduler.SglangScheduler"
server_path = ""


class Front(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = harness.FrontServer(server_path, "--step-us", "3000")
        cls.target = cls.server.target
        cls.channel = grpc.insecure_channel(cls.target, options=[("grpc.max_send_message_length", -1)])
        cls.stub = rpc.SglangSchedulerStub(cls.channel)

    @classmethod
    def tearDownClass(cls):
        cls.channel.close()
        cls.server.stop()

    def error_of(self, call):
        with self.assertRaises(grpc.RpcError) as raised:
            list(call)
        return raised.exception.code(), raised.exception.details()

    def test_a_thousand_streams_deliver_every_token(self):
        requests = [request(f"many-{i}", tokens=1 + i % 40, prompt=range(1 + i % 50)) for i in range(1000)]
        self.assertEqual(harness.drive(self.target, requests, concurrency=250), [])

    def test_samples_and_answers_in_one_piece(self):
        requests = [request(f"s-{i}", samples=1 + i % 4, stream=i % 3 != 0, tokens=12) for i in range(60)]
        self.assertEqual(harness.drive(self.target, requests), [])

    def test_a_large_prompt(self):
        self.assertEqual(harness.drive(self.target, [request("large", prompt=[100_000] * 900_000)]), [])

    def test_bad_requests_name_their_field(self):
        invalid = grpc.StatusCode.INVALID_ARGUMENT
        for wrong, text in (
                (request(""), "request_id: is required"),
                (request("r", prompt=[]), "tokenized.input_ids: empty"),
                (request("r", data_parallel_rank=9), "data_parallel_rank: 9 is not one of the 8 ranks"),
                (request("r", tokens=2**32 - 1), "sampling_params.max_new_tokens: 4294967295"),
        ):
            code, details = self.error_of(self.stub.Generate(wrong, timeout=10))
            self.assertEqual(code, invalid)
            self.assertTrue(details.startswith(text), details)
        nan = request("r")
        nan.sampling_params.temperature = float("nan")
        self.assertEqual(self.error_of(self.stub.Generate(nan, timeout=10)),
                         (invalid, "sampling_params.temperature: nan is not a finite number of at least 0"))
        raw = self.channel.unary_stream(f"/{SERVICE}/Generate")
        self.assertEqual(self.error_of(raw(b"\x0a\x02\xff\xfe", timeout=10)), (invalid, "request_id: is not UTF-8"))
        self.assertEqual(self.error_of(self.stub.Generate(request("r", return_logprob=True), timeout=10))[0],
                         grpc.StatusCode.UNIMPLEMENTED)

    def test_text_outside_of_ascii_survives(self):
        rid = "größe-日本-😀"
        self.assertEqual(harness.drive(self.target, [request(rid)]), [])
        first = self.stub.Generate(request(rid, tokens=10_000), timeout=20)
        next(first)
        code, details = self.error_of(self.stub.Generate(request(rid), timeout=10))
        self.assertEqual(code, grpc.StatusCode.ALREADY_EXISTS)
        self.assertIn(rid, details)
        first.cancel()

    def test_cancel_deadline_and_abort_each_end_the_stream_once(self):
        before = self.server.figures()["cancels"]
        cancelled = self.stub.Generate(request("c", tokens=100_000), timeout=30)
        next(cancelled)
        cancelled.cancel()
        self.assertEqual(self.error_of(self.stub.Generate(request("d", tokens=100_000), timeout=0.2))[0],
                         grpc.StatusCode.DEADLINE_EXCEEDED)
        aborted = self.stub.Generate(request("a", tokens=100_000), timeout=30)
        next(aborted)
        for _ in range(2):
            self.assertTrue(self.stub.Abort(pb.AbortRequest(request_id="a", reason="test"), timeout=10).success)
        self.assertEqual(self.error_of(aborted)[0], grpc.StatusCode.CANCELLED)
        self.assertTrue(self.stub.Abort(pb.AbortRequest(request_id="nobody"), timeout=10).success)
        wanted = {"cancels": before + 2, "calls_now": 0}
        self.assertEqual(self.server.settled(**wanted), wanted)

    def test_the_unary_calls(self):
        self.assertTrue(self.stub.HealthCheck(pb.HealthCheckRequest(), timeout=10).healthy)
        self.assertTrue(self.stub.GetModelInfo(pb.GetModelInfoRequest(), timeout=10).is_generation)
        info = self.stub.GetServerInfo(pb.GetServerInfoRequest(), timeout=10)
        self.assertEqual(dict(info.server_args)["dp_size"], 8)
        self.assertEqual(info.sglang_version, "0.5.23")
        loads = self.stub.GetLoads(pb.GetLoadsRequest(include=["core", "disagg", "queues", "memory"]), timeout=10)
        self.assertEqual([load.dp_rank for load in loads.loads], list(range(8)))
        one = self.stub.GetLoads(pb.GetLoadsRequest(dp_rank=3), timeout=10)
        self.assertEqual([load.num_used_tokens for load in one.loads], [3000])
        for call, message in (("FlushCache", common_pb2.FlushCacheRequest()), ("Embed", pb.EmbedRequest()),
                              ("ListLoadedLoRAAdapters", pb.ListLoadedLoRAAdaptersRequest())):
            with self.assertRaises(grpc.RpcError) as raised:
                getattr(self.stub, call)(message, timeout=10)
            self.assertEqual(raised.exception.code(), grpc.StatusCode.UNIMPLEMENTED)

    def test_health_and_reflection(self):
        health = health_pb2_grpc.HealthStub(self.channel)
        serving = health_pb2.HealthCheckResponse.SERVING
        self.assertEqual(health.Check(health_pb2.HealthCheckRequest(service=SERVICE), timeout=10).status, serving)
        watch = health.Watch(health_pb2.HealthCheckRequest(), timeout=10)
        self.assertEqual(next(watch).status, serving)
        watch.cancel()
        database = ProtoReflectionDescriptorDatabase(self.channel)
        self.assertIn(SERVICE, database.get_services())
        self.assertTrue(database.FindFileContainingSymbol(SERVICE).name)


class Drain(unittest.TestCase):
    def test_open_streams_end_and_new_ones_are_refused(self):
        with harness.FrontServer(server_path, "--step-us", "3000", "--drain", "20") as server:
            target = server.target

            async def run():
                async with grpc.aio.insecure_channel(target) as channel:
                    stub = rpc.SglangSchedulerStub(channel)
                    answers = [harness.Answer(request(f"r{i}", tokens=200)) for i in range(20)]
                    calls = [aiter(stub.Generate(answer.request, timeout=30)) for answer in answers]
                    for answer, call in zip(answers, calls):
                        answer.take(await anext(call))
                    server.signal(signal.SIGTERM)
                    await asyncio.sleep(0.1)
                    with self.assertRaises(grpc.aio.AioRpcError) as raised:
                        async for _ in stub.Generate(request("late"), timeout=5):
                            pass
                    self.assertEqual(raised.exception.code(), grpc.StatusCode.UNAVAILABLE)
                    for answer, call in zip(answers, calls):
                        async for response in call:
                            answer.take(response)
                    return [fault for answer in answers for fault in answer.check()]

            self.assertEqual(harness.run(run()), [])
            self.assertEqual(server.value("drained", 20), "clean")
            self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    server_path = sys.argv.pop(1)
    unittest.main()
