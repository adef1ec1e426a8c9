"""`xbench workloads`: the listing."""

import json

import pytest
from click.testing import CliRunner

from xbench.commands.workloads import workloads
from xbench.errors import SpecError
from xbench.workloads import WORKLOADS, parse_workload, resolve


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


def test_the_table_fits_in_eighty_columns_and_shows_each_workload():
    lines = [line.rstrip() for line in run().splitlines()]
    assert {line.split()[0] for line in lines if line} >= set(WORKLOADS.names())
    assert "resnet50                25.6 M  ≥ 1 px          4 × 96 px      64 × 224 px" in lines
    assert max(len(line) for line in lines if not line.startswith("synthetic:")) <= 80


def test_a_filtered_table_says_how_synthetic_is_written():
    assert "synthetic:layers=200,bytes=64k" in run("synth")
    assert "synthetic" not in run("vgg")
