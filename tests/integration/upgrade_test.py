"""deploy/upgrade replaces a node under its running ranks; the pause is printed.

    upgrade_test.py RANKWISE UPGRADE
"""

import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

RANKS = 4


class Lines:
    def __init__(self, program):
        self.said = []
        self.thread = threading.Thread(target=lambda: [self.said.append(line.strip()) for line in program.stdout], daemon=True)
        self.thread.start()

    def wait(self, prefix, limit_s=60):
        until = time.monotonic() + limit_s
        while True:
            for line in self.said:
                if line.startswith(prefix):
                    return line[len(prefix):]
            assert time.monotonic() < until, f"{prefix} was not said: {self.said}"
            time.sleep(0.01)


def main():
    rankwise, upgrade = sys.argv[1:3]
    programs = []
    with tempfile.TemporaryDirectory(prefix="rw-") as folder:
        def start(*command):
            program = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            programs.append(program)
            return program, Lines(program)

        try:
            node_command = [rankwise, "node", "--ranks", RANKS, "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0",
                            "--handshake", "tcp://127.0.0.1:0", "--state", f"{folder}/state", "--history",
                            f"{folder}/history.txt"]
            node, said = start(*node_command)
            handshake = said.wait("handshake=unified:")
            start(rankwise, "engine", "--handshake", handshake, "--ranks", RANKS, "--quiet", "--time-scale", 5)
            said.wait("READY")
            trace = pathlib.Path(folder) / "trace.csv"
            trace.write_text("arrival_s,input_tokens,output_tokens\n" + "".join(f"{i / 40},100,60\n" for i in range(200)))
            replay, _ = start(rankwise, "replay", "--target", said.wait("grpc="), "--trace", trace, "--json",
                              f"{folder}/replay.json", "--quiet", "--no-fail", "--silence", "20")
            time.sleep(2)
            new, told = start(upgrade, node.pid, *node_command)
            pause_ms = int(told.wait("pause_ms="))
            assert node.wait(5) == 0, "the old node did not end well"
            assert pause_ms < 2000, pause_ms
            replay.wait(60)
            result = json.loads(pathlib.Path(f"{folder}/replay.json").read_text())
            # What was accepted by the old node ended; what came while it drained was turned away.
            assert result["requests"]["lost"] == 0 and result["tokens"]["wrong"] == 0, result
            assert set(result["failures"]) <= {"grpc_unavailable", "shutting_down", "grpc_cancelled"}, result["failures"]
            assert result["requests"]["completed"] >= 60, result
            with urllib.request.urlopen(f"http://{told.wait('admin=')}/ranks", timeout=5) as answer:
                ranks = json.load(answer)["pools"][0]["ranks"]
            assert [(rank["state"], rank["epoch"]) for rank in ranks] == [("ready", 2)] * RANKS, ranks
            again, _ = start(rankwise, "replay", "--target", told.wait("grpc="), "--limit", 40, "--rate", 40, "--quiet")
            assert again.wait(60) == 0
            new.send_signal(signal.SIGTERM)
            assert new.wait(40) == 0
            checked = subprocess.run([rankwise, "check-history", f"{folder}/history.txt"], capture_output=True, text=True)
            assert checked.returncode == 0, checked.stdout
            print(f"drained in {told.wait('drained_ms=')} ms, {RANKS} ranks ready {pause_ms} ms later; {result['requests']}")
        finally:
            for program in reversed(programs):
                if program.poll() is None:
                    program.terminate()
                    try:
                        program.wait(5)
                    except subprocess.TimeoutExpired:
                        program.kill()


if __name__ == "__main__":
    main()
