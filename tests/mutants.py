"""A sample of small wrong changes to planning, stats and cluster, each of which a unit test must notice.

python -m tests.mutants --count 300 --jobs 2

mutmut makes the changes in copies of the files under mutants/, and runs the tests that enter the changed function, as
`[tool.mutmut]` in pyproject.toml says. Mutants that were caught before and whose function is as it was are not judged
again, so an interrupted command goes on. The results are in mutants/sample.json. Exit code 1 where less than 85 % were
caught.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import heapq
import io
import json
import os
import subprocess
import sys
from pathlib import Path

from mutmut import __main__ as mutmut
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.mutation.mutators import mutation_operators, operator_string
from mutmut.stats import status_by_exit_code

OUTPUT = Path("mutants/sample.json")
MIN_SCORE = 0.85
"""Some mutants do the same as the code, and count as not caught."""

CAUGHT = ("killed", "timeout", "segfault")


def main() -> int:
    """Judge the sample: 0 when enough mutants were caught."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--count", type=int, default=300, metavar="N", help="so many mutants in the sample")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="so many mutants at a time")
    asked = parser.parse_args()

    os.environ["XBENCH_TEST_SHRINK"] = "0"  # a mutant's first failure is enough
    mutation_operators[:] = [one for one in mutation_operators if one[1] is not operator_string]
    with contextlib.redirect_stdout(io.StringIO()):  # the name of every file
        mutmut.copy_src_dir()
        mutmut.copy_also_copy_files()
        mutmut.create_mutants(asked.jobs)
    every, _ = mutmut.collect_source_file_mutation_data(mutant_names=[])
    # The least digests: a change elsewhere leaves most of the sample as it was.
    drawn = {hashlib.sha256(f"{asked.seed}:{name}".encode()).digest(): (name, code) for _, name, code in every}
    sample = [drawn[digest] for digest in heapq.nsmallest(asked.count, drawn)]
    names = [name for name, _ in sample]
    todo = [name for name, code in sample if status_by_exit_code[code] not in CAUGHT]
    if todo:
        mutmut._run(todo, asked.jobs)
    judged, _ = mutmut.collect_source_file_mutation_data(mutant_names=names)
    status = {name: status_by_exit_code[code] for _, name, code in judged}
    survivors = {
        name: get_diff_for_mutant(name, path=data.path).splitlines()[3:]
        for data, name, _ in judged
        if status[name] not in CAUGHT
    }
    score = 1 - len(survivors) / len(names)
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    whole = {"seed": asked.seed, "commit": head, "score": round(score, 4), "results": status, "survivors": survivors}
    OUTPUT.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{len(names) - len(survivors)} of {len(names)} caught: {score:.1%}; the others are in {OUTPUT}")
    return int(score < MIN_SCORE)


if __name__ == "__main__":
    sys.exit(main())
