"""Words that xbench no longer takes, each with what to write now: one table, so that a removed word is never a typo.

A row is the word as it is typed, and a clause that follows "NAME is gone: " in the refusal. It names the new way, or
says in a few words why there is none. The rows stand under the kind of word:

- "command": words behind `xbench`, such as "scale" or "regress record". The first word alone answers for all its
  commands.
- "option": "--name" of any command, or "COMMAND --name" where other commands still have the option. The same name
  without dashes, as "heap", is refused in a check of a TOML file.
- "key": a key of a mode, fabric, workload, trace or policy: "NAME:key".
- "record": the kind of a record.
- Any kind that `errors.unknown` is called with, such as "mode", "topology", "trace" or "policy": a name of that kind.

`former` reads the table. It is asked before the nearest known word is suggested: by `xbench.cli` for commands and
options, by `errors.unknown`, by `spec.known_options` for keys, and by `toml_config.known_keys`. To remove a word,
delete it where it is parsed and add a row here. Nothing else is needed.
"""

from __future__ import annotations

_HOST_TUNING = "XBENCH_HOST_TUNING=off in the environment turns host tuning off"

FORMER: dict[str, dict[str, str]] = {
    "command": {
        "cluster fit": "the page on clusters fits speeds and losses with scipy",
        "cluster policies": "write xbench list policies",
        "cluster restart": "write xbench cluster run JOBS.toml --restarts N",
        "cluster traces": "write xbench list traces, or xbench cluster compare --trace NAME, which fetches it",
        "completion": 'eval "$(_XBENCH_COMPLETE=bash_source xbench)" makes bash complete its words',
        "fabric check": "write xbench env --links SPEC",
        "fabric clean": "write xbench clean",
        "fabric list": "write xbench list fabrics",
        "fabric": "write xbench list fabrics, xbench env --links SPEC or xbench clean",
        "modes": "write xbench list modes",
        "regress calibrate": "xbench regress baseline learns the noise floor as well",
        "regress record": "xbench regress baseline stores counts, and check --base judges times",
        "runs": "write xbench list runs",
        "scale": "write xbench plan PROFILE --workers 2..2048",
        "schema": "schema.json in the documentation is the JSON Schema of the records",
        "script": "the documentation's page on clusters has launch files for torchrun, Slurm, Kubernetes and Ray",
        "workloads": "write xbench list workloads",
        "validate": "xbench compare shows the error of each prediction",
    },
    "option": {
        "--copies": "a gradient is copied into its bucket as soon as it is ready",
        "compare --minutes": "write --until 2%,20min",
        "profile --trace": "write xbench trace FILE",
        "--backend": "torch carries the gradients, and the mode horovod sends by Horovod",
        "--gloo-threads": _HOST_TUNING,
        "--heap": _HOST_TUNING,
        "--inject": "to test a gate, slow the model down in this tree",
        "--output": "XBENCH_RESULTS in the environment names the folder of runs",
        "--nvtx": "nsys profile --pytorch marks the layers and collectives of torch",
        "--overlap": "the mode auto:forward has dear and priority among its candidates",
        "--rigorous": "write --launches 8, or --until 2% for as many launches as that precision needs",
        "--steps": "a block takes about 3 s, and --quick is for a first look",
    },
    "mode": {
        "fsdp-tuned": "the mode of planned units is written auto:shard",
        "plain-ddp": "the page of results says what host tuning is worth",
    },
    "trace": {"alibaba": "write its tasks as a CSV of your own, one row a job"},
    "record": {
        "restart": "xbench cluster run JOBS.toml --restarts N measures restarts",
        "validation": "the documentation's page on the study of predictions says how it is shown",
    },
    "topology": dict.fromkeys(("doubling", "halving-doubling", "recursive-doubling"), "write ring or tree"),
    "key": {
        "auto:shard": "the mode of planned units is written auto:shard, or auto:shard,gathered=64MiB",
        "crossover:processes": "one process on each device holds both jobs; write concurrent for a process each",
        "ddp+compile:reducer": "ddp+compile is DDP under torch.compile with DDP's own reducer",
        "doubling:plain": "a plan counts the restarts that it would cost",
        "equal-share:plain": "a plan counts the restarts that it would cost",
        "exploratory:most": "trials end at eight GPUs, or at the most of a job",
        "exploratory:plain": "a plan counts the restarts that it would cost",
        "gittins:promote": "a job that waited eight times as long as it ran is promoted",
        "jigsaw:jobs": "two jobs share GPUs",
        "las:promote": "a job that waited eight times as long as it ran is promoted",
        "optimus:plain": "a plan counts the restarts that it would cost",
    },
}


def former(kind: str, *words: str) -> str | None:
    """Return what to write in place of the first of `words` that xbench took earlier, or None."""
    rows = FORMER.get(kind, {})
    return next((rows[word] for word in words if word in rows), None)
