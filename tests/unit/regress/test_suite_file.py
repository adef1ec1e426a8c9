"""xbench.toml: what a suite may say, and the sentence for everything that it may not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from xbench.errors import SpecError
from xbench.planning.cost import MAX_WORKERS
from xbench.records import Check, Suite
from xbench.regress import load_suite
from xbench.regress.suite import parse_threshold

ROOT = Path(__file__).parents[3]

WHOLE = """
[regress]
budget_minutes = 5
pairs = 12
alpha = 0.02
confirm = false

[regress.thresholds]
step_time = "7.5 %"
planned_step = "2%"
buckets = "exact"

[[regress.check]]
name = "resnet18"
workload = "resnet18:batch-size=8,image-size=64"
modes = ["ddp", "optimal"]
fabric = "local:ranks=2"
metrics = ["buckets", "planned_step", "simulated_step", "step_time"]
plan_from = "plan.json"
expect_change = " parameters 1  -> 2"
workers = 64

[[regress.check]]
name = "small"
workload = "synthetic:layers=8"
modes = ["ddp"]
metrics = ["collectives"]
"""


def suite_of(**changes: Any) -> Suite:
    """A suite of one check, without a file."""
    check = {"name": "small", "workload": "synthetic:layers=8", "modes": ["ddp"], "metrics": ["step_time"]}
    return Suite.model_validate({"checks": [{**check, **changes}]})


def written(folder: Path, text: str) -> Path:
    (folder / "plan.json").write_bytes((ROOT / "tests/golden/comparison-v1.json").read_bytes())
    path = folder / "xbench.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refused(folder: Path, text: str) -> tuple[str, str]:
    """The sentence, without the file's name, and the hint."""
    path = written(folder, text)
    with pytest.raises(SpecError) as caught:
        load_suite(path)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence.removeprefix(f"{path}: "), caught.value.hint or ""


def changed(old: str, new: str) -> str:
    assert WHOLE.count(old) >= 1
    return WHOLE.replace(old, new, 1)


def test_everything_that_it_may_say(tmp_path: Path) -> None:
    suite = load_suite(written(tmp_path, WHOLE))
    assert (suite.budget_minutes, suite.pairs, suite.alpha, suite.confirm) == (5.0, 12, 0.02, False)
    assert suite.thresholds == {"step_time": 0.075, "planned_step": 0.02, "buckets": 0.0}
    assert suite.checks[0] == Check(
        name="resnet18", workload="resnet18:batch-size=8,image-size=64", modes=("ddp", "optimal"),
        fabric="local:ranks=2", metrics=("buckets", "planned_step", "simulated_step", "step_time"),
        plan_from="plan.json", workers=64, expect_change="parameters 1 -> 2",
    )  # fmt: skip
    assert suite.checks[1].fabric == "local:ranks=2"
    assert len(suite.cases()) == 9


def test_what_it_need_not_say(tmp_path: Path) -> None:
    text = WHOLE[WHOLE.index("[[regress.check]]") :]
    suite = load_suite(written(tmp_path, text))
    assert (suite.budget_minutes, suite.pairs, suite.alpha, suite.confirm) == (10.0, None, 0.01, True)
    assert suite.thresholds == {}


def test_modes_are_written_as_everywhere_else(tmp_path: Path) -> None:
    text = changed('modes = ["ddp"]', 'modes = ["horovod:fusion=32.0"]').replace('["collectives"]', '["step_time"]')
    assert load_suite(written(tmp_path, text)).checks[1].modes == ("horovod:fusion=32",)


@pytest.mark.parametrize(
    ("old", "new", "sentence", "hint"),
    [
        ("pairs = 12", "pears = 12", "unknown key 'pears' in [regress]", "did you mean 'pairs'?"),
        ('modes = ["ddp"]', 'mode = ["ddp"]', "unknown key 'mode' in check 'small'", "did you mean 'modes'?"),
        ("workers = 64", 'gloo_threads = "plain"', "'gloo_threads' in check 'resnet18' is gone: XBENCH_HOST", ""),
        ("pairs = 12", 'heap = "keep"', "'heap' in [regress] is gone: XBENCH_HOST_TUNING=off", ""),
        ("workers = 64", "workers = 2000000",
         f"check 'resnet18': workers = 2000000: it has to be less than or equal to {MAX_WORKERS}", ""),
        ('name = "small"', 'nam = "small"', "unknown key 'nam' in [[regress.check]] number 2", "did you mean 'name'?"),
        ('buckets = "exact"', 'bukets = "exact"', "unknown metric 'bukets' in [regress.thresholds]",
         "did you mean 'buckets'?"),
        ('"7.5 %"', "0.05", "[regress.thresholds]: step_time = 0.05 has no unit", 'write "5 %"'),
        ('"7.5 %"', '"5"', "[regress.thresholds]: step_time = '5' has no unit", 'write it like "5 %"'),
        ('"7.5 %"', '"5 ms"', "[regress.thresholds]: the unit 'ms' of step_time = '5 ms' is not %",
         'write it like "5 %"'),
        ('"7.5 %"', '"5 pct"', "[regress.thresholds]: the unit 'pct' of step_time = '5 pct' is not %",
         'a threshold is a share: write "5 %"'),
        ('"7.5 %"', '"0 %"', "[regress.thresholds]: step_time = '0 %' is not above 0 % and at most 1000 %",
         'write it like "5 %"'),
        ('"7.5 %"', '"exact"', '[regress.thresholds]: step_time = "exact": no clock repeats a step exactly',
         'write it like "5 %"'),
        ('"7.5 %"', "true", "[regress.thresholds]: step_time = True is not a threshold", 'write it like "5 %"'),
        ('"ddp", "optimal"', '"ddp", "optimale"', "check 'resnet18': modes: unknown mode 'optimale'",
         "did you mean 'optimal'? (xbench list modes has them all)"),
        ('"ddp", "optimal"', '"ddp", "ddp"', "check 'resnet18': the mode 'ddp' stands twice", "write it once"),
        ('"ddp", "optimal"', '"ddp+compile"', "check 'resnet18': 'ddp+compile' compiles first", "write 'ddp'"),
        ('"ddp", "optimal"', '"auto:shard"', "check 'resnet18': 'auto:shard' plans its units", "write 'ddp'"),
        ('"ddp", "optimal"', '"crossover"', "check 'resnet18': 'crossover' needs two jobs, and a check trains one",
         "write 'optimal'"),
        ('"synthetic:layers=8"', '"resnet19"', "check 'small': workload: unknown workload 'resnet19'", "did you mean"),
        ('"local:ranks=2"', '"locale:ranks=2"', "check 'resnet18': fabric: unknown fabric 'locale'",
         "did you mean 'local'?"),
        ('"local:ranks=2"', '"auto"', "check 'resnet18': fabric 'auto' may be another one elsewhere",
         "name one, such as local:ranks=2"),
        ('["collectives"]', '["colectives"]', "check 'small': unknown metric 'colectives' in metrics",
         "did you mean 'collectives'?"),
        ('["collectives"]', '["xyzzy"]', "check 'small': unknown metric 'xyzzy' in metrics", "one of buckets, wire_"),
        ('["collectives"]', "[]", "check 'small': metrics has to be a list of at least one name",
         'write metrics = ["…"]'),
        ('["collectives"]', '"collectives"', "check 'small': metrics has to be a list of at least one name",
         'write metrics = ["…"]'),
        ('["collectives"]', '["collectives", "collectives"]',
         "check 'small': the metric 'collectives' stands twice", "write it once"),
        ('["collectives"]', '["planned_step"]',
         "check 'small': planned_step is computed from a record, and there is no plan_from to say from which record",
         "add plan_from"),
        ('["ddp"]', '["horovod"]', "check 'small': mode 'horovod' has no collectives", "give it a check of its own"),
        ('"ddp", "optimal"', '"ddp", "spb"', "check 'resnet18': mode 'spb' has no buckets",
         "give it a check of its own"),
        ('"local:ranks=2"', '"cluster"', "check 'resnet18': a check starts its ranks itself", "try local:ranks=2"),
        ('["ddp"]', '["mgwfbp"]',
         "check 'small': mode 'mgwfbp' follows a plan, and there is no plan_from to say from which record",
         "add plan_from"),
        ('"simulated_step", ', "", "check 'resnet18': workers says how many simulated_step simulates, and that is not "
         "among the metrics", 'add "simulated_step" to metrics, or leave workers out'),
        ('"plan.json"', '"plans.json"', "check 'resnet18': plan_from: there is no result file", "give a record.json"),
        ('"plan.json"', '"xbench.toml"', "check 'resnet18': plan_from: ", ""),
        ('name = "small"', 'name = "resnet18"', "two checks are named 'resnet18'", 'name one "resnet18-2"'),
        ('name = "small"', 'name = ""', "[[regress.check]] number 2: the name '' cannot be shown", "give it"),
        ('name = "small"\n', "", "[[regress.check]] number 2 has no 'name'", "add name = …"),
        ("budget_minutes = 5", "budget_minutes = 0", "[regress]: budget_minutes = 0: it has to be greater than 0", ""),
        ("pairs = 12", "pairs = true", "[regress]: pairs = True: it has to be a valid integer", ""),
        *(
            ('" parameters 1  -> 2"', repr(text),
             f"check 'resnet18': expect_change = {text!r} names no change of a workload",
             'write what the failed check says, such as "parameters 3159050 -> 3685130"')
            for text in ("true", "parameters 1", "1 -> 2", "colour red -> blue", "-> parameters 1")
        ),
        ("[regress]", "[regres]", "there is no table [regress]", "did you mean"),
        ("[regress.thresholds]", "[regress.treshholds]", "unknown key 'treshholds' in [regress]",
         "did you mean 'thresholds'?"),
        ("[regress.thresholds]", "[regres.thresholds]", "unknown key 'regres' in the file", "did you mean 'regress'?"),
        ("[regress]", "[other]\n[regress]", "unknown key 'other' in the file", "it takes regress"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_sentence(tmp_path: Path, old: str, new: str, sentence: str, hint: str) -> None:
    text = changed(old, new) if new != "[regres]" else "[regres]\npairs = 7\n"
    found, tip = refused(tmp_path, text)
    assert found.startswith(sentence)
    assert tip.startswith(hint)


def test_files_of_a_check_are_relative_to_the_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "sub"
    folder.mkdir()
    text = changed('"synthetic:layers=8"', '"models.py:make"').replace('"local:ranks=2"', '"emulated:from=plan.json"')
    written(folder, text)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models.py").touch()
    with pytest.raises(SpecError, match=r"check 'small': workload: there is no file 'models\.py'"):
        load_suite(Path("sub/xbench.toml"))
    (tmp_path / "models.py").rename(folder / "models.py")
    suite = load_suite(Path("sub/xbench.toml"))
    assert (suite.checks[0].fabric, suite.checks[1].workload) == ("emulated:from=plan.json", "models.py:make")
    assert Path.cwd() == tmp_path


def test_a_factory_that_would_be_the_same_on_both_sides_is_refused(tmp_path: Path) -> None:
    (tmp_path / "models.py").touch()
    sentence, hint = refused(tmp_path, changed("synthetic:layers=8", f"{tmp_path}/models.py:make"))
    assert sentence.startswith(f"check 'small': workload: the path '{tmp_path}/models.py' is absolute")
    assert "relative" in hint


def test_a_record_without_measurements_plans_nothing(tmp_path: Path) -> None:
    path = written(tmp_path, WHOLE)
    (tmp_path / "plan.json").write_bytes((ROOT / "tests/golden/tuned-v1.json").read_bytes())
    with pytest.raises(SpecError, match=r"plan_from: .* is a tuned record, which holds no measurements"):
        load_suite(path)


@pytest.mark.parametrize("text", ["", "[regress]\n", "[regress]\ncheck = []\n", "[regress]\ncheck = 3\n"])
def test_a_suite_that_watches_nothing_is_refused(tmp_path: Path, text: str) -> None:
    found, tip = refused(tmp_path, text)
    assert found.startswith("there is no ")
    assert "[[regress.check]]" in tip


def test_what_is_no_suite_at_all(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"there is no suite '.*xbench\.toml'") as caught:
        load_suite(tmp_path / "xbench.toml")
    assert caught.value.hint == "xbench regress init writes one"
    with pytest.raises(SpecError, match="cannot be read: Is a directory"):
        load_suite(tmp_path)
    assert "is not TOML: Expected '=' after a key" in refused(tmp_path, "regress\n")[0]
    (tmp_path / "latin.toml").write_bytes(b"[regress]\n# \xe9\n")
    with pytest.raises(SpecError, match="is not TOML"):
        load_suite(tmp_path / "latin.toml")


@pytest.mark.parametrize(("text", "share"), [("5 %", 0.05), ("5%", 0.05), (" 12.5 % ", 0.125), ("1000 %", 10.0)])
def test_thresholds_are_shares(text: str, share: float) -> None:
    assert parse_threshold("step_time", text) == pytest.approx(share)
