"""`xbench list`: every list, in each form."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from outcome import RUNS, Run, keep

from xbench.cluster.policies import POLICIES
from xbench.cluster.traces import TRACES
from xbench.commands.listing import MAX_NAMES, WHAT, listing
from xbench.errors import SpecError
from xbench.fabrics import FABRICS
from xbench.modes import MODES
from xbench.workloads import WORKLOADS, libraries, parse_workload, resolve


def listed(*words: str) -> str:
    result = CliRunner().invoke(listing, words, catch_exceptions=False, standalone_mode=False)
    return str(result.stdout)


def workloads(*words: str) -> str:
    return listed("workloads", *words)


def test_without_a_word_it_says_what_can_be_listed() -> None:
    assert [line.split()[0] for line in listed().splitlines()] == list(WHAT)


@pytest.mark.parametrize(
    ("what", "table"), [("modes", MODES), ("fabrics", FABRICS), ("policies", POLICIES), ("traces", TRACES)]
)
def test_a_table_is_listed_in_every_form(what: str, table: object) -> None:
    entries = list(table)
    out = listed(what)
    for entry in entries:
        assert sum(line.split()[0] == entry.name and entry.summary in line for line in out.splitlines()) == 1
    assert listed(what, "--names").splitlines() == [entry.name for entry in entries]
    rows = json.loads(listed(what, "--json", "--most", "2"))
    assert [(row["name"], row["summary"]) for row in rows] == [(one.name, one.summary) for one in entries[:2]]
    last = entries[-1].name
    assert last in listed(what, last.upper(), "--names").splitlines()
    with pytest.raises(SpecError, match="unknown"):
        listed(what, "zzz")


def test_a_paired_mode_names_its_carrier() -> None:
    assert "gradients exchanged with" in listed("modes", "crossover")
    assert [row["jobs"] for row in json.loads(listed("modes", "--json")) if row["carrier"]] == [2, 2, 2]


def test_names_are_plain_lines_that_parse() -> None:
    names = workloads("--names").splitlines()
    assert names == WORKLOADS.names()
    assert all(parse_workload(name).name == name for name in names)


def test_a_word_filters() -> None:
    assert workloads("BERT", "--names").splitlines() == ["bert-base", "bert-large"]
    with pytest.raises(SpecError) as caught:
        workloads("resnet51")
    assert caught.value.hint.startswith("did you mean 'resnet")


def test_json_holds_what_resolve_fills_in() -> None:
    rows = {row["name"]: row for row in json.loads(workloads("--json"))}
    assert rows["resnet50"]["parameters"] == 25_557_032
    assert rows["resnet50"]["cpu"] == {"batch_size": 4, "image_size": 96}
    for name, row in rows.items():
        spec = resolve(parse_workload(name), "cuda")
        assert row["cuda"] == spec.model_dump(include={"batch_size", "image_size", "seq_len"}, exclude_none=True)


def test_the_table_fits_in_eighty_columns_and_shows_each_workload() -> None:
    lines = [line.rstrip() for line in workloads().splitlines()]
    assert {line.split()[0] for line in lines if line} >= set(WORKLOADS.names())
    assert "resnet50                25.6 M  ≥ 1 px          4 × 96 px      64 × 224 px" in lines
    assert max(len(line) for line in lines if not line.startswith("synthetic:")) <= 80


def test_a_filtered_table_says_how_synthetic_is_written() -> None:
    assert "synthetic:layers=200,bytes=64k" in workloads("synth")
    assert "synthetic" not in workloads("vgg")


def test_the_models_of_libraries_are_behind_their_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        libraries, "registered", lambda _: ("inception_v4", *(f"vit_{number}" for number in range(MAX_NAMES)))
    )
    monkeypatch.setattr(libraries, "_is_installed", lambda prefix: True)
    assert workloads("hf/rob", "--names") == "hf/roberta\n"
    assert workloads("timm/incep").split() == ["timm/inception_v4"]
    assert json.loads(workloads("timm/incep", "--json"))[0]["summary"] == "timm's inception_v4"
    counted = workloads("timm/")
    assert "timm/inception… 1" in counted
    assert f"timm/vit… {MAX_NAMES}" in counted
    assert "vit_7" not in counted
    assert workloads("timm/", "--names").splitlines()[-1] == "timm/vit_59"
    bert = " ".join(workloads("hf/bert").splitlines()[1].split())
    assert bert == "hf/bert 110 M ≤ 512 tokens 2 × 32 tokens 32 × 128 tokens"
    whole = workloads()
    assert "timm/NAME: 61 models of timm: xbench list workloads timm/ lists them" in whole
    assert "hf/NAME: 15 models of transformers: xbench list workloads hf/ lists them" in whole
    for word, hint in (("inception_v4", "'timm/inception_v4'"), ("hf/bret", "'hf/bert'")):
        with pytest.raises(SpecError, match="unknown workload") as caught:
            workloads(word)
        assert hint in caught.value.hint


def test_a_library_that_is_missing_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "_is_installed", lambda prefix: False)
    assert "timm/NAME: models of timm: pip install 'timm>=" in workloads()
    for text in ("hf/", "hf/bert"):
        with pytest.raises(SpecError, match="hf/ names models of transformers, which is not installed") as caught:
            workloads(text)
        assert caught.value.hint.startswith("pip install 'transformers>=")


def test_runs_are_listed_newest_first_and_foreign_folders_hide_none(run: Run) -> None:
    (RUNS / "notes").mkdir(parents=True)
    keep("20260102-120000-profile-resnet18", "profile")
    keep("20260101-120000-live", "live")
    keep("20260104-120000-tune-resnet18", "comparison")
    keep("20260104-120000-tune-resnet18", "tuned", "tuned.json")
    (RUNS / "20260103-120000-broken").mkdir()
    (RUNS / "20260103-120000-broken" / "record.json").write_text("{")
    code, out, err = run("list", "runs")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "2026-03-01 12:00  tuned  resnet18 on shaped:hosts=2,rate=1gbit",
        "  auto trains resnet18 in 0.900 [0.880, 0.920] of DDP's time: 10 % less a step",
        "  results/runs/20260104-120000-tune-resnet18",
        "unreadable",
        "  'results/runs/20260103-120000-broken/record.json' is not whole JSON: it was cut off or is another",
        "  kind of file",
        "  results/runs/20260103-120000-broken",
        "2026-03-01 12:00  profile  resnet18 on shaped:hosts=2,rate=1gbit",
        "  optimal is predicted fastest: 548 ms a step, 0.0 % above the bound (simulated)",
        "  results/runs/20260102-120000-profile-resnet18",
        "2026-03-01 12:00  live  doubling on 2 slots, engine local",
        "  INCOMPLETE: it was interrupted.",
        "  results/runs/20260101-120000-live",
    ]


def test_a_long_list_of_runs_says_how_much_is_left_and_json_has_the_facts(run: Run) -> None:
    keep("20260101-120000-a", "profile")
    keep("20260102-120000-b", "live")
    code, out, err = run("list", "runs", "--most", "1", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == [
        {
            "path": "results/runs/20260102-120000-b",
            "kind": "live",
            "subject": "doubling on 2 slots, engine local",
            "headline": "INCOMPLETE: it was interrupted.",
            "created": "2026-03-01T12:00:00+00:00",
            "complete": False,
        }
    ]
    assert run("list", "runs", "--most", "1")[2] == "1 more: --most 2 lists them\n"
    assert run("list", "runs", "resnet18") == (0, "", "no runs in results/runs whose name holds 'resnet18'\n")
    assert run("list", "runs", "000-A", "--names")[:2] == (0, "results/runs/20260101-120000-a\n")
