from __future__ import annotations

import gzip
import hashlib
import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cluster_cases import shared, write

from xbench.cluster.traces.fetch import PUBLIC, PublicFile, PublicTrace, fetch
from xbench.errors import SpecError, XbenchError

CONTENT = "name,arrival_s,gpus,duration_s\na,0,1,5\n"


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """Serves tmp_path/remote, where there is my.csv."""
    write(tmp_path / "remote" / "my.csv", *CONTENT.splitlines())
    http = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(tmp_path / "remote")))
    thread = threading.Thread(target=http.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{http.server_port}"
    http.shutdown()
    thread.join()
    http.server_close()


def _known(url: str, content: str = CONTENT) -> dict[str, PublicTrace]:
    file = PublicFile("my.csv", url, hashlib.sha256(content.encode()).hexdigest())
    return {"mine": PublicTrace("mine", "one job", "none", ("plain", "my.csv"), (file,))}


def test_a_file_is_fetched_once(tmp_path: Path, server: str) -> None:
    known = _known(f"{server}/my.csv")
    path = tmp_path / "here" / "mine" / "my.csv"
    assert fetch("mine", tmp_path / "here", known) == [path]
    assert path.read_text() == CONTENT
    (tmp_path / "remote" / "my.csv").unlink()
    assert fetch("mine", tmp_path / "here", known) == [path]
    assert known["mine"].spec(tmp_path / "here") == f"plain:{path}"
    path.write_text("mine")
    with pytest.raises(SpecError, match="another file"):
        fetch("mine", tmp_path / "here", known)
    assert path.read_text() == "mine"
    path.unlink()
    with pytest.raises(XbenchError, match="cannot be fetched: 404") as raised:
        fetch("mine", tmp_path / "here", known)
    assert raised.value.hint == f"bring {server}/my.csv here by other means and put it at {path}"


def test_another_file_does_not_get_the_name(tmp_path: Path, server: str) -> None:
    with pytest.raises(XbenchError, match="is not the file that was published"):
        fetch("mine", tmp_path / "here", _known(f"{server}/my.csv", "other"))
    assert list((tmp_path / "here" / "mine").iterdir()) == []


def test_no_network_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(XbenchError, match=r"^http://127\.0\.0\.1:1/my\.csv cannot be reached: ") as raised:
        fetch("mine", tmp_path / "here", _known("http://127.0.0.1:1/my.csv"))
    assert "\n" not in str(raised.value)
    assert list((tmp_path / "here" / "mine").iterdir()) == []
    (tmp_path / "file").write_text("a file")
    with pytest.raises(XbenchError, match="cannot be written"):
        fetch("mine", tmp_path / "file", _known("http://127.0.0.1:1/my.csv"))


def test_an_unknown_name_has_a_nearest(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="unknown public trace 'polux'") as raised:
        fetch("polux", tmp_path)
    assert raised.value.hint == "did you mean 'pollux'? (xbench list traces has them all)"


def test_every_public_file_has_an_address_and_a_hash() -> None:
    assert list(PUBLIC) == ["itp", "philly", "pollux", "alibaba"]
    for name, trace in PUBLIC.items():
        assert trace.name == name
        assert trace.summary
        assert trace.licence
        for file in trace.files:
            assert file.url.startswith("https://")
            assert re.fullmatch(r"[0-9a-f]{64}", file.sha256)
    assert PUBLIC["itp"].spec(Path("t")) == "itp:t/itp/raw-traces.tar.gz"
    assert PUBLIC["pollux"].spec(Path("t")) == "pollux:t/pollux"


def test_the_hashes_are_those_of_the_files_that_the_loaders_are_tested_with() -> None:
    assert PUBLIC["itp"].files[0].sha256 == _sha256(shared("itp/raw-traces.tar.gz"))
    unpacked = gzip.decompress(shared("philly/philly.csv.gz").read_bytes())
    assert PUBLIC["philly"].files[0].sha256 == hashlib.sha256(unpacked).hexdigest()
    assert len(PUBLIC["pollux"].files) == 18
    for file in PUBLIC["pollux"].files:
        assert file.sha256 == _sha256(shared(f"pollux/{file.path}"))


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
