"""A real Prometheus scrapes a node: every metric that alerts and dashboard ask for exists, and an alert fires.

    prometheus_test.py RANKWISE DEPLOY_FOLDER       exits 77 where there is no prometheus
"""

import json
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def main():
    if shutil.which("prometheus") is None or shutil.which("promtool") is None:
        print("skipped: there is no prometheus here")
        return 77
    rankwise, deploy = sys.argv[1], pathlib.Path(sys.argv[2])
    rules = deploy / "prometheus" / "alerts.yml"
    subprocess.run(["promtool", "check", "rules", str(rules)], check=True)
    programs = []
    with tempfile.TemporaryDirectory(prefix="rw-") as folder:
        def start(*command):
            program = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            programs.append(program)
            return program

        try:
            node = start(rankwise, "node", "--ranks", 2, "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--handshake",
                         "tcp://127.0.0.1:0", "--state", f"{folder}/state")
            said = {}
            for line in node.stdout:
                if line.strip() == "READY":
                    break
                key, _, value = line.strip().partition("=")
                said[key] = value
                if key == "handshake":
                    engines = [start(rankwise, "engine", "--handshake", value.partition(":")[2], "--first-rank", rank,
                                     "--dp-size", 2, "--quiet") for rank in range(2)]
            assert start(rankwise, "replay", "--target", said["grpc"], "--limit", 20, "--rate", 20, "--quiet").wait(60) == 0
            config = pathlib.Path(folder) / "prometheus.yml"
            # As deployed, but with waits of seconds.
            fast = re.sub(r"for: \S+", "for: 1s", rules.read_text())
            (pathlib.Path(folder) / "alerts.yml").write_text(fast)
            text = (deploy / "prometheus" / "prometheus.yml").read_text()
            config.write_text(text.replace("127.0.0.1:30002", said["admin"]).replace("scrape_interval: 5s",
                                                                                     "scrape_interval: 1s\n  evaluation_interval: 1s"))
            subprocess.run(["promtool", "check", "config", str(config)], check=True)
            port = free_port()
            start("prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/tsdb",
                  f"--web.listen-address=127.0.0.1:{port}")

            def api(path, **query):
                url = f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
                with urllib.request.urlopen(url, timeout=5) as answer:
                    return json.load(answer)["data"]

            def eventually(what, holds, limit_s=60):
                until = time.monotonic() + limit_s
                while True:
                    try:
                        if holds():
                            return
                    except OSError:
                        pass
                    assert time.monotonic() < until, what
                    time.sleep(0.3)

            eventually("no scrape", lambda: api("query", query="rankwise_ready")["result"])
            known = set(api("label/__name__/values"))
            asked = set(re.findall(r"rankwise_[a-z_]+", rules.read_text() + (deploy / "grafana" / "rankwise.json").read_text()))
            assert asked <= known, f"nothing exports {sorted(asked - known)}"
            conservation = api("query", query="rankwise_requests_conservation_error")["result"]
            assert [float(series["value"][1]) for series in conservation] == [0.0], conservation
            engines[1].send_signal(signal.SIGKILL)
            eventually("RankwiseRankDown does not fire", lambda: any(
                alert["labels"]["alertname"] == "RankwiseRankDown" and alert["state"] == "firing"
                for alert in api("alerts")["alerts"]))
            print(f"{len(asked)} metrics of alerts and dashboard are there; RankwiseRankDown fired for a killed rank")
            return 0
        finally:
            for program in reversed(programs):
                program.kill()
                program.wait()


if __name__ == "__main__":
    sys.exit(main())
