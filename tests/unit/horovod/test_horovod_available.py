"""Horovod that is missing, or of another torch, is told apart without importing it."""

from __future__ import annotations

from pathlib import Path

import pytest

from xbench import horovod
from xbench.commands.listing import listing
from xbench.errors import SpecError
from xbench.runs.prepare import check_available, check_real
from xbench.schedules import parse_modes
from xbench.spec import FabricSpec

MISSING = "Horovod is not installed"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Horovod that says it was built against torch 2.11.0."""
    place = tmp_path / "horovod"
    place.mkdir()
    (place / "__init__.py").write_text("raise AssertionError('imported')")
    (place / "metadata.json").write_text('{\n"pytorch": "2.11.0+cu128",\n}')
    monkeypatch.syspath_prepend(str(tmp_path))
    return place


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horovod, "folder", lambda: None)


def versions(monkeypatch: pytest.MonkeyPatch, torch: str) -> None:
    monkeypatch.setattr(horovod, "version_of", {"torch": torch, "horovod": "0.28.1"}.get)


def test_a_horovod_of_another_torch_is_named_with_both(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    versions(monkeypatch, "2.15.0")
    assert horovod.folder() == package
    assert horovod.obstacle() == "Horovod was built against torch 2.11.0, and torch 2.15.0 is installed"


@pytest.mark.parametrize("torch", ["2.11.0", "2.11.0+cpu"])
def test_a_horovod_of_this_torch_is_none(package: Path, monkeypatch: pytest.MonkeyPatch, torch: str) -> None:
    versions(monkeypatch, torch)
    assert horovod.obstacle() is None


def test_a_horovod_that_does_not_say_is_tried(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (package / "metadata.json").unlink()
    versions(monkeypatch, "2.15.0")
    assert horovod.built_against() is None
    assert horovod.obstacle() is None


def test_a_folder_of_that_name_is_no_horovod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "horovod").mkdir()
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    assert horovod.folder() is None
    assert horovod.obstacle() == MISSING


@pytest.mark.usefixtures("missing")
def test_the_list_of_modes_names_what_installs_it(capsys: pytest.CaptureFixture[str]) -> None:
    listing.main(["modes"], standalone_mode=False)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  horovod ")]
    assert line.endswith("[unavailable: Horovod is not installed; make horovod in a checkout of xbench]")


@pytest.mark.usefixtures("missing")
def test_the_other_modes_run() -> None:
    assert check_available(parse_modes("compute,ddp,horovod"), None) == [
        "mode horovod cannot run here: Horovod is not installed (make horovod in a checkout of xbench builds it)"
    ]
    assert check_available(parse_modes("ddp,wfbp"), None) == []


@pytest.mark.usefixtures("missing")
@pytest.mark.parametrize("modes", ["horovod", "compute,horovod:cycle=5", "sequential:horovod,horovod"])
def test_no_mode_that_could_run_is_an_error(modes: str) -> None:
    with pytest.raises(SpecError, match=f"cannot run here: {MISSING}") as caught:
        check_available(parse_modes(modes), None)
    assert caught.value.hint == "make horovod in a checkout of xbench builds it"


def test_its_collectives_are_real() -> None:
    emulated = FabricSpec(name="emulated", workers=64, rate="1gbit")
    with pytest.raises(SpecError, match="mode 'crossover:horovod' sends by Horovod itself"):
        check_real(emulated, parse_modes("ddp,crossover:horovod"))
    check_real(emulated, parse_modes("ddp,wfbp"))
    check_real(FabricSpec(name="local", ranks=2), parse_modes("horovod"))
