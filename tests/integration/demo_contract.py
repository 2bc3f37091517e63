"""Runs a short `rankwise demo` with all four faults at once and checks its promises and the form of what it writes."""

import json
import random
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml

program = sys.argv[1]
count = 120

with tempfile.TemporaryDirectory() as folder:
    chance = random.Random(1)
    with open(folder + "/trace.csv", "w") as trace:
        trace.write("arrival_s,input_tokens,output_tokens\n")
        for i in range(count):
            trace.write(f"{i / 20},{chance.randint(10, 1500)},{chance.randint(10, 90)}\n")
    run = subprocess.run(
        [program, "demo", "--trace", folder + "/trace.csv", "--json", folder + "/demo.json", "--plot", folder + "/kv.svg",
         "--fault", "crash:load_forwarder@1s", "--fault", "kill:decode/3@2s", "--fault", "freeze:decode/2@3s+2s",
         "--fault", "crash:dp_controller@4s"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    print(run.stdout)
    assert run.returncode == 0, run.returncode
    with open(folder + "/demo.json") as file:
        result = json.load(file)
    plot = xml.parse(folder + "/kv.svg").getroot()

assert set(result) == set(["requests", "failures", "tokens", "ttft_s", "inter_token_s", "ranks", "actors"]), list(result)
requests = result["requests"]
assert set(requests) == set(["accepted", "completed", "failed", "cancelled", "refused", "lost"]), requests
assert requests["lost"] == 0 and requests["refused"] == 0 and requests["cancelled"] == 0, requests
assert requests["accepted"] == count == requests["completed"] + requests["failed"], requests
assert set(result["failures"]) <= {"rank_lost"}, result["failures"]
assert sum(result["failures"].values()) == requests["failed"], result["failures"]
assert set(result["tokens"]) == {"delivered", "wrong"} and result["tokens"]["wrong"] == 0, result["tokens"]
assert result["tokens"]["delivered"] > 0
assert set(result["ttft_s"]) == set(["mean", "p50", "p99"]), result["ttft_s"]
assert set(result["inter_token_s"]) == set(["p50", "p99"]), result["inter_token_s"]
assert 0 < result["inter_token_s"]["p50"] <= result["inter_token_s"]["p99"], result["inter_token_s"]
assert sorted((r["pool"], r["rank"]) for r in result["ranks"]) == \
    [("decode", i) for i in range(8)] + [("prefill", i) for i in range(4)], result["ranks"]
for rank in result["ranks"]:
    assert set(rank) == set(["pool", "rank", "requests", "kv_mean", "kv_max"]), rank
    assert 0 <= rank["kv_mean"] <= rank["kv_max"] <= 1, rank
assert all(set(a) == set(["role", "restarts"]) for a in result["actors"]), result["actors"]
restarts = {a["role"]: a["restarts"] for a in result["actors"]}
assert restarts["load_forwarder"] == 1 and restarts["dp_controller"] == 1, restarts
texts = [t.text for t in plot.iter("{http://www.w3.org/2000/svg}text")]
for wanted in ("decode/7", "prefill/3", "time (s)", "kill:decode/3"):
    assert any(wanted in (t or "") for t in texts), wanted
print("the demo keeps its promises and the agreed form")
