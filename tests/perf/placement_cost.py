"""Runs `placement_benchmark` for one decision, at 8 and 1,024 ranks. The figures asked for are 1 and 5 us on a machine that is
quiet; a machine of CI may be half as fast, so that this fails at twice as much, of the best of five runs."""

import json
import subprocess
import sys

output = subprocess.run(
    [sys.argv[1], "--benchmark_filter=^decision/headroom/(8|1024)$", "--benchmark_repetitions=5", "--benchmark_min_time=0.1",
     "--benchmark_format=json"], check=True, capture_output=True, text=True, timeout=120).stdout
runs = [b for b in json.loads(output)["benchmarks"] if b["run_type"] == "iteration"]
for ranks, limit_us in ((8, 1.0), (1024, 5.0)):
    of_ranks = [b for b in runs if b["name"].split("/")[2] == str(ranks)]
    assert len(of_ranks) == 5, f"{ranks} ranks: {len(of_ranks)} runs"
    assert all(b["time_unit"] == "ns" for b in of_ranks)
    best_us = min(b["cpu_time"] for b in of_ranks) / 1000
    allocations = max(b["allocations"] for b in of_ranks)
    print(f"{ranks} ranks: {best_us:.2f} us (asked: {limit_us:g}), {allocations:.4f} allocations")
    assert best_us <= 2 * limit_us, f"{ranks} ranks: one decision takes {best_us:.2f} us"
    assert allocations <= 0.05, f"{ranks} ranks: one decision allocates {allocations} times"
