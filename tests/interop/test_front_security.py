"""grpcio, in Python, against what the front does about compression, TLS, keepalive, cancels in a row and large messages.

    test_front_security.py FRONT_SERVER      path of the program front_server
"""

import sys
import unittest

import grpc
import harness
from front_case import FrontCase, TlsCase
from harness import pb, request, rpc

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
LIMIT_S = 20


def open_channel(target, credentials=None, **more):
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
    options += [(key.replace("__", "."), value) for key, value in more.pop("options", {}).items()]
    if credentials is None:
        return grpc.insecure_channel(target, options=options, **more)
    return grpc.secure_channel(target, credentials, options=options, **more)


def endless(stub, rid):
    """A stream that goes on until it is cancelled, after its first token."""
    call = stub.Generate(request(rid, tokens=100_000), timeout=60)
    next(call)
    return call


class SecurityCase(FrontCase):
    def channel(self, server, credentials=None, **more):
        out = open_channel(server.target, credentials, **more)
        self.addCleanup(out.close)
        return out

    def error_of(self, call):
        with self.assertRaises(grpc.RpcError) as raised:
            list(call)
        return raised.exception.code(), raised.exception.details()

    def assert_served(self, channel, rid, **more):
        answer = harness.Answer(request(rid, **more))
        for response in rpc.SglangSchedulerStub(channel).Generate(answer.request, timeout=LIMIT_S):
            answer.take(response)
        self.assertEqual(answer.check(), [])


class Compression(SecurityCase):
    def test_a_compressed_request_is_refused_by_name_and_the_channel_goes_on_without(self):
        server = self.serve("--step-us", "3000")
        channel = self.channel(server)
        stub = rpc.SglangSchedulerStub(channel)
        for name, compression in (("gzip", grpc.Compression.Gzip), ("deflate", grpc.Compression.Deflate)):
            packed = request("packed", prompt=[7] * 5000)
            self.assertEqual(self.error_of(stub.Generate(packed, timeout=LIMIT_S, compression=compression)),
                             (grpc.StatusCode.UNIMPLEMENTED,
                              f"compressed request messages are not supported: grpc-encoding is {name}"))
            self.assert_served(channel, "unpacked", prompt=[7] * 5000)
        self.assert_figures(server, connections=1, calls_refused=2, calls_started=2, calls_now=0)


class Tls(SecurityCase, TlsCase):
    def trusting(self, authority, shown=(None, None)):
        certificate, key = (path and path.read_bytes() for path in shown)
        return grpc.ssl_channel_credentials(authority.ca.read_bytes(), key, certificate)

    def assert_refused(self, server, credentials):
        """Not served; how often grpcio tries again is its own affair, but no try has succeeded."""
        good, bad = server.handshakes()
        calls = server.figures()["calls_started"]
        channel = self.channel(server, credentials)
        code, _ = self.error_of(rpc.SglangSchedulerStub(channel).Generate(request("refused"), timeout=LIMIT_S))
        self.assertEqual(code, UNAVAILABLE)
        channel.close()
        good_now, bad_now = server.handshakes()
        self.assertEqual(good_now, good)
        self.assertGreater(bad_now, bad)
        self.assertEqual(server.figures()["calls_started"], calls)

    def test_a_client_that_trusts_the_authority_is_served(self):
        server = self.serve_tls()
        self.assert_served(self.channel(server, self.trusting(self.authority)), "tls", samples=3, tokens=40)
        self.assert_figures(server, connections=1, tls_handshakes=1, tls_handshakes_failed=0)

    def test_a_client_of_another_authority_and_one_without_tls_are_not_served(self):
        server = self.serve_tls()
        witness = self.channel(server, self.trusting(self.authority))
        running = endless(rpc.SglangSchedulerStub(witness), "running")
        self.assert_refused(server, self.trusting(self.stranger))
        self.assert_refused(server, None)
        next(running)
        running.cancel()
        self.assert_served(witness, "after")
        self.assert_figures(server, tls_handshakes=1, calls_now=0)

    def test_mutual_tls_serves_only_clients_of_its_authority(self):
        server = self.serve_tls("--tls-client-ca", self.authority.ca)
        witness = self.channel(server, self.trusting(self.authority, self.client_files))
        self.assert_served(witness, "right")
        running = endless(rpc.SglangSchedulerStub(witness), "running")
        self.assert_refused(server, self.trusting(self.authority))
        self.assert_refused(server, self.trusting(self.authority, self.stranger_files))
        next(running)
        running.cancel()
        self.assert_served(witness, "after")
        self.assert_figures(server, tls_handshakes=1, calls_now=0)

    def test_a_request_of_eight_megabytes(self):
        server = self.serve_tls()
        large = request("large", prompt=range(1 << 28, (1 << 28) + 900_000))
        large.tokenized.original_text = "x" * 4_000_000
        self.assertEqual(large.ByteSize() // 1000, 8500)
        answer = harness.Answer(large)
        stub = rpc.SglangSchedulerStub(self.channel(server, self.trusting(self.authority)))
        for response in stub.Generate(large, timeout=LIMIT_S):
            answer.take(response)
        self.assertEqual(answer.check(), [])


class Keepalive(SecurityCase):
    """The client is the same in both: a keepalive every 400 ms, beside a stream on which nothing comes."""

    def keeping_alive(self, server):
        return self.channel(server, options={
            "grpc__keepalive_time_ms": 400, "grpc__keepalive_timeout_ms": 20_000,
            "grpc__keepalive_permit_without_calls": 1, "grpc__http2__max_pings_without_data": 0})

    def test_slow_enough_is_never_ended(self):
        server = self.serve("--step-us", "6000000", "--ping-interval-ms", "200")
        # Its only token comes after 6 s, and 14 keepalives.
        self.assert_served(self.keeping_alive(server), "quiet", tokens=1)
        self.assert_figures(server, connections=1, too_many_pings=0, calls_now=0)

    def test_too_often_is_ended_by_name_and_others_go_on(self):
        server = self.serve("--step-us", "6000000")
        other = rpc.SglangSchedulerStub(self.channel(server)).Generate(request("other", tokens=1), timeout=LIMIT_S)
        channel = self.keeping_alive(server)
        code, details = self.error_of(rpc.SglangSchedulerStub(channel).Generate(request("hasty"), timeout=LIMIT_S))
        self.assertEqual(code, UNAVAILABLE)
        self.assertIn("too_many_pings", details)
        self.assertTrue(rpc.SglangSchedulerStub(channel).HealthCheck(pb.HealthCheckRequest(), timeout=LIMIT_S).healthy)
        self.assert_figures(server, connections=3, too_many_pings=1, calls_now=1)
        self.assertEqual([response.WhichOneof("response") for response in other], ["chunk", "complete"])


class Cancels(SecurityCase):
    def cancel(self, stub, name, count):
        for call in [endless(stub, f"{name}-{i}") for i in range(count)]:
            call.cancel()

    def test_five_hundred_in_a_row_are_no_flood(self):
        server = self.serve("--step-us", "3000")
        channel = self.channel(server)
        self.cancel(rpc.SglangSchedulerStub(channel), "c", 500)
        self.assert_served(channel, "after")
        self.assert_figures(server, connections=1, resets=500, cancels=500, too_many_resets=0, calls_now=0)

    def test_one_more_than_the_limit_ends_the_connection_by_name_and_a_new_one_works(self):
        server = self.serve("--step-us", "3000", "--resets-burst", "500", "--resets-per-s", "0")
        channel = self.channel(server)
        stub = rpc.SglangSchedulerStub(channel)
        running = endless(stub, "running")
        self.cancel(stub, "c", 500)
        self.assert_served(channel, "at-the-limit")
        self.assert_figures(server, connections=1, resets=500, too_many_resets=0, calls_now=1)
        self.cancel(stub, "d", 1)
        code, details = self.error_of(running)
        self.assertEqual(code, UNAVAILABLE)
        self.assertIn("too_many_resets", details)
        self.assert_served(channel, "anew")
        self.assert_figures(server, connections=2, cancels=502, too_many_resets=1, calls_now=0)


class Sizes(SecurityCase):
    def test_a_request_of_just_the_limit_is_served_and_one_byte_more_is_told_both_numbers(self):
        server = self.serve("--step-us", "3000", "--message-bytes-max", "8000000")
        channel = self.channel(server)
        message = request("limit", prompt=[1 << 28] * 900_000)
        message.tokenized.original_text = "x" * 3_000_000
        message.tokenized.original_text += "x" * (8_000_000 - message.ByteSize())
        self.assertEqual(message.ByteSize(), 8_000_000)
        answer = harness.Answer(message)
        stub = rpc.SglangSchedulerStub(channel)
        for response in stub.Generate(message, timeout=LIMIT_S):
            answer.take(response)
        self.assertEqual(answer.check(), [])
        message.tokenized.original_text += "x"
        self.assertEqual(self.error_of(stub.Generate(message, timeout=LIMIT_S)),
                         (grpc.StatusCode.RESOURCE_EXHAUSTED, "request message: 8000001 bytes, the limit is 8000000"))
        self.assert_served(channel, "after")
        self.assert_figures(server, connections=1, calls_refused=1, calls_now=0)


if __name__ == "__main__":
    FrontCase.server_path = sys.argv.pop(1)
    unittest.main()
