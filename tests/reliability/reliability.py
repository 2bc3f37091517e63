"""Every promise about faults, measured: one row each of what, measured, on how much, promise, holds.

    reliability.py RANKWISE [--long] [--again] [--json FILE] [--only NAME[,NAME...]] [--seed N]

Runs nodes and simulated ranks as real processes. The short form takes about five minutes; the long one repeats more often
and for longer. The JSON is an array as of `rankwise bench`, with the `sample` and `sample_unit` of each row. Exit code 1
when a promise does not hold.
"""

import argparse
import asyncio
import datetime
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "interop"))

import harness  # noqa: E402
from harness import Program, request  # noqa: E402

options = None
rankwise = ""
rows = []


def row(name, value, unit, sample, target, holds, note=""):
    """`sample` is what the value was measured on: a number and what was counted, e.g. (15, "kills")."""
    number, counted = sample
    rows.append({"name": name, "value": value, "unit": unit, "sample": number, "sample_unit": counted, "reference": None,
                 "ratio": None, "target": target, "holds": holds})
    shown = f"{value:.4g}" if isinstance(value, float) else str(value)
    measured_on = f"{number} {counted}"
    print(f"{name:<44} {shown:>10} {unit:<11} {measured_on:<17} {target:<22} {'yes' if holds else 'NO'}  {note}", flush=True)


def requests_of(result):
    return result["requests"]["accepted"] + result["requests"]["refused"], "requests"


def tokens_of(result):
    return result["tokens"]["delivered"], "tokens"


def rounds(short, long):
    return long if options.long else short


def percentile(samples, percent):
    ordered = sorted(samples)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def now():
    return datetime.datetime.now(datetime.timezone.utc)


def at(event):
    return datetime.datetime.fromisoformat(event["at"].replace("Z", "+00:00"))


class Cluster:
    """A node with one pool and one process for each rank."""

    def __init__(self, ranks, engine=(), node=(), config=""):
        self.ranks, self.engine, self.node_flags = ranks, list(map(str, engine)), list(map(str, node))
        self.config = config
        self.engines = {}

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="rw-")
        self.folder = pathlib.Path(self._folder.name)
        self.start_node()
        for rank in range(self.ranks):
            self.start_engine(rank)
        self.node.wait_for(lambda line: line == "READY")
        return self

    def start_node(self):
        (self.folder / "node.toml").write_text(f"""
[node]
grpc = "127.0.0.1:0"
admin = "127.0.0.1:0"
state_dir = "{self.folder}/state"
history_file = "{self.folder}/history.txt"
fault_injection = true
{self.config if self.config.strip().startswith('[') else ''}
[[pool]]
handshake = "tcp://127.0.0.1:0"
ranks = {self.ranks}
{'' if self.config.strip().startswith('[') else self.config}
""")
        self.node = Program(rankwise, "node", "--config", self.folder / "node.toml", *self.node_flags)
        self.grpc = self.says("grpc=")
        self.admin = self.says("admin=")
        self.handshake = self.says("handshake=unified:")

    def says(self, prefix):
        return self.node.wait_for(lambda line: line.startswith(prefix))[len(prefix):]

    def start_engine(self, rank, *more):
        self.engines[rank] = Program(rankwise, "engine", "--handshake", self.handshake, "--first-rank", rank,
                                     "--dp-size", self.ranks, "--quiet", "--die-with-parent", *self.engine, *more)

    def get(self, path):
        with urllib.request.urlopen(f"http://{self.admin}{path}", timeout=10) as answer:
            return json.load(answer)

    def post(self, path):
        try:
            with urllib.request.urlopen(urllib.request.Request(f"http://{self.admin}{path}", method="POST"),
                                        timeout=10) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code

    def events(self, after=0):
        return self.get(f"/events?after={after}")["events"]

    def last_event(self):
        return max([event["number"] for event in self.events()], default=0)

    def wait_event(self, rank, change, after, limit_s=30):
        until = time.monotonic() + limit_s
        while True:
            for event in self.events(after):
                if event["subject"] == f"unified/{rank}" and change in event["change"]:
                    return event
            assert time.monotonic() < until, f"rank {rank}: no \"{change}\" in {self.events(after)}"
            time.sleep(0.02)

    def replay(self, trace, **flags):
        file = self.folder / "trace.csv"
        file.write_text("arrival_s,input_tokens,output_tokens\n" + "".join(f"{a:.3f},{i},{o}\n" for a, i, o in trace))
        command = [rankwise, "replay", "--target", self.grpc, "--trace", file, "--json", self.folder / "replay.json",
                   "--quiet", "--no-fail", "--silence", "60"]
        return subprocess.Popen(list(map(str, command)))

    def result(self, replay, limit_s=300):
        assert replay.wait(limit_s) == 0
        return json.loads((self.folder / "replay.json").read_text())

    def check_history(self):
        status = self.node.stop()
        done = subprocess.run([rankwise, "check-history", str(self.folder / "history.txt")], capture_output=True, text=True)
        return status == 0 and done.returncode == 0, done.stdout.strip().splitlines()[-1:]

    def __exit__(self, *_):
        for program in self.engines.values():
            if program.process.poll() is None:
                program.process.kill()
        self.node.stop()
        self._folder.cleanup()


def steady(seconds, rate, prompt=200, tokens=60):
    return [(i / rate, prompt, tokens) for i in range(int(seconds * rate))]


def killed_ranks():
    """SIGKILL of one rank after the other while requests stream."""
    count = rounds(15, 100)
    with Cluster(8) as c:
        quiet = c.result(c.replay(steady(8, 20)))
        replay = c.replay(steady(count * 1.5 + 3, 20))
        time.sleep(2)
        took = []
        for i in range(count):
            rank = i % 8
            mark, begun = c.last_event(), now()
            c.engines[rank].signal(signal.SIGKILL)
            took.append((at(c.wait_event(rank, "-> down", mark)) - begun).total_seconds() * 1e3)
            c.start_engine(rank)
            c.wait_event(rank, "-> ready", mark)
            time.sleep(0.5)
        result = c.result(replay)
        good, last = c.check_history()
    row("killed_rank_out_p99", percentile(took, 99), "ms", (count, "kills"), "value <= 250", percentile(took, 99) <= 250,
        "of fewer than 100 the worst" if count < 100 else "")
    row("killed_rank_requests_lost", result["requests"]["lost"] + result["tokens"]["wrong"], "requests",
        requests_of(result), "value <= 0",
        result["requests"]["lost"] + result["tokens"]["wrong"] == 0 and set(result["failures"]) <= {"rank_lost"},
        f"{result['requests']['completed']} completed, {result['failures']}")
    ratio = result["inter_token_s"]["p99"] / quiet["inter_token_s"]["p99"]
    row("killed_rank_gap_p99_of_others", ratio, "x quiet", tokens_of(result), "value <= 1.2", ratio <= 1.2,
        f"quiet: {quiet['tokens']['delivered']} tokens")
    row("killed_rank_history", 0 if good else 1, "violations",
        (requests_of(quiet)[0] + requests_of(result)[0], "requests"), "value <= 0", good, " ".join(last))


def frozen_ranks():
    """SIGSTOP, later SIGCONT."""
    count = rounds(10, 100)
    with Cluster(4) as c:
        replay = c.replay(steady(count * 2 + 3, 20))
        time.sleep(2)
        took = []
        for i in range(count):
            rank = i % 4
            mark, begun = c.last_event(), now()
            c.engines[rank].signal(signal.SIGSTOP)
            took.append((at(c.wait_event(rank, "-> down", mark)) - begun).total_seconds() * 1e3)
            c.engines[rank].signal(signal.SIGCONT)
            c.wait_event(rank, "-> ready", mark)
            time.sleep(0.3)
        result = c.result(replay)
        good, last = c.check_history()
    row("frozen_rank_down_max", max(took), "ms", (count, "freezes"), "value <= 750", max(took) <= 750)
    row("frozen_rank_requests_lost", result["requests"]["lost"] + result["tokens"]["wrong"], "requests",
        requests_of(result), "value <= 0",
        result["requests"]["lost"] + result["tokens"]["wrong"] == 0 and set(result["failures"]) <= {"rank_lost"},
        f"{result['requests']['completed']} completed, {result['failures']}")
    row("frozen_rank_tokens_of_old_epochs", 0 if good else 1, "violations", requests_of(result), "value <= 0", good,
        " ".join(last))


def long_prefill():
    """One prompt whose prefill takes 10 s, with both cores busy."""
    count = rounds(2, 300)
    with Cluster(2, engine=["--prefill-tokens-per-s", 1200, "--chunk", 100_000]) as c:
        burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 2)]
        try:
            result = c.result(c.replay([(i * 11.0, 12_000, 5) for i in range(count)]), 11 * count + 120)
        finally:
            for burner in burners:
                burner.kill()
                burner.wait()
        alarms = [event for event in c.events() if "suspect" in event["change"] or "down" in event["change"]]
    row("long_prefill_false_alarms", len(alarms), "alarms", (count, "prefills"), "value <= 0",
        not alarms and result["requests"]["completed"] == count, "of 10 s each")


def hanging_engine():
    """The engine stops working, its link lives on."""
    config = "[engine]\nsuspect_after_ms = 1000\nprefill_tokens_per_s_min = 1000.0"
    with Cluster(2, config=config) as c:
        c.engines[1].stop()
        mark = c.last_event()
        c.start_engine(1, "--fault", "freeze-after=3")
        c.wait_event(1, "-> ready", mark)
        time.sleep(2.5)
        mark, begun = c.last_event(), now()
        result = c.result(c.replay(steady(6, 10, tokens=20)))
        suspected = at(c.wait_event(1, "-> suspect", mark))
        down = at(c.wait_event(1, "-> down", mark))
        del begun
    explained = 1.0 + 200 * 20 / 1000  # the floor, and the prompts that it may have been given
    took = (down - suspected).total_seconds()
    row("hanging_engine_down_after_suspected", took, "s", (1, "hang"), f"value <= {3 * explained:.0f}", took <= 3 * explained)
    row("hanging_engine_requests_lost", result["requests"]["lost"] + result["tokens"]["wrong"], "requests",
        requests_of(result), "value <= 0",
        result["requests"]["lost"] + result["tokens"]["wrong"] == 0, f"{result['requests']}")


def failing_rank():
    """Every request that it gets ends at once with an error."""
    with Cluster(4) as c:
        c.engines[3].stop()
        mark = c.last_event()
        c.start_engine(3, "--fault", "fail-all")
        c.wait_event(3, "-> ready", mark)
        time.sleep(2.5)
        result = c.result(c.replay(steady(15, 20, tokens=30)))
    failed = result["requests"]["failed"]
    row("failing_rank_share", failed / 300, "of all", requests_of(result), "value <= 0.1", failed / 300 <= 0.1,
        f"{failed} of 300 failed, an even share would be 75")


def killed_node():
    """kill -9 of the node under load."""
    count = rounds(5, 20)
    took = []
    with Cluster(8) as c:
        for _ in range(count):
            replay = c.replay(steady(30, 40))
            time.sleep(1.5)
            c.node.signal(signal.SIGKILL)
            c.node.process.wait()
            replay.kill()
            replay.wait()
            begun = time.monotonic()
            c.start_node()
            c.node.wait_for(lambda line: line == "READY")
            took.append(time.monotonic() - begun)
        result = c.result(c.replay(steady(5, 20)))
        good, last = c.check_history()
    row("killed_node_ready_again_max", max(took), "s", (count, "kills"), "value <= 2", max(took) <= 2, "8 ranks")
    row("killed_node_then_completed", result["requests"]["completed"], "completed", requests_of(result), "value >= 100",
        result["requests"]["completed"] == 100 and result["tokens"]["wrong"] == 0)
    row("killed_node_history_after", 0 if good else 1, "violations", requests_of(result), "value <= 0", good, " ".join(last))


def rolling_drain():
    """Each rank drained and taken back, again and again, under load."""
    count = rounds(3, 20)
    with Cluster(3) as c:
        replay = c.replay(steady(count * 3 * 3.2, 10, tokens=40))
        time.sleep(1)
        for _ in range(count):
            for rank in range(3):
                mark = c.last_event()
                assert c.post(f"/ranks/drain?rank={rank}&deadline_s=60") == 200
                c.wait_event(rank, "-> drained", mark, 70)
                assert c.post(f"/ranks/undrain?rank={rank}") == 200
        result = c.result(replay)
        good, last = c.check_history()
    bad = sum(result["requests"][kind] for kind in ("failed", "refused", "lost", "cancelled")) + result["tokens"]["wrong"]
    row("rolling_drain_not_completed", bad, "requests", requests_of(result), "value <= 0", bad == 0 and good,
        f"{count} rounds of 3 ranks, {result['requests']['completed']} completed; {' '.join(last)}")


def crashing_forwarder():
    """LoadForwarder crashed 100 times a second, its limit lifted."""
    seconds = rounds(10, 30)
    gaps = {"quiet": [], "crashing": []}
    lost = 0
    sent = 0
    tokens = {"quiet": 0, "crashing": 0}
    with Cluster(8, config="[supervision]\nforwarder_restarts_max = 0\nbackoff_min_ms = 1") as c:
        for kind in ("quiet", "crashing", "quiet", "crashing"):
            replay = c.replay(steady(seconds, 20))
            crashes = 0
            begun = time.monotonic()
            while kind == "crashing" and time.monotonic() - begun < seconds:
                c.post("/fault/crash?role=load_forwarder")
                crashes += 1
                time.sleep(max(0.0, begun + crashes / 100 - time.monotonic()))
            result = c.result(replay)
            gaps[kind].append(result["inter_token_s"]["p99"])
            tokens[kind] += result["tokens"]["delivered"]
            sent += requests_of(result)[0]
            lost += result["requests"]["lost"] + result["requests"]["failed"] + result["tokens"]["wrong"]
        restarts = next(a for a in c.get("/actors")["children"] if a["role"] == "load_forwarder")["restarts"]
        replay = c.replay(steady(3, 20))
        time.sleep(1.5)
        ages = [rank["report"]["age_s"] for rank in c.get("/ranks")["pools"][0]["ranks"] if rank["report"]]
        c.result(replay)
    ratio = sum(gaps["crashing"]) / sum(gaps["quiet"])
    row("crashing_forwarder_gap_p99", ratio, "x quiet", (tokens["crashing"], "tokens"), "value <= 1.2", ratio <= 1.2,
        f"quiet: {tokens['quiet']} tokens; {restarts} restarts")
    row("crashing_forwarder_lost", lost, "requests", (sent, "requests"), "value <= 0", lost == 0)
    row("crashing_forwarder_reports_after", len(ages), "ranks", (8, "ranks"), "value >= 8", len(ages) == 8 and max(ages) < 1)


def crash_loops():
    """Each actor, crashed at rates from 1 to 100 a second: five restarts in 30 s, then parked or the process ends."""
    rates = rounds([5, 100], [1, 2, 5, 10, 50, 100])
    wrong = []
    for role in ("load_forwarder", "dp_rank", "dp_controller", "request_manager"):
        for rate in rates:
            with Cluster(2, config="[supervision]\nbackoff_max_ms = 20") as c:
                crashes = 0
                begun = time.monotonic()
                while c.node.process.poll() is None and time.monotonic() - begun < 12:
                    try:
                        c.post(f"/fault/crash?role={role}&pool=unified")
                        crashes += 1
                        if role in ("load_forwarder", "dp_rank"):
                            child = next(a for a in c.get("/actors")["children"] if a["role"] == role)
                            if child["state"] == "parked":
                                break
                    except (OSError, ValueError):
                        break
                    time.sleep(max(0.0, begun + crashes / rate - time.monotonic()))
                if role in ("load_forwarder", "dp_rank"):
                    child = next(a for a in c.get("/actors")["children"] if a["role"] == role)
                    served = harness.drive(c.grpc, [request(f"r{i}", tokens=5) for i in range(10)])
                    if child["restarts"] != 5 or child["state"] != "parked" or served:
                        wrong.append((role, rate, child["restarts"], child["state"], served[:1]))
                else:
                    status = c.node.process.wait(10)
                    restarts = sum(f"event=actor_restart role={role}" in line for line in c.node.lines)
                    if status != 1 or restarts != 5:
                        wrong.append((role, rate, status, restarts))
    row("crash_loops_not_as_promised", len(wrong), "loops", (4 * len(rates), "loops"), "value <= 0", not wrong,
        f"{wrong or ''}")


def overload():
    """Three times what the pool can do."""
    seconds = rounds(12, 60)
    config = "requests_in_flight_max = 64\nwaiting_requests_max = 32\nwaiting_time_max_ms = 2000"
    engine = ["--max-running", 32, "--step-base-ms", 20, "--step-per-request-ms", 0, "--step-per-kv-token-us", 0,
              "--prefill-tokens-per-s", 1e9, "--block-tokens", 0]
    tokens = 25
    capacity = 64 / (tokens * 0.020)  # requests a second: 64 at once, 25 steps of 20 ms each

    async def offer(target, rate):
        import grpc
        completed, refusals, other = [0], [], []
        async with grpc.aio.insecure_channel(target) as channel:
            stub = harness.rpc.SglangSchedulerStub(channel)

            async def one(number):
                begun = time.monotonic()
                try:
                    async for _ in stub.Generate(request(f"o{rate}-{number}", tokens=tokens), timeout=30):
                        pass
                    completed[0] += 1
                except grpc.aio.AioRpcError as error:
                    waited = time.monotonic() - begun
                    if error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED:
                        refusals.append(waited)
                    else:
                        other.append(error.code().name)

            begun = time.monotonic()
            tasks = []
            for number in range(int(seconds * rate)):
                await asyncio.sleep(max(0.0, begun + number / rate - time.monotonic()))
                tasks.append(asyncio.create_task(one(number)))
            await asyncio.gather(*tasks)
            return completed[0] / (time.monotonic() - begun), refusals, other, len(tasks)

    with Cluster(2, engine=engine, config=config) as c:
        def rss():
            return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{c.node.process.pid}/status").read_text())[1]) / 1024

        harness.run(offer(c.grpc, capacity * 3))  # warm: buffers that grow once
        before = rss()
        goodput, refusals, other, offered = harness.run(offer(c.grpc, capacity * 3 + 0.001))
        grown = rss() - before
    at_once = [waited for waited in refusals if waited < 1.5]  # the others waited their time in the waiting room
    p99 = percentile(at_once, 99) * 1e3
    row("overload_refusal_p99", p99, "ms", (len(at_once), "refusals"), "value <= 50", p99 <= 50,
        f"at once; {len(refusals) - len(at_once)} more after waiting")
    row("overload_goodput", goodput / capacity, "of capacity", (offered, "requests"), "value >= 0.9",
        goodput / capacity >= 0.9 and not other, f"{goodput:.0f} of {capacity:.0f} requests/s {set(other) or ''}")
    row("overload_rss_growth", grown, "MiB", (offered, "requests"), "value <= 8", grown <= 8)


def other_machines():
    """Ranks in network namespaces of their own; the link of one is cut."""
    for _ in range(rounds(1, 10)):
        done = subprocess.run([sys.executable, str(HERE.parent / "integration" / "other_machines.py"), rankwise],
                              capture_output=True, text=True)
        if done.returncode == 77:
            print(f"other_machines: {done.stdout.strip()}")
            return
        took = re.search(r"down after ([0-9.]+) s", done.stdout)
        row("cut_link_down", float(took[1]) * 1e3 if took else -1.0, "ms", (1, "cut"), "value <= 750",
            done.returncode == 0, done.stdout.strip()[-160:] or done.stderr.strip()[-160:])


def random_faults():
    """Faults of every kind at random times; long form: 10^5 requests."""
    random.seed(options.seed)
    count = rounds(400, 100_000)
    rate = 20 if not options.long else 60
    lost = 0
    with Cluster(6, engine=["--time-scale", 3], config="[supervision]\nrestarts_max = 0") as c:
        replay = c.replay([(i / rate, random.randint(1, 2000), random.randint(1, 200)) for i in range(count)])
        until = time.monotonic() + count / rate
        done = {}
        while time.monotonic() < until - 5:
            time.sleep(random.uniform(0.3, 2))
            kind = random.choice(["kill", "freeze", "dp_controller", "dp_rank", "load_forwarder", "drain"])
            rank = random.randrange(6)
            done[kind] = done.get(kind, 0) + 1
            if kind == "kill":
                c.engines[rank].signal(signal.SIGKILL)
                c.engines[rank].process.wait()
                c.start_engine(rank)
            elif kind == "freeze":
                c.engines[rank].signal(signal.SIGSTOP)
                time.sleep(random.uniform(0.05, 1.5))
                c.engines[rank].signal(signal.SIGCONT)
            elif kind == "drain":
                c.post(f"/ranks/drain?rank={rank}&deadline_s=1")
                time.sleep(random.uniform(0.05, 1.5))
                c.post(f"/ranks/undrain?rank={rank}")
            else:
                c.post(f"/fault/crash?role={kind}&pool=unified&rank={rank}")
        result = c.result(replay, 600)
        lost = result["requests"]["lost"] + result["tokens"]["wrong"]
        allowed = {"rank_lost", "no_rank_available"}
        good, last = c.check_history()
    row("random_faults_lost_or_wrong", lost, "requests", requests_of(result), "value <= 0",
        lost == 0 and good and set(result["failures"]) <= allowed,
        f"seed {options.seed}: {result['requests']['completed']} of {count} completed, {result['failures']}, "
        f"{result['tokens']['delivered']} tokens, faults {done}; {' '.join(last)}")


def soak():
    """Long form only: an hour of load, memory at its end against memory after ten minutes."""
    if not options.long:
        return
    with Cluster(8) as c:
        def rss():
            return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{c.node.process.pid}/status").read_text())[1]) / 1024

        replay = c.replay(steady(3900, 20, tokens=130))
        time.sleep(600)
        before = rss()
        time.sleep(3000)
        grown = (rss() - before) * 3600 / 3000
        result = c.result(replay, 900)
        events = [f"{event['at']} {event['subject']} {event['change']}: {event['cause']}" for event in c.events()]
        kept = pathlib.Path(tempfile.mkdtemp(prefix="rankwise-soak-"))
        (kept / "replay.json").write_text(json.dumps(result))
        (kept / "events.txt").write_text("\n".join(events))
        good, last = c.check_history()
        if not good or result["requests"]["lost"] + result["tokens"]["wrong"]:
            (c.folder / "history.txt").rename(kept / "history.txt")
    row("soak_rss_growth", grown, "MiB/h", (3000, "s"), "value < 1", grown < 1, f"{result['tokens']['delivered']} tokens")
    row("soak_lost_or_wrong", result["requests"]["lost"] + result["tokens"]["wrong"], "requests", requests_of(result),
        "value <= 0",
        good and result["requests"]["lost"] + result["tokens"]["wrong"] == 0,
        f"{result['requests']}, {result['failures']}, kept in {kept}; {' '.join(last)}")


ALL = [killed_ranks, frozen_ranks, long_prefill, hanging_engine, failing_rank, killed_node, rolling_drain,
       crashing_forwarder, crash_loops, overload, other_machines, random_faults, soak]


def main():
    global options, rankwise
    parser = argparse.ArgumentParser()
    parser.add_argument("rankwise")
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--json", default="")
    parser.add_argument("--again", action="store_true",
                        help="measure once more what did not hold, for machines that do other work at the same time")
    parser.add_argument("--only", default="", help="names, with commas: " + ", ".join(f.__name__ for f in ALL))
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    options = parser.parse_args()
    rankwise = options.rankwise
    chosen = [f for f in ALL if not options.only or f.__name__ in options.only.split(",")]
    if not chosen:
        parser.error(f"--only {options.only}: nothing has that name")
    print(f"{'WHAT':<44} {'MEASURED':>10} {'UNIT':<11} {'SAMPLE':<17} {'PROMISE':<22} HOLDS", flush=True)
    for measure in chosen:
        for attempt in range(2 if options.again else 1):
            first = len(rows)
            try:
                measure()
            except Exception as error:  # one that breaks must not hide the others, nor look like a success
                row(measure.__name__, -1, "broken", (0, "samples"), "a measurement", False, repr(error)[:300])
            if all(entry["holds"] for entry in rows[first:]):
                break
            if attempt == 0 and options.again:
                print(f"  {measure.__name__} is measured once more; the second measurement counts", flush=True)
                del rows[first:]
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if rows and all(entry["holds"] for entry in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
