"""Runs `rankwise bench node --quick --no-fail` and checks the form of what it writes; the figures themselves are not judged."""

import json
import subprocess
import sys
import tempfile

program = sys.argv[1]
with tempfile.NamedTemporaryFile(suffix=".json") as out:
    subprocess.run([program, "bench", "node", "--quick", "--no-fail", "--json", out.name], check=True, timeout=240)
    figures = json.load(out)

names = [f["name"] for f in figures]
assert len(names) == len(set(names)), names
for wanted in ("idle_8_ranks", "dispatch_p50", "dispatch_p99", "cpu_per_token_512_streams", "cpu_per_token_2048_streams",
               "gap_p99_512_streams", "gap_p99_2048_streams", "cpu_per_token_vs_bare_512_streams",
               "cpu_per_token_vs_bare_2048_streams", "actors_rate_512B", "actors_rate_8192B",
               "actors_dispatch_p99_vs_one_hand_over_512B", "handler_longest"):
    assert wanted in names, f"{wanted} is missing"
for f in figures:
    assert list(f) == ["name", "value", "unit", "reference", "ratio", "target", "holds"], f
    if f["reference"] is None:
        assert f["value"] >= 0 and f["ratio"] is None, f
    else:
        assert f["value"] > 0 and f["reference"] > 0, f
        assert abs(f["ratio"] - f["value"] / f["reference"]) < 1e-6 * f["ratio"], f
    if f["target"] is None:
        assert f["holds"], f
    else:
        subject, relation, limit = f["target"].split()
        assert subject in ("ratio", "value") and relation in ("<=", ">="), f
        within = f[subject] <= float(limit) if relation == "<=" else f[subject] >= float(limit)
        assert f["holds"] == within, f
print(f"{len(figures)} figures in the agreed form")
