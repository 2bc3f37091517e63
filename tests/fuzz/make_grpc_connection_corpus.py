#!/usr/bin/env python3
"""Writes the seeds of fuzz_grpc_connection: make_grpc_connection_corpus.py FOLDER

A seed is a byte of flags (1 = preface and SETTINGS are put before it, 2 = the client never reads, 4 = drain at the end), a byte
with the size of the pieces (0 = one), and the client's bytes.
"""

import pathlib
import sys


def frame(kind, flags, stream, payload=b""):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def block(*fields):
    out = b""
    for name, value in fields:
        out += b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
    return out


def request(path, *more):
    # :method POST and :scheme http from HPACK's static table
    return b"\x83\x86" + block((":path", path), ("content-type", "application/grpc"), ("te", "trailers"), *more)


def message(body, flag=0):
    return bytes([flag]) + len(body).to_bytes(4, "big") + body


def call(stream, path, body, *more):
    return frame(1, 4, stream, request(path, *more)) + frame(0, 1, stream, message(body))


GREETED, SILENT, DRAINED = 1, 2, 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
seeds = {
    "unary": (GREETED, 0, call(1, "/e", b"hello") + call(3, "/e", b"")),
    "unary_bytewise": (GREETED, 1, call(1, "/e", b"hello", ("grpc-timeout", "100m"))),
    "own_preface": (0, 7, PREFACE + frame(4, 0, 0, b"\0\4\0\0\0\x0a") + call(1, "/s", b"x")),
    "stream_and_windows": (GREETED, 0, call(1, "/s", b"x") + frame(8, 0, 1, b"\0\0\1\0") + frame(8, 0, 0, b"\0\1\0\0")),
    "stream_without_window": (GREETED | SILENT, 0, frame(4, 0, 0, b"\0\4\0\0\0\0") + call(1, "/s", b"x") + frame(3, 0, 1, b"\0\0\0\x08")),
    "refused_stream": (GREETED, 0, call(1, "/s", b"no")),
    "chat": (GREETED | DRAINED, 0, frame(1, 4, 1, request("/b")) + frame(0, 0, 1, message(b"one")) + frame(0, 0, 1, message(b"four"))
             + frame(1, 5, 1, block(("a", "b")))),
    "bad_requests": (GREETED, 0, call(1, "/none", b"x") + call(3, "/e", b"x", ("grpc-timeout", "soon")) + frame(1, 5, 5, request("/e"))
                     + frame(1, 4, 7, request("/e", ("grpc-encoding", "gzip"))) + frame(0, 1, 7, message(b"x", 1))
                     + frame(1, 4, 9, request("/e")) + frame(0, 1, 9, message(b"x", 9))
                     + frame(1, 4, 11, request("/e")) + frame(0, 1, 11, b"\0\0\xff\xff\xff")),
    "half_message": (GREETED, 0, frame(1, 4, 1, request("/e")) + frame(0, 0, 1, message(b"abcdef")[:8])),
    "control": (GREETED, 0, frame(6, 0, 0, b"12345678") + frame(4, 1, 0) + frame(2, 0, 1, b"\0\0\0\0\1") + frame(0xbb, 9, 5, b"?")
                + frame(7, 0, 0, b"\0" * 8)),
    "continuation": (GREETED, 0, frame(1, 1, 1, request("/e")[:9]) + frame(9, 4, 1, request("/e")[9:])),
    "padded": (GREETED, 0, frame(1, 12, 1, b"\2" + request("/e") + b"\0\0") + frame(0, 9, 1, b"\3" + message(b"ok") + b"\0\0\0")),
    "rapid_reset": (GREETED, 0, b"".join(frame(1, 4, 2 * i + 1, request("/b")) + frame(3, 0, 2 * i + 1, b"\0\0\0\x08") for i in range(12))),
    "pings": (GREETED, 0, frame(6, 0, 0, b"12345678") * 5),
    "empty_data": (GREETED, 0, frame(1, 4, 1, request("/e")) + frame(0, 0, 1) * 60),
    "http1": (0, 0, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
}

folder = pathlib.Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
for name, (flags, piece, data) in seeds.items():
    (folder / f"{name}.bin").write_bytes(bytes([flags, piece]) + data)
