"""Words that were removed: each is refused in one sentence that names the new way, and none is still taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from xbench import cli
from xbench.errors import SpecError, unknown
from xbench.former_words import FORMER, former
from xbench.modes import MODES
from xbench.schedules import parse_mode
from xbench.spec import known_options

RESULTS = Path(__file__).parents[2] / "results"
TYPED: list[tuple[str, str]] = [
    ("compare --backend horovod", "the mode horovod"),
    ("validate --cells 24", "compare"),
    ("compare --gloo-threads plain", "XBENCH_HOST_TUNING=off"),
    ("cluster compare --trace alibaba:pai.csv", "a CSV of your own"),
    ("cluster fit runs.csv", "with scipy"),
    ("cluster restart resnet18 --repeats 3", "xbench cluster run JOBS.toml --restarts N"),
    ("cluster traces fetch itp", "xbench cluster compare --trace NAME"),
    ("cluster policies", "xbench list policies"),
    ("cluster traces list", "xbench list traces"),
    ("fabric", "xbench env --links SPEC"),
    ("fabric check shaped:hosts=2", "xbench env --links SPEC"),
    ("fabric clean", "xbench clean"),
    ("fabric list", "xbench list fabrics"),
    ("modes", "xbench list modes"),
    ("runs --most 3", "xbench list runs"),
    ("scale latest", "xbench plan PROFILE --workers 2..2048"),
    ("workloads resnet", "xbench list workloads"),
    ("compare --until 2% --minutes 5", "--until 2%,20min"),
    ("profile --trace rank0.json", "xbench trace FILE"),
    ("tune --heap=keep", "XBENCH_HOST_TUNING=off"),
    ("completion bash", "_XBENCH_COMPLETE=bash_source"),
    ("script --engine slurm compare resnet50", "launch files"),
    ("schema", "schema.json"),
    ("regress check --inject step=1.1", "slow the model down"),
    ("regress record --layer deterministic", "regress baseline"),
    ("regress calibrate", "regress baseline"),
    ("compare --copies fused", "as soon as it is ready"),
    ("profile --nvtx", "nsys profile"),
    ("compare --output here", "XBENCH_RESULTS"),
    ("compare --modes ddp,plain-ddp", "host tuning"),
    ("compare --modes crossover:processes=2", "concurrent"),
    ("compare --overlap forward", "auto:forward"),
    ("compare --fabric emulated:workers=4,rate=1gbit,topology=doubling", "ring or tree"),
    ("compare --rigorous", "--launches 8"),
    ("compare --steps 20", "--quick"),
    ("profile --steps 20", "--quick"),
    ("compare --modes fsdp-tuned", "auto:shard"),
    ("compare --modes auto:shard=on", "auto:shard"),
    ("compare --modes ddp+compile:reducer=python", "ddp+compile"),
    ("cluster compare --policies fifo,las:promote=8", "eight times"),
    ("cluster compare --policies gittins:promote=8", "eight times"),
    ("cluster compare --policies jigsaw:jobs=3", "two jobs"),
    ("cluster compare --policies exploratory:most=4", "eight GPUs"),
    ("cluster compare --policies exploratory:plain=on", "counts the restarts"),
    ("cluster compare --policies equal-share:plain=on", "counts the restarts"),
    ("cluster compare --policies optimus:plain=on", "counts the restarts"),
    ("cluster compare --policies doubling:plain=on", "counts the restarts"),
    (f"report {RESULTS}/matrix.json", "the study of predictions"),
]
"""Words that a user may still type, and what the refusal must say."""


@pytest.mark.parametrize(("typed", "phrase"), TYPED)
def test_a_former_word_is_refused_in_one_sentence(typed: str, phrase: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(typed.split()) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
    assert "is gone: " in err
    assert phrase in err


def test_an_option_that_another_command_still_has_is_gone_from_its_own_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["compare", "--trace", "x"]) == 2
    assert "is gone" not in capsys.readouterr().err


def test_the_table_has_no_word_that_is_taken() -> None:
    assert not [word for word in FORMER["command"] if word in cli.COMMANDS]
    assert not [word for word in FORMER["mode"] if word in MODES]
    assert former("mode", "ddp") is None
    for key in FORMER["key"]:
        name, _, word = key.rpartition(":")
        with pytest.raises(SpecError, match="is gone"):
            known_options(name, {word: "1"}, ())
        if name in MODES:
            with pytest.raises(SpecError):
                parse_mode(f"{key}=1")


def test_each_row_is_a_clause() -> None:
    for kind, found in FORMER.items():
        for word, instead in found.items():
            assert str(unknown(kind, word, ())) == f"{kind} {word!r} is gone: {instead}"
            assert not instead.endswith(".")
            assert "\n" not in instead
