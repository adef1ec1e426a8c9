from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench.errors import SpecError
from xbench.modes import MODES, ModeInfo
from xbench.schedules import parse_mode, parse_modes
from xbench.spec import ModeSpec

NAMES = MODES.names()


def test_a_single_job_mode_carries_itself() -> None:
    assert parse_mode("optimal") == ModeSpec(text="optimal", name="optimal", carrier="optimal")


def test_a_paired_mode_has_a_carrier() -> None:
    assert parse_mode("crossover") == ModeSpec(text="crossover", name="crossover", carrier="optimal", paired=True)
    assert parse_mode("sequential").carrier == "ddp"
    assert parse_mode("crossover:mgwfbp") == ModeSpec(
        text="crossover:mgwfbp", name="crossover", carrier="mgwfbp", paired=True
    )


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("optimum", "unknown mode 'optimum'", "did you mean 'optimal'"),
        ("wfbp:fusion=3", "mode 'wfbp' takes no options", "write wfbp"),
        ("optimal:ddp", "mode 'optimal' takes no carrier", "write optimal"),
        ("crossover:optimum", "unknown carrier for crossover 'optimum'", "did you mean 'optimal'"),
        ("crossover:compute", "unknown carrier for crossover 'compute'", ""),
        ("crossover:sequential", "unknown carrier for crossover 'sequential'", ""),
        ("crossover:dear", "'dear' waits for them in it", "write crossover:optimal"),
        ("crossover:", "unknown carrier for crossover ''", "xbench list modes has"),
        ("crossover:process=2", "unknown option 'process'", "it takes no options"),
        ("crossover:,order=2", "unknown carrier for crossover ''", ""),
        ("", "unknown mode ''", "xbench list modes has"),
        ("fsdp2", "unknown mode 'fsdp2'", "FSDP2 is called fsdp"),
        ("ZeRO", "unknown mode 'ZeRO'", "ZeRO's first stage is called zero1"),
        ("deepspeed", "unknown mode 'deepspeed'", "torch's own are called zero1, fsdp and hsdp"),
        ("dp", "unknown mode 'dp'", "DistributedDataParallel is called ddp"),
    ],
)
def test_modes_that_cannot_be(text: str, message: str, hint: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        parse_mode(text)
    assert (caught.value.hint or "").startswith(hint)


def test_a_second_copy_is_the_same_mode_under_another_name() -> None:
    first, second = parse_modes("ddp,ddp@b")
    assert (second.text, second.name, second.carrier) == ("ddp@b", first.name, first.carrier)
    assert parse_modes("crossover:ddp@b")[0].text == "crossover:ddp@b"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has an empty place"),
        ("ddp,", "has an empty place"),
        ("ddp,@b", "has an empty place"),
        ("ddp,ddp", "'ddp' stands twice"),
        ("ddp@b,ddp@b", "'ddp@b' stands twice"),
        ("ddp@", "must be letters and digits"),
        ("ddp@b@c", "must be letters and digits"),
        ("ddp@1/2", "must be letters and digits"),
    ],
)
def test_lists_that_cannot_be(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_modes(text)


names = st.sampled_from(
    [*NAMES, "crossover:order=1", "crossover:ddp", "order=2", "ddp@a", "ddp@", "@", ":", "crossover:ddp@x",
     "crossover:crossover", " ", ""]
)  # fmt: skip


@given(st.text() | st.lists(names | st.text(":@,abc ", max_size=5), max_size=5).map(",".join))
def test_any_text_is_modes_or_a_spec_error(text: str) -> None:
    try:
        modes = parse_modes(text)
    except SpecError:
        return
    assert modes
    assert len({mode.text for mode in modes}) == len(modes)
    assert all(mode.name in NAMES and mode.carrier in NAMES for mode in modes)
    assert parse_modes(",".join(mode.text for mode in modes)) == modes


def test_options_stay_with_the_mode_before_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODES._all(), "given", ModeInfo("given", options=f"{__name__}:as_given"))
    modes = parse_modes("ddp,given:b=2, a=1,given@c,wfbp")
    assert [mode.text for mode in modes] == ["ddp", "given:b=2,a=1", "given@c", "wfbp"]
    assert modes[1].options == (("b", "2"), ("a", "1"))


def as_given(text: str, options: dict[str, str]) -> dict[str, str]:
    return options
