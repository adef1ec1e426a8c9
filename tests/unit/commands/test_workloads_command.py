"""`xbench workloads`: the listing."""

import json

import pytest
from click.testing import CliRunner

from xbench.commands.workloads import MAX_NAMES, workloads
from xbench.errors import SpecError
from xbench.workloads import WORKLOADS, libraries, parse_workload, resolve


def run(*args):
    result = CliRunner().invoke(workloads, args, catch_exceptions=False, standalone_mode=False)
    return result.stdout


def test_names_are_plain_lines_that_parse():
    names = run("--names").splitlines()
    assert names == WORKLOADS.names()
    assert all(parse_workload(name).name == name for name in names)


def test_a_word_filters():
    assert run("BERT", "--names").splitlines() == ["bert-base", "bert-large"]
    with pytest.raises(SpecError) as caught:
        CliRunner().invoke(workloads, ["resnet51"], catch_exceptions=False, standalone_mode=False)
    assert caught.value.hint.startswith("did you mean 'resnet")


def test_json_holds_what_resolve_fills_in():
    rows = {row["name"]: row for row in json.loads(run("--json"))}
    assert rows["resnet50"]["parameters"] == 25_557_032
    assert rows["resnet50"]["cpu"] == {"batch_size": 4, "image_size": 96}
    for name, row in rows.items():
        spec = resolve(parse_workload(name), "cuda")
        assert row["cuda"] == spec.model_dump(include={"batch_size", "image_size", "seq_len"}, exclude_none=True)


def test_names_and_json_are_not_both_printed():
    with pytest.raises(SpecError, match="--names and --json exclude each other"):
        CliRunner().invoke(workloads, ["--names", "--json"], catch_exceptions=False, standalone_mode=False)


def test_the_table_fits_in_eighty_columns_and_shows_each_workload():
    lines = [line.rstrip() for line in run().splitlines()]
    assert {line.split()[0] for line in lines if line} >= set(WORKLOADS.names())
    assert "resnet50                25.6 M  ≥ 1 px          4 × 96 px      64 × 224 px" in lines
    assert max(len(line) for line in lines if not line.startswith("synthetic:")) <= 80


def test_a_filtered_table_says_how_synthetic_is_written():
    assert "synthetic:layers=200,bytes=64k" in run("synth")
    assert "synthetic" not in run("vgg")


def test_the_models_of_libraries_are_behind_their_prefix(monkeypatch):
    monkeypatch.setattr(
        libraries, "registered", lambda _: ("inception_v4", *(f"vit_{number}" for number in range(MAX_NAMES)))
    )
    monkeypatch.setattr(libraries, "_is_installed", lambda prefix: True)
    assert run("hf/rob", "--names") == "hf/roberta\n"
    assert run("timm/incep").split() == ["timm/inception_v4"]
    assert json.loads(run("timm/incep", "--json"))[0]["summary"] == "timm's inception_v4"
    counted = run("timm/")
    assert "timm/inception… 1" in counted
    assert f"timm/vit… {MAX_NAMES}" in counted
    assert "vit_7" not in counted
    assert run("timm/", "--names").splitlines()[-1] == "timm/vit_59"
    bert = " ".join(run("hf/bert").splitlines()[1].split())
    assert bert == "hf/bert 110 M ≤ 512 tokens 2 × 32 tokens 32 × 128 tokens"
    whole = run()
    assert "timm/NAME: 61 models of timm: xbench workloads timm/ lists them" in whole
    assert "hf/NAME: 15 models of transformers: xbench workloads hf/ lists them" in whole
    for word, hint in (("inception_v4", "'timm/inception_v4'"), ("hf/bret", "'hf/bert'")):
        with pytest.raises(SpecError, match="unknown workload") as caught:
            CliRunner().invoke(workloads, [word], catch_exceptions=False, standalone_mode=False)
        assert hint in caught.value.hint


def test_a_library_that_is_missing_names_its_package(monkeypatch):
    monkeypatch.setattr(libraries, "_is_installed", lambda prefix: False)
    assert "timm/NAME: models of timm: pip install 'timm>=" in run()
    for text in ("hf/", "hf/bert"):
        with pytest.raises(SpecError, match="hf/ names models of transformers, which is not installed") as caught:
            CliRunner().invoke(workloads, [text], catch_exceptions=False, standalone_mode=False)
        assert caught.value.hint.startswith("pip install 'transformers>=")
