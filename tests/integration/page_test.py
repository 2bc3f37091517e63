"""The operator's page in Debian's Chromium: what it shows changes while a rank is killed.

    page_test.py RANKWISE [SCREENSHOT_FOLDER]       exits 77 where there is no chromium
"""

import json
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request


def main():
    chromium = shutil.which("chromium")
    if chromium is None:
        print("skipped: there is no chromium here")
        return 77
    rankwise = sys.argv[1]
    pictures = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else None
    programs = []
    with tempfile.TemporaryDirectory(prefix="rw-") as folder:
        def browse(*more):
            done = subprocess.run([chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                                   "--window-size=1400,1000", f"--user-data-dir={folder}/chromium",
                                   "--virtual-time-budget=6000", *more, f"http://{admin}/"],
                                  capture_output=True, text=True, timeout=90)
            return done.stdout

        def start(*command):
            program = subprocess.Popen([rankwise, *map(str, command)], stdout=subprocess.PIPE,
                                       stderr=subprocess.DEVNULL, text=True)
            programs.append(program)
            return program

        try:
            node = start("node", "--ranks", 4, "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--handshake",
                         "tcp://127.0.0.1:0", "--state", f"{folder}/state")
            said = {}
            for line in node.stdout:
                if line.strip() == "READY":
                    break
                key, _, value = line.strip().partition("=")
                said[key] = value
                if key == "handshake":
                    engines = [start("engine", "--handshake", value.partition(":")[2], "--first-rank", rank, "--dp-size", 4)
                               for rank in range(4)]
            admin = said["admin"]
            start("replay", "--target", said["grpc"], "--limit", 2000, "--rate", 25, "--quiet")
            time.sleep(9)
            with urllib.request.urlopen(f"http://{admin}/ranks/history", timeout=10) as answer:
                before = json.load(answer)
            kept = min(len(rank["requests"]) for rank in before["ranks"])
            assert [rank["rank"] for rank in before["ranks"]] == [0, 1, 2, 3] and kept >= 8, before
            assert max(rank["requests"][-1] for rank in before["ranks"]) > 0 and before["step_s"] == 1, before
            page = browse("--dump-dom")
            shown = [int(n) for n in re.findall(r"the last (\d+) seconds", page)]
            assert min(shown) >= kept, f"the page shows {min(shown)} s of the {kept} s that were before it was opened"
            for wanted in ("unified/3", "state ready", "dp_controller unified", "in flight", "registered"):
                assert wanted in page, f"{wanted} is not on the page:\n{page[-3000:]}"
            assert "state down" not in page
            if pictures:
                browse(f"--screenshot={pictures}/before.png")
            engines[3].send_signal(signal.SIGKILL)
            time.sleep(1)
            page = browse("--dump-dom")
            for wanted in ("state down", "ready -&gt; down, epoch 1", "its connection was lost"):
                assert wanted in page, f"{wanted} is not on the page:\n{page[-3000:]}"
            if pictures:
                browse(f"--screenshot={pictures}/after.png")
                browse(f"--screenshot={pictures}/dark.png", "--force-dark-mode", "--blink-settings=preferredColorScheme=0")
            print("the page shows ranks, actors, requests and events, and the rank that was killed as down")
            return 0
        finally:
            for program in reversed(programs):
                program.kill()
                program.wait()


if __name__ == "__main__":
    sys.exit(main())
