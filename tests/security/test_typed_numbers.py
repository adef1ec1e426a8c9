"""Numbers on the command line: those that mean nothing are refused by the option's name, before anything is done."""

from __future__ import annotations

import pytest
from hostile import GOLDEN

from xbench import cli
from xbench.errors import SpecError
from xbench.units import parse_bytes, parse_rate, parse_seconds

PROFILE = str(GOLDEN / "profile-v1.json")
EXTREMES = ["nan", "inf", "-inf", "1e308", "-1", "9" * 400, "9" * 30, "\x1b[2J", "5e-324"]
COMPARE = ["cluster", "compare", "--trace", "generated:jobs=4,gpus=4", "--policies", "fifo", "--csv", "-"]
OPTIONS = {
    "--compute-scale": ["plan", PROFILE, "--workers", "2,4", "--modes", "ddp"],
    "--error-band": ["plan", PROFILE, "--workers", "2,4", "--modes", "ddp"],
    "--workers": ["plan", PROFILE, "--modes", "ddp"],
    "--rate": ["plan", PROFILE, "--modes", "ddp"],
    "--latency": ["plan", PROFILE, "--modes", "ddp"],
    "--restart-cost": [*COMPARE, "--gpus", "4"],
    "--gpus": COMPARE,
    "--gpus-per-host": [*COMPARE, "--gpus", "4"],
    "--across-hosts": [*COMPARE, "--gpus", "4", "--gpus-per-host", "2"],
    "--seeds": COMPARE,
    "--minutes": ["tune", "synthetic:layers=2"],
    "--margin": ["tune", "synthetic:layers=2"],
    "--lr": ["converge", "cnn-small"],
    "--timeout": ["compare", "synthetic:layers=2"],
    "--batch-size": ["compare", "resnet18"],
}


@pytest.mark.parametrize("extreme", EXTREMES)
@pytest.mark.parametrize("option", OPTIONS)
def test_a_number_that_means_nothing_is_refused(
    option: str, extreme: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(*_: object, **__: object) -> None:
        raise AssertionError("it would have started")

    monkeypatch.setattr("subprocess.Popen.__init__", started)
    if (option, extreme) == ("--margin", "5e-324"):
        pytest.skip("a margin as small as that asks for any gain at all")
    code = cli.main([*OPTIONS[option], option, extreme])
    out, told = capsys.readouterr()
    assert "bug in xbench" not in told
    assert "\x1b" not in told
    if code == 0:  # a tiny number may be as good as nothing
        assert "nan" not in out
        assert "inf" not in out
    else:
        assert code == 2, told
        assert told.count("error: ") == 1
        assert len(told.splitlines()[-1]) < 1000


@pytest.mark.parametrize(
    ("parse", "text"),
    [(parse_seconds, "9" * 300), (parse_seconds, "9" * 400 + "s"), (parse_seconds, "100000000000s"),
     (parse_bytes, "9" * 300), (parse_bytes, "9999999999999GiB"), (parse_rate, "9" * 300 + "gbit"),
     (parse_rate, "0.000000000000001bit"), (parse_rate, "0.0gbit"), (parse_rate, "99999999999999tbit")],
)  # fmt: skip
def test_quantities_have_bounds(parse: object, text: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(text)  # type: ignore[operator]
    assert len(str(caught.value)) < 200
