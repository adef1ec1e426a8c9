"""`--backend sockets` where it cannot be: refused before anything is launched."""

from pathlib import Path

import pytest

from xbench import cli
from xbench.errors import SpecError
from xbench.fabrics import parse_fabric
from xbench.runtime.unavailable import backend_of, check_device, check_real
from xbench.schedules import parse_modes
from xbench.spec import RunSpec


def test_its_links_are_real() -> None:
    with pytest.raises(SpecError, match="--backend sockets sends through sockets, over links that are there"):
        check_real(parse_fabric("emulated:workers=8,rate=1gbit"), parse_modes("ddp"), "sockets")
    check_real(parse_fabric("local:ranks=2"), parse_modes("ddp"), "sockets")


def test_its_gradients_are_of_cpus() -> None:
    with pytest.raises(SpecError, match="--backend sockets sends gradients that CPUs compute") as caught:
        check_device("cuda", "sockets")
    assert caught.value.hint is not None
    assert "--device cpu" in caught.value.hint
    check_device("cuda", "torch")
    check_device("cpu", "sockets")


def test_the_record_says_what_carried() -> None:
    run = RunSpec(kind="comparison", workloads=(), fabric=parse_fabric("local:ranks=2"), collectives="sockets")
    assert backend_of(run) == "sockets"
    assert run.backend == "gloo"  # what ranks agree over


def test_a_wrong_backend_is_one_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    asked = ["compare", "transformer-tiny", "--backend", "socket", "--output", str(tmp_path)]
    assert cli.main(asked) == 2
    said = capsys.readouterr().err
    assert "'torch', 'sockets', 'horovod'" in said
    assert not list(tmp_path.iterdir())
