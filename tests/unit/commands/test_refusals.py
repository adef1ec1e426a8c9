"""Refusals of each command: words as they are typed, one sentence with a hint at most, and nothing done."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from golden_file import GOLDEN
from outcome import Refused

from xbench.cluster.live import local_engine
from xbench.regress import checkout

PROFILE, RECORD, SCALING = (str(GOLDEN / f"{kind}-v1.json") for kind in ("profile", "comparison", "scaling"))
JOB = '[[job]]\nname = "{}"\nworkload = "synthetic:layers=4,bytes=64k"\nsteps = 20\nbatch_size = 8\n{}\n'
CHECK = '[[regress.check]]\nname = "{}"\nworkload = "transformer-tiny"\nmodes = ["ddp"]\nfabric = "local:ranks=2"\n'
FILES = {
    "jobs.toml": JOB.format("a", "speeds = { 1 = 1000.0, 2 = 2000.0 }") + JOB.format("b", "arrival_s = 0.01"),
    "large.toml": JOB.format("a", "gpus = 3") + JOB.format("b", ""),
    "xbench.toml": CHECK.format("step") + 'metrics = ["step_time"]\n' + CHECK.format("sent")
    + 'metrics = ["wire_bytes"]\n[regress]\nbudget_minutes = 1\n',
    "jobs.csv": "name,arrival_s,gpus,duration_s\na,0,1,100\n",
    "rigid.csv": "name,arrival_s,gpus,duration_s\na,0,3,100\nb,0,3,100\nc,0,2,100\n",
    "gap.csv": "name,arrival_s,gpus,duration_s\na,0,1,100\nb,0,1,10\nc,5,0,10\n",
}  # fmt: skip

TYPED: dict[str, list[tuple[str, str]]] = {
    "": [
        ("comprae", "'compare'? (xbench --help has them all)"),
        ("list --hepl", "did you mean --help?"),
        ("list workloads --names --json", "--names and --json exclude each other"),
        ("cluster rnu", "'rnu'\n  hint: did you mean 'run'?"),
        ("--versoin", "did you mean --version?"),
        ("exec", "hint: xbench --help has them all"),
        ("profile --compress fp8", "'fp8' is not one of 'none', 'bf16'\n  hint: xbench profile --help lists"),
        ("compare resnet18 --gpus 8", "no option '--gpus'\n  hint: write --fabric local:ranks=8"),
        ("profile --nproc=4", "write --fabric local:ranks=4"),
        ("converge --lr 0", "--lr: 0 is not above 0 and up to 100"),
        ("tune --nproc-per-node", "write --fabric local:ranks=N"),
        ("plan", "missing argument 'PROFILE'\n  hint: xbench plan --help"),
        (f"plan {SCALING} --workers 2..2048", "scaling-v1.json' "),
        ("clean x", "extra argument (x)\n  hint: xbench clean --help"),
    ],
    "compare": [
        ("--optimizer adam", "did you mean 'adamw'?"),
        ("--batchsize 3", "no option '--batchsize'"),
        ("--batch-size 0", "0 is not in the range 1 to 1000000"),
        ("--seq-len many", "'many' is not a whole number"),
        ("--device gpu", "'gpu' is not one of 'auto', 'cpu', 'cuda'"),
        ("--device cuda:-1", "'cuda:-1' is not one of"),
        ("--timeout 0", "0 is not in the range 1 s to 86400 s"),
        ("--timeout soon", "'soon' is not a duration"),
        ("resnet51", "unknown workload 'resnet51'\n  hint: did you mean 'resnet"),
        ("nowhere.py:make", "nowhere.py"),
        ("resnet18 resnet18 resnet18", "3 workloads were named"),
        ("--modes wfpb", "did you mean 'wfbp'?"),
        ("--reference single --modes ddp,wfbp", "'single' is not among the modes"),
        ("--fabric shapd", "did you mean 'shaped'?"),
        ("--fabric local:ranks=1 --modes ddp,crossover", "local:ranks=1 has 1 rank"),
        ("--fabric local:ranks=1 --modes optimal", "no link"),
        ("--fabric local:ranks=1 --reference optimal --modes ddp,optimal", "no link"),
    ],
    "env": [
        ("--like /none", "there is no result file '/none'"),
        (f"--like {SCALING}", "does not say where it was made"),
        ("--json /none/x.json", "--json: the folder of '/none/x.json' does not exist"),
    ],
    "report": [
        ("--ranks 2", "no option '--ranks'\n  hint: xbench report --help"),
        ("/none", "no result file '/none'\n  hint: give a record.json"),
        (f"{RECORD} --json /none/x.json", "'/none/x.json' does not exist\n  hint: mkdir -p /none"),
        (f"{RECORD} --json /", "'/' is a folder\n  hint: name a FILE in it"),
        (f"{RECORD} --html - --markdown -", "--html and --markdown both want stdout"),
        (f"{RECORD} --markdown - --json -", "both want stdout\n  hint: name another FILE for --json"),
        (f"{RECORD} --markdown out --json ./out", "both want './out'\n  hint: name another FILE for --json"),
        ("nothing.json --html .", "--html: '.' is a folder"),
        ("nothing.json --html none/x.html", "'none/x.html' does not exist\n  hint: mkdir -p none"),
        (f"nothing.json --html {'x' * 300}", "file name too long"),
        (f"{RECORD} {RECORD} --json -", "--json takes one RESULT"),
        (f"{RECORD} {RECORD} --trace -", "--trace takes one RESULT"),
        (f"{RECORD} {RECORD} --csv -", "one RESULT, and there are 2\n  hint: run it once for each"),
        (f"{SCALING} --markdown a.md --trace b.json", "no step, recorded or predicted"),
        (".", "no result file 'record.json'"),
    ],
    f"plan {PROFILE}": [
        ("--workers 1", "1 is out of range 2 to 1000000"),
        ("--workers many", "'many' is not a whole number"),
        ("--compute-scale -1", "-1 is out of range"),
        ("--rate 10", "'10' is not a rate"),
        ("--latency soon", "'soon' is not a duration"),
        ("--modes optmal", "unknown mode 'optmal'"),
        ("--modes crossover", "'crossover' is not planned from a record"),
        ("--fabric local:ranks=4", "no what-if leads there"),
        ("--fabric shaped:hosts=4 --rate 1gbit", "--fabric and --rate exclude each other"),
        ("--fabric shaped:hosts=4 --workers 8", "--fabric and --workers exclude each other"),
        ("--job 2", "holds 1 job"),
        ("--emit ddp --mode compute", "trains no common network"),
        ("--emit ddp --mode ddp", "what DistributedDataParallel does by itself"),
        ("--emit ddp --mode wfbp,single", "a snippet holds one plan"),
        ("--emit python --modes compute", "only the control was planned"),
        ("--emit python --mode auto:shard", "holds no units of it"),
        ("--emit python --mode auto:shard --rate 1gbit --json p.json", "are those that a comparison wrapped"),
        ("--mode optimal", "no snippet is asked for"),
        ("--emit json --json -", "both want stdout"),
        (f"--json {PROFILE}", "is a result, and would be written over"),
        ("--emit yaml", "'yaml' is not one of"),
        ("--json /nowhere/at/all.json", "the folder of '/nowhere/at/all.json' does not exist"),
        ("--workers 2,4 --emit ddp", "--emit is of one plan"),
        ("--workers 2,4 --mode ddp", "--mode is of one plan"),
        ("--workers 2..4 --fabric shaped:hosts=2,rate=1gbit", "--fabric is of one plan"),
        ("--workers 4 --topology ring", "--topology goes with several"),
        ("--error-band 0.1", "--error-band goes with several"),
        ("--csv -", "--csv goes with several"),
    ],
    f"plan {PROFILE} --workers 2..2048": [
        ("--workers 1..8", "1 is below 2, and one worker has nobody"),
        ("--topology tre", "did you mean 'tree'?"),
        ("--modes wfpb", "did you mean 'wfbp'?"),
        ("--error-band 1", "1 is not a share from 0 to 0.95"),
        ("--compute-scale 0", "--compute-scale: 0 is "),
        ("--json - --csv -", "--json and --csv both want stdout"),
        ("--json s --csv ./s", "--json and --csv both want './s'"),
        (f"--json {PROFILE}", "is a result, and would be written over"),
        (f"--csv {PROFILE}", "is a result, and would be written over"),
        ("--csv /none/x.csv", "--csv: the folder of '/none/x.csv' does not exist"),
        ("--csv /", "'/' is a folder"),
    ],
    "tune synthetic": [
        ("--minutes 0", "0 is not in the range 0.25 to 1440\n  hint: try --minutes 0.25"),
        ("--minutes 1e9", "hint: try --minutes 1440"),
        ("--minutes ten", "'ten' is not a valid float"),
        ("--margin -1", "-1 is not in the range 0 to 50"),
        ("--modes compute,ddp", "no candidate beside ddp"),
        ("--modes crossover", "tune is for one"),
        ("--modes auto,auto@b", "'auto@b' is a second copy"),
        ("--modes optimol", "did you mean 'optimal'?"),
        ("--modes spb:variant=temporal", "trains another network than DDP"),
        ("--modes auto,fsdp", "'fsdp' has no plan"),
        ("--modes ddp,auto:shard", "'auto:shard' has no plan"),
        ("--keep /nowhere/tuned.json", "--keep: the folder of '/nowhere/tuned.json' does not exist"),
        ("--keep -", "--keep: '-' is no file"),
        ("--json /tmp", "--json: '/tmp' is a folder"),
        ("--fabric shape", "unknown fabric 'shape'"),
        ("--fabric local:ranks=1", "has 1 rank, so no gradient travels"),
    ],
    "regress": [
        ("check --config nowhere.toml", "nowhere.toml"),
        ("check --check stap", "unknown check 'stap'\n  hint: did you mean 'step'?"),
        ("check --base HEAD", "is in no git repository, so there is no base revision to measure\n  hint: leave"),
        ("check --base HEAD --baseline x.json", "--base and --baseline exclude each other"),
        ("check --baseline nowhere.json", "no result file 'nowhere.json'"),
        ("check --layer clock", "'clock' is not one of 'deterministic', 'wall', 'both'"),
        ("check --layer wall --check sent", "no check of the suite has a wall metric"),
        ("check --layer wall", "no --base was given"),
        ("baseline --pairs 5", "a noise floor takes 6 pairs or more"),
        ("check --pairs 0", "0 is not in the range 1 to 200"),
        ("check --budget nan", "nan is not in the range 0.1 to 1440"),
        ("check --markdown /nowhere/a.md", "--markdown: the folder of '/nowhere/a.md' does not exist"),
        ("check --junit .", "--junit: '.' is a folder"),
        ("check --json - --junit -", "--json and --junit both want stdout"),
        ("check --json r --markdown r", "--json and --markdown both want 'r'"),
        ("check --strikt", "did you mean --strict?"),
        ("baseline --device gpu", "--device"),
        ("baseline --layer deterministic --check step", "no check of the suite has a deterministic metric"),
        ("baselin", "did you mean 'baseline'?"),
        ("launch", "an order and a place for its answer"),
        ("launch xbench.toml answer.json", "'xbench.toml' is no order of version 1"),
    ],
    "cluster compare": [
        ("--policies fifo,srft", "did you mean 'srtf'?"),
        ("--policies fifo,,srtf", "'fifo,,srtf' has an empty place"),
        ("--policies fifo,fifo", "policy 'fifo' stands twice"),
        ("--trace generatd:jobs=3", "unknown trace 'generatd'"),
        ("--trace nowhere.csv", "nowhere.csv"),
        ("--trace gap.csv --gpus 1 --policies fifo,srtf", "row 4"),
        ("--trace jobs.csv --gpus 4 --policies fifo,doubling", "policy 'doubling' needs speeds"),
        ("--trace jobs.csv --gpus 4 --policies doubling", "'a'"),
        ("--trace rigid.csv --gpus 8 --gpus-per-host 4 --policies fifo", "how fast job 'a' and 2 others"),
        ("--gpus 1", "the cluster has 1"),
        ("--restart-cost ten", "'ten' is not a number of seconds"),
        ("--seeds 0", "--seeds"),
        ("--seeds 3 --trace itp:nowhere.tar.gz", "has no seeds"),
        ("--seeds 3 --trace generated:seed=4", "exclude each other"),
        ("--window 2", "'2' is not a window of jobs\n  hint: write 1001-2000"),
        ("--window 0-9", "begins before the first job\n  hint: write 1-9"),
        ("--window 9-2", "ends before it begins\n  hint: write 2-9"),
        ("--window 150-300", "after the last of 200 jobs\n  hint: write 150-200"),
        ("--window 250-300", "hint: write 1-200"),
        ("--json - --csv -", "both want stdout"),
        ("--json c --csv c", "--json and --csv both want 'c'"),
        ("--policy fifo", "--policies"),
        ("--placement spread", "--placement is for a cluster of several hosts"),
        ("--across-hosts 0.8", "--across-hosts is for a cluster of several hosts"),
        ("--gpus-per-host 8 --placement sprad", "did you mean 'spread'?"),
        ("--gpus-per-host 8 --placement packed,", "has an empty place"),
        ("--gpus-per-host 12", "32 GPUs are not a whole number of hosts of 12"),
        ("--gpus-per-host 32", "are one host"),
        ("--gpus-per-host 8 --across-hosts 0.8", "leave --across-hosts out"),
        ("--gpus-per-host 8 --across-hosts 8", "8 is not a share of a speed"),
    ],
    "cluster run": [
        ("", "no jobs are named"),
        ("nowhere.toml", "no file of jobs 'nowhere.toml'"),
        ("jobs.toml --policy doublin", "did you mean 'doubling'?"),
        ("jobs.toml --policy doubling", "needs to know speeds on several numbers of workers"),
        ("jobs.toml --policy srtf", "no speed is known of job 'b'"),
        ("jobs.toml --engine rey", "did you mean 'ray'?"),
        ("jobs.toml --slots 0", "--slots"),
        ("jobs.toml --restart-cost ten", "'ten' is not a duration"),
        ("jobs.toml --address head:6379", "engine 'local' has no address"),
        ("large.toml --slots 2", "job 'a': gpus = 3, and the cluster has 2 slots"),
        ("--resume nowhere", "no run in 'nowhere' to continue"),
        ("jobs.toml --resume here", "JOBS.toml would change it"),
        ("--resume here --slots 3", "--slots would change it"),
        ("jobs.toml --json none/x.json", "--json: the folder of 'none/x.json' does not exist"),
    ],
}  # fmt: skip
"""Before what is typed, the words that all of a group begin with."""

ROWS = [(f"{command} {typed}", phrase) for command, rows in TYPED.items() for typed, phrase in rows]


@pytest.mark.parametrize(("typed", "phrase"), ROWS)
def test_one_sentence_and_nothing_is_done(
    refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str, phrase: str
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("something was started")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checkout, "Running", never)
    monkeypatch.setattr("xbench.environment.take_inventory", never)
    monkeypatch.setattr(local_engine.LocalEngine, "start", never)
    for name, text in FILES.items():
        Path(name).write_text(text, encoding="utf-8")
    assert phrase in refused(*shlex.split(typed))
    assert {path.name for path in Path().iterdir()} == set(FILES)
