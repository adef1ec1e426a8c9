"""How long two ranks take to send each other as much: Gloo's all-to-all beside receives that are posted first.

    python benchmarks/exchange.py [--rate 1gbit] [--output results/exchange.json]

Two shaped hosts of one core each. Each rank sends the other 4.7 MB, half of a bucket of 9.4 MB, as `dear` does: both
beginning together, one of them 5 ms late, and four exchanges in a row. Real times; of each case the median of 16.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from xbench import environment
from xbench.fabrics import open_fabric, parse_fabric

ELEMENTS = 2 * 1_180_160
LATE_S = 0.005
IN_A_ROW = 4
TIMES = 16


def rank() -> None:
    """One rank: rank 0 prints the medians [s] as JSON."""
    import torch
    import torch.distributed as dist

    from xbench.host_tuning import raise_gloo_threads
    from xbench.schedules.dear import PairwiseAllToAll

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    dist.all_reduce(torch.zeros(1))
    raise_gloo_threads()
    ours = dist.get_rank()
    group = dist.group.WORLD
    assert group is not None
    mine, received = torch.randn(ELEMENTS).chunk(2)
    sizes = [0 if other == ours else mine.numel() for other in range(2)]

    def by_all_to_all() -> None:
        dist.all_to_all_single(received, mine, sizes, sizes)

    def by_exchange() -> None:
        PairwiseAllToAll(group, [(1 - ours, mine)], [(1 - ours, received)], tag=1).wait()

    def median_s(case: Callable[[], None]) -> float:
        took_s = []
        for _ in range(TIMES):
            dist.all_reduce(torch.zeros(1))
            start_s = time.perf_counter()
            case()
            took_s.append(time.perf_counter() - start_s)
        return statistics.median(took_s)

    def late(case: Callable[[], None]) -> Callable[[], None]:
        def after_a_while() -> None:
            time.sleep(LATE_S if ours else 0)
            case()

        return after_a_while

    def in_a_row(case: Callable[[], None]) -> Callable[[], None]:
        return lambda: [case() for _ in range(IN_A_ROW)] and None

    found = {
        name: {
            "together_s": median_s(case),
            "one_5_ms_late_s": median_s(late(case)),
            "four_in_a_row_s": median_s(in_a_row(case)),
        }
        for name, case in (("all_to_all", by_all_to_all), ("receives posted first", by_exchange))
    }
    if ours == 0:
        print(json.dumps(found), flush=True)
    dist.barrier()
    os._exit(0)


def main() -> None:
    """Raise the hosts, start a rank on each, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if "RANK" in os.environ:
        rank()
        return
    with open_fabric(parse_fabric(f"shaped:hosts=2,rate={options.rate}")) as fabric:
        meeting = {
            "WORLD_SIZE": "2",
            "MASTER_ADDR": fabric.hosts[0].address,
            "MASTER_PORT": str(fabric.free_ports(1)[0]),
        }
        ranks = [
            subprocess.Popen(
                [*slot.prefix, sys.executable, __file__],
                env=os.environ | slot.env | meeting | {"RANK": str(slot.index)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for slot in fabric.hosts
        ]
        said = [process.communicate(timeout=300)[0] for process in ranks]
    found = json.loads(said[0].splitlines()[-1])
    for name, cases in found.items():
        said_of = [f"{case.removesuffix('_s')} {1e3 * took_s:.1f} ms" for case, took_s in cases.items()]
        print(f"{name}: {', '.join(said_of)}")
    if options.output is not None:
        result = {
            "command": " ".join(["python benchmarks/exchange.py", *sys.argv[1:]]),
            "label": "real",
            "bytes_each_way": ELEMENTS * 2,
            "rate": options.rate,
            "cases": found,
            "environment": environment.capture().model_dump(),
        }
        options.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
