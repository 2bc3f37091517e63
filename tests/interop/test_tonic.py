"""tonic, in Rust, against the front over an echoing engine: what tonic_witness/src/main.rs says, scenario by scenario.

    test_tonic.py FRONT_SERVER TARGET_DIR      path of the program front_server; where cargo builds

Exit status 77 (skipped, to ctest) without a cargo that is new enough, which scripts/setup does not install, and when the
crates are not there and no registry can be reached.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

import harness
from front_case import FrontCase, TlsCase

PACKAGE = harness.HERE / "tonic_witness"
BUILD_LIMIT_S = 1500
SCENARIO_LIMIT_S = 90
witness_path = ""


def skip(missing):
    print(f"SKIPPED: test_tonic.py needs {missing}", file=sys.stderr)
    sys.exit(77)


def cargo_path():
    """Where rustup puts it counts too, because ctest may run without a login's PATH."""
    found = shutil.which("cargo") or shutil.which(pathlib.Path.home() / ".cargo/bin/cargo")
    if found is None:
        skip("cargo, which is not installed")
    wanted = re.search(r'^rust-version = "(\d+)\.(\d+)"', (PACKAGE / "Cargo.toml").read_text(), re.MULTILINE)
    told = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=60)
    version = re.match(r"cargo (\d+)\.(\d+)", told.stdout)
    if version is None or tuple(map(int, version.groups())) < tuple(map(int, wanted.groups())):
        skip(f"cargo {'.'.join(wanted.groups())} or later, and {found} is {told.stdout.strip() or 'none that works'}")
    return found


def build(target_dir):
    cargo = cargo_path()
    environment = {**os.environ, "CARGO_NET_RETRY": "1", "CARGO_TARGET_DIR": str(target_dir)}

    def run(*arguments):
        return subprocess.run([cargo, *arguments, "--locked", "--manifest-path", PACKAGE / "Cargo.toml"], env=environment,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=BUILD_LIMIT_S)

    fetched = run("fetch")
    if fetched.returncode != 0:
        print(fetched.stdout, file=sys.stderr)
        # cargo says so only when it could not talk to the registry.
        if "spurious network error" in fetched.stdout:
            skip("crates.io, which cannot be reached")
        sys.exit(1)
    built = run("build", "--offline")
    if built.returncode != 0:
        print(built.stdout, file=sys.stderr)
        sys.exit(1)
    return target_dir / "debug" / "tonic_witness"


class Tonic(FrontCase):
    def assert_goes(self, server, scenario, **options):
        """Runs one scenario; the witness's line of result is its last."""
        command = [witness_path, server.target, scenario]
        command += [f"{key.replace('__', '.').replace('_', '-')}={value}" for key, value in options.items()]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SCENARIO_LIMIT_S)
        print(done.stdout.strip(), file=sys.stderr)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertTrue(done.stdout.startswith(f"{scenario}: ok: "), done.stdout)


class Plain(Tonic):
    def test_two_hundred_streams_deliver_every_token(self):
        server = self.serve("--step-us", "3000")
        self.assert_goes(server, "stream")
        self.assert_figures(server, connections=1, calls_started=200, tokens=4100, calls_now=0, cancels=0)

    def test_gzip_is_refused_by_name_and_the_connection_goes_on_without(self):
        server = self.serve("--step-us", "3000")
        self.assert_goes(server, "gzip")
        self.assert_figures(server, connections=1, calls_refused=1, calls_started=1, calls_now=0)

    def test_a_request_of_eight_megabytes(self):
        server = self.serve("--step-us", "3000")
        self.assert_goes(server, "large")
        self.assert_figures(server, connections=1, calls_started=1, calls_refused=0, calls_now=0)


class Tls(Tonic, TlsCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        certificate, key = cls.client_files
        strange_certificate, strange_key = cls.stranger_files
        cls.shown = {"ca": cls.authority.ca, "client__pem": certificate, "client__key": key,
                     "stranger__pem": strange_certificate, "stranger__key": strange_key}

    def assert_refused(self, server, served):
        """How often tonic tries again is its own affair; no try that should fail has succeeded."""
        good, bad = server.handshakes()
        self.assertEqual(good, served)
        self.assertGreater(bad, 0)

    def test_a_client_that_trusts_the_authority_is_served(self):
        server = self.serve_tls()
        self.assert_goes(server, "tls", ca=self.authority.ca)
        self.assert_goes(server, "tls-large", ca=self.authority.ca)
        self.assert_figures(server, connections=2, tls_handshakes=2, tls_handshakes_failed=0, calls_now=0)

    def test_a_client_of_another_authority_and_one_without_tls_are_not_served(self):
        server = self.serve_tls()
        self.assert_goes(server, "tls-wrong-ca", other_ca=self.stranger.ca)
        self.assert_figures(server, connections=1, tls_handshakes_failed=1)
        self.assert_goes(server, "tls-plaintext")
        self.assert_refused(server, served=0)
        self.assert_figures(server, calls_started=0)

    def test_mutual_tls_serves_a_client_of_the_authority(self):
        server = self.serve_tls("--tls-client-ca", self.authority.ca)
        self.assert_goes(server, "mutual", **self.shown)
        self.assert_figures(server, connections=1, tls_handshakes=1, tls_handshakes_failed=0, calls_now=0)

    def test_mutual_tls_refuses_clients_without_its_certificate_and_goes_on_for_others(self):
        for scenario in ("mutual-missing", "mutual-stranger"):
            server = self.serve_tls("--tls-client-ca", self.authority.ca)
            self.assert_goes(server, scenario, **self.shown)
            self.assert_refused(server, served=1)
            self.assert_figures(server, calls_started=2, calls_now=0)


class Keepalive(Tonic):
    """The client is the same in both: a keepalive every 400 ms, beside a stream on which nothing comes."""

    def test_slow_enough_is_never_ended(self):
        server = self.serve("--step-us", "600000000", "--ping-interval-ms", "200")
        self.assert_goes(server, "keepalive-kept", keepalive_ms=400, hold_ms=6000)
        self.assert_figures(server, connections=1, too_many_pings=0, calls_now=0)

    def test_too_often_is_ended_and_a_new_connection_is_served(self):
        server = self.serve("--step-us", "600000000")
        self.assert_goes(server, "keepalive-ended", keepalive_ms=400)
        self.assert_figures(server, connections=2, too_many_pings=1, calls_now=0)


class Drops(Tonic):
    def test_five_hundred_in_a_row_are_no_flood(self):
        server = self.serve("--step-us", "200000")
        self.assert_goes(server, "drops", count=500)
        self.assert_figures(server, connections=1, resets=500, cancels=500, too_many_resets=0, calls_now=0)

    def test_one_more_than_the_limit_ends_the_connection_and_a_new_one_is_served(self):
        server = self.serve("--step-us", "200000", "--resets-burst", "500", "--resets-per-s", "0")
        self.assert_goes(server, "drops-ended", count=500)
        self.assert_figures(server, connections=2, cancels=502, too_many_resets=1, calls_now=0)


if __name__ == "__main__":
    FrontCase.server_path = sys.argv.pop(1)
    witness_path = build(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main()
