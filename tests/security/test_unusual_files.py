"""Files that are no records, jobs, suites or traces, and hostile ones: each ends in one sentence and exit code 2."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hostile import GOLDEN, is_sentence

from xbench import cli, toml_config
from xbench.cluster.live.jobs_file import load_jobs
from xbench.cluster.traces import load_trace, reading
from xbench.errors import SpecError, XbenchError
from xbench.record_files import read_regular
from xbench.records import io as record_io
from xbench.records import load, loads
from xbench.regress import load_suite

PROFILE = json.loads((GOLDEN / "profile-v1.json").read_text(encoding="utf-8"))
TRACE = Path(__file__).parents[2] / "examples" / "trace.csv"


def refused(call: Callable[..., Any], *arguments: Any) -> XbenchError:
    with pytest.raises(XbenchError) as caught:
        call(*arguments)
    assert is_sentence(caught.value), (str(caught.value)[:300], caught.value.hint)
    return caught.value


def changed(**fields: Any) -> str:
    return json.dumps({**PROFILE, **fields})


RECORDS = {
    "empty": "", "nul": "\0" * 100, "bom": "\ufeff" + json.dumps(PROFILE), "deep list": "[" * 200_000 + "]" * 200_000,
    "deep dict": '{"a":' * 100_000 + "1" + "}" * 100_000, "list": "[1]", "number": "1e400", "text": '"x"',
    "deep field": '{"schema_version":1,"kind":"profile","layers":' + "[" * 900 + "]" * 900 + "}",
    "deep field 2": '{"schema_version":1,"kind":"profile","plans":' + '{"a":' * 900 + "1" + "}" * 900 + "}",
    "huge number": '{"schema_version":1,"kind":"profile","x":' + "9" * 5000 + "}",
    "huge version": '{"schema_version":' + "9" * 4000 + ',"kind":"profile"}',
    "nan": json.dumps(PROFILE).replace('"complete": true', '"complete": NaN'), "true": changed(schema_version=True),
    "infinite version": '{"schema_version":Infinity,"kind":"profile"}', "version 1.0": changed(schema_version=1.0),
    "version 0": changed(schema_version=0), "version text": changed(schema_version="\x1b[2J\n"),
    "kind list": changed(kind=["a"] * 10_000), "long kind": changed(kind="k" * 100_000), "no kind": changed(kind=None),
    "control kind": changed(kind="\x1b]0;pwn\x07\x1b[2J\n::error::x"), "unknown field": changed(**{"\x1b[31mX\nY": 1}),
    "many fields": changed(**{f"x{number}": 1 for number in range(10_000)}), "cut": json.dumps(PROFILE)[:-9],
    "half a pair": changed(command="\ud800"), "trailing": json.dumps(PROFILE) + "x", "other": '{"benchmarks": []}',
    "another kind": json.dumps(PROFILE)[:-1] + ',"kind":"comparison"}',
}  # fmt: skip


@pytest.mark.parametrize("name", RECORDS)
def test_a_file_that_is_no_record(name: str, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text(RECORDS[name], encoding="utf-8", errors="surrogatepass")
    refused(load, path)
    refused(loads, RECORDS[name], "\x1b[2J\n::error::" + "x" * 5000)


@pytest.fixture(params=["fifo", "zero", "random", "folder", "loop", "sparse", "latin", "missing", "nul", "long",
                        "control", "memory", "utf-16"])  # fmt: skip
def strange(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A path at which there is no file of text."""
    kind, path = request.param, tmp_path / "strange.csv"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        (path / "record.json").mkdir(parents=True)
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "sparse":
        with path.open("wb") as stream:
            stream.truncate(8 << 30)
    elif kind == "latin":
        path.write_bytes(b'{"a": "\xff"}')
    elif kind == "utf-16":
        path.write_bytes(json.dumps(PROFILE).encode("utf-16"))
    named = {"zero": "/dev/zero", "random": "/dev/urandom", "nul": "a\0b", "long": f"/{'x' * 5000}",
             "control": "/tmp/\x1b]0;pwn\x07\n::error::x", "memory": "/proc/self/mem"}  # fmt: skip
    return Path(named.get(kind, str(path)))


@pytest.mark.parametrize("reader", [load, load_jobs, load_suite, reading.read_text, reading.read_archive],
                         ids=lambda reader: reader.__name__)  # fmt: skip
def test_what_is_no_file_of_text_is_refused_at_once(
    reader: Callable[[Path], Any], strange: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (record_io, toml_config, reading):
        monkeypatch.setattr(module, "MAX_BYTES", 1 << 16)  # or a sparse file would be read for a while
    if "\0" in str(strange) and reader in (reading.read_text, reading.read_archive):
        pytest.skip("a trace's path comes from the command line, which cannot hold a NUL")
    with pytest.raises(XbenchError) as caught:
        reader(strange)
    assert caught.value.exit_code == 2


def test_a_bounded_file_is_read_to_its_last_byte(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 1000)
    assert read_regular(path, 1000) == b"x" * 1000
    with pytest.raises(OSError, match="larger than 0 MiB"):
        read_regular(path, 999)
    (tmp_path / "link").symlink_to(path)
    assert read_regular(tmp_path / "link", 1000) == b"x" * 1000


def test_the_command_line_says_it_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert cli.main(["report", str(tmp_path / "fifo")]) == 2
    told = capsys.readouterr().err
    assert "it is no regular file" in told
    assert len(told.splitlines()) == 1
    (tmp_path / "deep.toml").write_text("a = " + "[" * 3000 + "]" * 3000, encoding="utf-8")
    assert cli.main(["regress", "check", "--config", str(tmp_path / "deep.toml")]) == 2
    assert "nested too deeply" in capsys.readouterr().err


JOB = '[[job]]\nname = "a"\nworkload = "synthetic:layers=4,bytes=64k"\nsteps = 4\nbatch_size = 4\n'
TOML = {
    "deep": "a = " + "[" * 3000 + "]" * 3000, "deeper": "a = " + "[" * 100_000,
    "deep tables": "a = " + "{a=" * 3000 + "1" + "}" * 3000, "dots": ".".join(["a"] * 100_000) + " = 1",
    "spaced dots": " . ".join(['"a"'] * 20_000) + " = 1", "dots inside": "a = { " + ".".join(["a"] * 50_000) + " = 1 }",
    "tables": "".join(f"[{'.'.join(['a'] * count)}]\n" for count in range(1, 400)), "large": "#" * (2 << 20),
    "huge number": JOB + "seed = " + "9" * 5000, "large number": JOB + "seed = 99999999999999999999",
    "nan": JOB + "arrival_s = nan", "infinite": JOB + "arrival_s = inf", "before": JOB + "arrival_s = -1",
    "never": JOB + "arrival_s = 1e308", "steps 0": JOB.replace("steps = 4", "steps = 0"),
    "steps 4.0": JOB.replace("steps = 4", "steps = 4.0"), "steps text": JOB.replace("steps = 4", 'steps = "4"'),
    "cluster list": "cluster = [1]\n" + JOB, "job text": 'job = "x"', "control key": JOB + '"\\u001b[2J" = 1',
    "long key": JOB + f'"{"k" * 50_000}" = 1', "speeds 0": JOB + "speeds = { 0 = 1.0 }",
    "speeds below 0": JOB + "speeds = { 1 = -1.0 }", "speeds nan": JOB + "speeds = { 1 = nan }",
    "speeds above all": JOB + "speeds = { 1 = 1e308 }",
    "ring of two": JOB + "ring = { theta = [1,2], model_bytes = 1 }",
    "ring below 0": JOB + "ring = { theta = [-1.0,-2.0,-3.0,-4.0], model_bytes = 1.0 }",
    "other scale": JOB + 'scale = "/etc/passwd"', "device scale": JOB + 'scale = "/dev/zero"',
    "nul scale": JOB + 'scale = "a\\u0000"', "nul": JOB.replace("\n", "\r\n") + "\0",
    "control workload": JOB.replace("synthetic:", "\\u001b]0;x\\u0007"),
    "no file": JOB.replace("synthetic:", "../x.py:"),
    "huge workload": JOB.replace("layers=4", "layers=999999999999"),
    "huge bytes": JOB.replace("64k", "9" * 400),
} | {
    f"name {name[:9]!r}": JOB.replace('"a"', f'"{name}"')
    for name in ("../../x", "/etc/x", "..", "\\u001b[2J", "a\\nb", "a\\u0000b", "", "x" * 5000, "\\u202e")
}  # fmt: skip


@pytest.mark.parametrize("name", TOML)
def test_a_toml_file_that_is_wrong(name: str, tmp_path: Path) -> None:
    path = tmp_path / "some.toml"
    path.write_text(TOML[name], encoding="utf-8", newline="")
    refused(load_jobs, path)
    refused(load_suite, path)


def test_dots_in_values_and_short_keys_are_no_deep_keys(tmp_path: Path) -> None:
    path = tmp_path / "some.toml"
    path.write_text(f'a = [{", ".join(["1.5"] * 500)}]\nb = "{"a." * 50}"\nc.d.e = 1\r\n', encoding="utf-8")
    found = toml_config.read_toml(path, SpecError("missing"))
    assert len(found["a"]) == 500
    assert found["c"] == {"d": {"e": 1}}


def trace(tmp_path: Path, text: str | bytes, name: str = "jobs.csv") -> str:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


HEAD, *ROWS = TRACE.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("column", HEAD.split(","))
@pytest.mark.parametrize(
    "cell", ["nan", "inf", "-1", "1e308", "9" * 400, "5e-324", "=cmd|x", "\x1b]0;x\x07", "y" * 9999]
)
def test_a_cell_that_is_wrong_is_refused_or_harmless(column: str, cell: str, tmp_path: Path) -> None:
    cells = dict(zip(HEAD.split(","), ROWS[0].split(","), strict=True)) | {column: cell}
    path = trace(tmp_path, "\n".join([HEAD, ",".join(cells.values()), *ROWS[1:]]))
    try:
        found = load_trace(path)
    except SpecError as error:
        problem = error
    else:
        assert column in ("name", "application", "arrival_s") or cell in ("-1", "5e-324")
        assert all(job.duration_s < 1e30 for job in found.jobs)
        return
    assert is_sentence(problem), (str(problem)[:200], problem.hint)


@pytest.mark.parametrize("text", ["", HEAD, "a" * 300_000, HEAD + '\n"' + "\n".join(ROWS), f"\x1b[2J,{HEAD}\n",
                                  ",".join([HEAD, *(f"c{number}" for number in range(100_000))]), "\0\1\2",
                                  json.dumps([{"jobid": number, "attempts": []} for number in range(60_000)])],
                         ids=["empty", "head", "long", "quote", "control", "columns", "binary", "json"])  # fmt: skip
def test_a_trace_that_is_none(text: str, tmp_path: Path) -> None:
    refused(load_trace, trace(tmp_path, text))


def test_many_columns_are_refused_where_any_name_is_allowed() -> None:
    refused(reading.parse_table, ",".join(f"c{number}" for number in range(100_000)), "wide.csv", ())


@pytest.mark.parametrize("column", ["exposed", "forward_share", "step_s", "memory_bytes"])
def test_facts_beyond_their_range_are_refused_whatever_the_policy(column: str, tmp_path: Path) -> None:
    value = {"exposed": "1.5", "forward_share": "1", "step_s": "0", "memory_bytes": "-1"}[column]
    error = refused(load_trace, trace(tmp_path, f"name,arrival_s,gpus,duration_s,{column}\na,0,1,10,{value}\n"))
    assert column in str(error)


def test_what_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_BYTES", 1 << 20)
    packed = gzip.compress(b"0" * (4 << 20))
    assert "larger than 1 MiB" in str(refused(load_trace, trace(tmp_path, packed, "bomb.csv.gz")))
    inside = io.BytesIO()
    with tarfile.open(fileobj=inside, mode="w:gz") as archive:
        member = tarfile.TarInfo("a.csv")
        member.size = 4 << 20
        archive.addfile(member, io.BytesIO(bytes(member.size)))
    path = trace(tmp_path, inside.getvalue(), "bomb.tar.gz")
    assert "larger than 1 MiB" in str(refused(load_trace, f"itp:{path}"))


def test_members_of_an_archive_are_read_and_never_written(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        outside = tarfile.TarInfo("../../outside.csv")
        outside.size = 8
        archive.addfile(outside, io.BytesIO(b"a,b\n1,2\n"))
        link = tarfile.TarInfo("link.csv")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    refused(load_trace, f"itp:{trace(tmp_path, packed.getvalue(), 'some.tar.gz')}")
    assert [path.name for path in tmp_path.iterdir()] == ["some.tar.gz"]
    assert not (tmp_path.parent / "outside.csv").exists()


@pytest.mark.parametrize("asked", ["jobs=999999999", "jobs=5,load=1e308", "jobs=5,load=5e-324", "jobs=5,mean_s=1e308",
                                   "jobs=5,mean_s=nan", "jobs=5,arrivals=bursty,burst=1e308", "jobs=" + "9" * 5000,
                                   "jobs=5,gpus=" + "9" * 400])  # fmt: skip
def test_a_generated_trace_is_of_a_size_that_can_be_made(asked: str) -> None:
    refused(load_trace, f"generated:{asked}")
