"""Policies by name: every one can be made, and what is wrong is one sentence."""

import inspect

import pytest

from xbench.cluster.policies import POLICIES, parse_policies, parse_policy
from xbench.cluster.policies.attained import Gittins, Las
from xbench.cluster.policies.doubling import Exploratory
from xbench.cluster.policies.fifo import Fixed
from xbench.errors import SpecError


@pytest.mark.parametrize("entry", list(POLICIES), ids=lambda entry: entry.name)
def test_options_are_the_constructor_s(entry) -> None:  # type: ignore[no-untyped-def]
    taken = set(inspect.signature(POLICIES.load(entry.name)).parameters)
    named = {keyword for keyword, _ in entry.facts.get("options", {}).values()} | set(entry.facts.get("fixed", {}))
    assert named == taken


def test_options_are_read() -> None:
    las = parse_policy("las:thresholds=60+600")
    assert isinstance(las, Las)
    assert las.thresholds == (60.0, 600.0)
    gittins = parse_policy("gittins:learn=on")
    assert isinstance(gittins, Gittins)
    assert gittins.learn
    tried = parse_policy("exploratory:trial=2min")
    assert isinstance(tried, Exploratory)
    assert tried.trial_s == 120.0
    fixed = parse_policy("fixed:gpus=16")
    assert isinstance(fixed, Fixed)
    assert fixed.gpus == 16
    assert parse_policies("gittins:thresholds=3600,learn=on, srtf") == ("gittins:thresholds=3600,learn=on", "srtf")
    with pytest.raises(SpecError, match="0 GPUs a job"):
        Fixed(0)


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("strf", "unknown policy 'strf'", "did you mean 'srtf'?"),
        ("doublin", "unknown policy 'doublin'", "did you mean 'doubling'?"),
        ("las:treshold=5", "unknown option 'treshold'", "did you mean 'thresholds'?"),
        ("srtf:learn=on", "unknown option 'learn'", "it takes no options"),
        ("fixed-4:gpus=2", "unknown option 'gpus'", "it takes no options"),
        ("las:thresholds=5+x", "thresholds=x is not a number", ""),
        ("las:thresholds=5+4", "do not rise", "3600+36000"),
        ("gittins:learn=yes", "learn=yes is neither on nor off", "learn=on"),
        ("fixed:gpus=0", "gpus=0 is out of range", "try gpus=1"),
        ("exploratory:trial=soon", "'soon' is not a duration", ""),
        ("exploratory:trial=0", "trials of 0 s", "trial=150"),
        ("exploratory:trial=1us", "trials of 1e-06 s", "trial=150"),
        ("crossover-pairs:order=sjff", "unknown order 'sjff'", "did you mean 'sjf'?"),
        ("crossover-pairs:gain=0", "would share for nothing", "gain=0.1"),
        ("crossover-pairs:ratio=-1", "below zero", "ratio=0.1"),
        ("crossover-pairs:memory=0", "holds no job", "memory=16GiB"),
        ("crossover-pairs:memory=much", "'much' is not a size", "25MiB"),
        ("crossover-pairs:k=2", "unknown option 'k'", ""),
        ("jigsaw:k=1", "k=1 levels are not 2 to 64", "k=4"),
        ("", "has no name", ""),
    ],
)
def test_what_is_wrong_is_said(text: str, said: str, hint: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_policy(text)
    assert said in str(caught.value)
    assert hint in (caught.value.hint or "")
