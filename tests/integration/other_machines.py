"""Prefill ranks, decode ranks and the node on machines of their own: network namespaces on one bridge.

    other_machines.py RANKWISE

The link of one machine with decode ranks is cut and restored while requests stream. Needs root and `ip netns`; exits 77
where they cannot be had.
"""

import datetime
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

TAG = f"rw{os.getpid() % 100000}"
HOSTS = {"node": "10.77.0.1", "prefill": "10.77.0.2", "decode-a": "10.77.0.3", "decode-b": "10.77.0.4"}
PREFILL, DECODE = 2, 4


def sh(*command):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


class Network:
    """A bridge in the node's namespace with a pair of interfaces to each of the others."""

    def __enter__(self):
        try:
            for host in HOSTS:
                sh("ip", "netns", "add", f"{TAG}-{host}")
                sh("ip", "-n", f"{TAG}-{host}", "link", "set", "lo", "up")
            sh("ip", "-n", f"{TAG}-node", "link", "add", "br0", "type", "bridge")
            sh("ip", "-n", f"{TAG}-node", "addr", "add", HOSTS["node"] + "/24", "dev", "br0")
            sh("ip", "-n", f"{TAG}-node", "link", "set", "br0", "up")
            for index, host in enumerate(list(HOSTS)[1:]):
                near = f"v{index}"
                sh("ip", "-n", f"{TAG}-node", "link", "add", near, "type", "veth", "peer", "name", "eth0", "netns",
                   f"{TAG}-{host}")
                sh("ip", "-n", f"{TAG}-node", "link", "set", near, "master", "br0", "up")
                sh("ip", "-n", f"{TAG}-{host}", "addr", "add", HOSTS[host] + "/24", "dev", "eth0")
                sh("ip", "-n", f"{TAG}-{host}", "link", "set", "eth0", "up")
        except (OSError, subprocess.CalledProcessError) as error:
            self.__exit__()
            print(f"skipped: no network namespaces here ({getattr(error, 'stderr', b'') or error})")
            sys.exit(77)
        return self

    def __exit__(self, *_):
        for host in HOSTS:
            subprocess.run(["ip", "netns", "del", f"{TAG}-{host}"], stderr=subprocess.DEVNULL)

    def link(self, host, state):
        sh("ip", "-n", f"{TAG}-{host}", "link", "set", "eth0", state)


def run_on(host, *command, **more):
    return subprocess.Popen(["ip", "netns", "exec", f"{TAG}-{host}", *map(str, command)], text=True, **more)


def get(admin, path):
    # The admin HTTP listens on the node's own loopback.
    done = subprocess.run(["ip", "netns", "exec", f"{TAG}-node", sys.executable, "-c",
                           "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=5).read().decode())",
                           f"http://{admin}{path}"], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def decode_states():
    pool = next(p for p in get("127.0.0.1:30002", "/ranks")["pools"] if p["pool"] == "decode")
    return {rank["rank"]: rank["state"] for rank in pool["ranks"]}


def wait_states(wanted, limit_s):
    until = time.monotonic() + limit_s
    while decode_states() != wanted:
        assert time.monotonic() < until, decode_states()
        time.sleep(0.02)


def main():
    rankwise = sys.argv[1]
    programs = []
    with Network() as network, tempfile.TemporaryDirectory(prefix="rw-") as folder:
        config = pathlib.Path(folder) / "node.toml"
        config.write_text(f"""
[node]
state_dir = "{folder}/state"
history_file = "{folder}/history.txt"
[engine]
allowed_peers = ["10.77.0.0/24"]
[[pool]]
role = "prefill"
handshake = "tcp://0.0.0.0:30010"
advertise = "{HOSTS["node"]}"
ranks = {PREFILL}
bootstrap_host = "{HOSTS["prefill"]}"
bootstrap_port = 8998
[[pool]]
role = "decode"
handshake = "tcp://0.0.0.0:30011"
advertise = "{HOSTS["node"]}"
ranks = {DECODE}
""")
        try:
            node = run_on("node", rankwise, "node", "--config", config, stdout=subprocess.PIPE,
                          stderr=open(f"{folder}/node.log", "w"))
            programs.append(node)

            def engine(host, *more):
                programs.append(run_on(host, rankwise, "engine", "--time-scale", 5, "--quiet", "--prefill-ranks",
                                       PREFILL, *more))

            engine("prefill", "--handshake", f"tcp://{HOSTS['node']}:30010", "--role", "prefill", "--ranks", PREFILL,
                   "--bootstrap-host", HOSTS["prefill"], "--bootstrap-port", 8998)
            for host, first in (("decode-a", 0), ("decode-b", DECODE // 2)):
                engine(host, "--handshake", f"tcp://{HOSTS['node']}:30011", "--role", "decode", "--ranks", DECODE // 2,
                       "--first-rank", first, "--dp-size", DECODE)
            for line in node.stdout:
                if line.strip() == "READY":
                    break
            else:
                raise AssertionError("the node did not get ready:\n" + pathlib.Path(f"{folder}/node.log").read_text())
            replay = run_on("node", rankwise, "replay", "--target", "127.0.0.1:30001", "--limit", 300, "--rate", 40,
                            "--json", f"{folder}/replay.json", "--quiet", "--no-fail", "--silence", 60)
            programs.append(replay)
            time.sleep(2)
            ready = {rank: "ready" for rank in range(DECODE)}
            assert decode_states() == ready, decode_states()
            network.link("decode-b", "down")
            cut = datetime.datetime.now(datetime.timezone.utc)
            wait_states({0: "ready", 1: "ready", 2: "down", 3: "down"}, 2)
            downs = [event for event in get("127.0.0.1:30002", "/events")["events"] if "-> down" in event["change"]]
            noticed = max((datetime.datetime.fromisoformat(event["at"].replace("Z", "+00:00")) - cut).total_seconds()
                          for event in downs)
            assert len(downs) == 2 and noticed <= 0.75, downs
            time.sleep(1)
            network.link("decode-b", "up")
            restored = time.monotonic()
            wait_states(ready, 20)
            back = time.monotonic() - restored
            assert replay.wait(120) == 0
            result = json.loads(pathlib.Path(f"{folder}/replay.json").read_text())
            assert result["requests"]["lost"] == 0 and result["tokens"]["wrong"] == 0, result
            assert set(result["failures"]) <= {"rank_lost", "partner_leg_failed"}, result["failures"]
            assert result["requests"]["completed"] >= 200, result
            epochs = {rank["rank"]: rank["epoch"] for rank in get("127.0.0.1:30002", "/ranks")["pools"][1]["ranks"]}
            assert epochs == {0: 1, 1: 1, 2: 2, 3: 2}, epochs
            node.send_signal(signal.SIGTERM)
            assert node.wait(40) == 0
            checked = subprocess.run([rankwise, "check-history", f"{folder}/history.txt"], capture_output=True, text=True)
            assert checked.returncode == 0, checked.stdout
            print(f"link cut: two ranks down after {noticed:.3f} s, back {back:.3f} s after it was restored; {result['requests']}, {result['failures']}; {checked.stdout.strip()}")
        finally:
            for program in programs:
                if program.poll() is None:
                    program.kill()
                program.wait()


if __name__ == "__main__":
    main()
