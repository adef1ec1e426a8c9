"""F: odd environments: variables, paths, users, and a machine without this or that. H: outputs and terminals."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from .case import TRUE_OF_ANY, Case, after_signal, case, closed_ancestor, compare, needs_of
from .faults import at, to_parent
from .harness import MODEL, Start, observe
from .observation import Observation
from .verdict import DONE, FAILED, INTERRUPTED, USAGE, Expected

WELL = Expected(codes=(DONE,))
ANY = Expected(codes=TRUE_OF_ANY)
AS_NOBODY = """set -e
if [ -n "{hidden}" ]; then
    mkdir -p "{kept}"; mount --bind "{shown}" "{kept}"
    mount -t tmpfs -o mode=755 tmpfs "{hidden}"; mkdir -p "{shown}"; mount --bind "{kept}" "{shown}"
fi
exec setpriv --reuid=65534 --regid=65534 --clear-groups "$@"
"""
"""In a mount namespace of its own, where an interpreter below a closed home is shown through it."""


VARIABLES: dict[str, tuple[Expected, dict[str, str | None]]] = {
    "home-unset": (WELL, {"HOME": None}),
    "lang-C": (WELL, {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
    "lang-latin1": (WELL, {"PYTHONIOENCODING": "latin-1"}),
    "path-empty": (WELL, {"PATH": ""}),
    "columns-1": (WELL, {"COLUMNS": "1"}),
    "columns-junk": (WELL, {"COLUMNS": "abc", "LINES": "-5"}),
    "tmpdir-missing": (WELL, {"TMPDIR": "/nonexistent/folder"}),
    "stale-rank": (WELL, {"MASTER_ADDR": "10.255.255.1", "MASTER_PORT": "1", "RANK": "7",
                                               "WORLD_SIZE": "9", "LOCAL_RANK": "3"}),
    "stale-master": (WELL, {"MASTER_ADDR": "10.255.255.1", "MASTER_PORT": "1"}),
    "stale-openmpi": (WELL, {"OMPI_COMM_WORLD_RANK": "x"}),
    "stale-slurm": (WELL, {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "1"}),
    "gloo-interface": (ANY, {"GLOO_SOCKET_IFNAME": "nope0"}),
    "omp-0": (ANY, {"OMP_NUM_THREADS": "0"}),
    "python-optimize": (WELL, {"PYTHONOPTIMIZE": "2"}),
    "python-warnings": (ANY, {"PYTHONWARNINGS": "error"}),
    "python-unbuffered": (WELL, {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}),
    "http-proxy": (WELL, {"http_proxy": "http://10.0.0.1:1", "https_proxy": "http://10.0.0.1:1",
                          "all_proxy": "socks5://10.0.0.1:1"}),
    "no-colour": (WELL, {"NO_COLOR": "1", "TERM": "dumb"}),
}  # fmt: skip

FOLDERS = {
    "space": "a b", "unicode": "é中😀", "newline": "a\nb", "quote": "a'b\"c", "dollar": "$(id)`x`",
    "surrogate": os.fsdecode(b"a\xffb"), "percent": "%s{x}[bold]", "hyphen": "-rf", "long": "d" * 120 + "/" + "e" * 120,
}  # fmt: skip
"""Names of folders, in which the model lies and the output is written."""

HOSTS = 'echo "127.0.0.1 localhost" > "$0/hosts"; mount --bind "$0/hosts" /etc/hosts'
MACHINES: dict[str, tuple[str, Expected, str, str]] = {
    "hostname-unresolvable": ("-m -u", WELL, "local", f"hostname nowhere-xyz; {HOSTS}"),
    "hostname-unresolvable-shaped": ("-m -u", WELL, "shaped", f"hostname nowhere-xyz; {HOSTS}"),
    "hostname-long": ("-m -u", WELL, "shaped", "hostname $(printf 'h%.0s' $(seq 64))"),
    "no-loopback-address": ("-m -n", ANY, "local", "ip link set lo up; ip addr del 127.0.0.1/8 dev lo"),
    "no-loopback": ("-m -n", ANY, "local", "true"),
    "loopback-alone": ("-m -n", WELL, "local", "ip link set lo up"),
    "shm-full": (
        "-m",
        ANY,
        "local",
        "mount -t tmpfs -o size=4k tmpfs /dev/shm; head -c 4096 /dev/zero > /dev/shm/full",
    ),
    "shm-read-only": ("-m", ANY, "local", "mount -t tmpfs -o ro tmpfs /dev/shm"),
    "run-read-only": ("-m", ANY, "shaped", "mount -o bind /run /run; mount -o remount,ro,bind /run"),
    "etc-read-only": ("-m", ANY, "shaped", "mount -o bind /etc /etc; mount -o remount,ro,bind /etc"),
    "no-hosts-file": ("-m", ANY, "shaped", "mount --bind /dev/null /etc/hosts"),
    "no-resolver": ("-m", WELL, "local", "mount --bind /dev/null /etc/resolv.conf"),
    "no-proc": ("-m", ANY, "local", "umount -l /proc"),
    "no-sys": ("-m", ANY, "shaped", "umount -l /sys"),
    "no-sys-local": ("-m", WELL, "local", "umount -l /sys"),
}
"""unshare(1) flags, what must hold, the fabric, and what a shell does in the new namespaces first ($0: the folder)."""

TERMINAL = str(Path(__file__).with_name("terminal.py"))
UNREAD = Expected(codes=(DONE,), silent=True)
"""Nobody reads a closed output, so that a sentence is not required; the measurement is as good."""
UNDELIVERED = Expected(codes=(DONE, FAILED), silent=True, complete=True)
"""A result that was asked for on stdout and could not be written there may be a failure; the record is whole."""

SHELL: dict[str, tuple[Expected, tuple[str, ...], str]] = {
    "both-closed": (UNREAD, (), 'exec "$@" >&- 2>&-'),
    "stderr-closed": (UNREAD, (), 'exec "$@" 2>&-'),
    "stdout-closed": (UNREAD, (), 'exec "$@" >&-'),
    "stdin-closed": (UNREAD, (), 'exec "$@" <&-'),
    "all-closed": (UNREAD, (), 'exec "$@" <&- >&- 2>&-'),
    "stderr-broken": (UNREAD, (), '"$@" 2> >(head -c 5 >/dev/null); exit $?'),
    "stderr-full": (UNREAD, (), 'exec "$@" 2>/dev/full'),
    "json-closed": (UNDELIVERED, ("--json", "-"), 'exec "$@" >&-'),
    "json-full": (UNDELIVERED, ("--json", "-"), 'exec "$@" >/dev/full'),
    "json-broken": (UNDELIVERED, ("--json", "-"), '"$@" | head -c 10 >/dev/null; exit ${PIPESTATUS[0]}'),
}
"""Expectation, more options, and the script by which bash runs the command."""

QUIT = 131
AT_TERMINAL = {
    "resize": Expected(codes=(DONE,)),
    "hangup": Expected(codes=(INTERRUPTED,), silent=True, at_least=1),
    "ctrl-c": Expected(codes=(INTERRUPTED,), at_least=1),
    "ctrl-c2": Expected(codes=(INTERRUPTED,), at_least=1),
    "ctrl-z": Expected(codes=(DONE,)),
    "ctrl-backslash": Expected(codes=(QUIT,), silent=True, leaves=True, at_least=1),
}


def cases() -> Iterator[Case]:
    for name, (expected, env) in VARIABLES.items():
        yield case(f"F-{name}", expected, env=env)
    for name in ("path-empty", "gloo-interface"):
        yield case(f"F-{name}-shaped", ANY, kind="shaped", env=VARIABLES[name][1])
    yield case("F-environment-empty", WELL, bare=True)
    yield _long_tmpdir("F-tmpdir-long", "local", WELL)
    yield _long_tmpdir("F-tmpdir-long-crossover", "crossover", Expected(codes=TRUE_OF_ANY))
    for name, nasty in FOLDERS.items():
        yield _in_folder(f"F-path-{name}", nasty)
    for name, (flags, expected, kind, script) in MACHINES.items():
        yield _on_machine(f"F-{name}", flags, expected, kind, script)
    yield from _as_nobody()
    yield from _outputs()


def _long_tmpdir(name: str, kind: str, expected: Expected) -> Case:
    """A folder for temporary files whose name is longer than a socket's may be."""

    def look(folder: Path) -> Observation:
        deep = folder / ("t" * 110)
        deep.mkdir()
        return observe(Start(compare(kind), temporary=deep), folder)

    return Case(name, expected, look)


def _in_folder(name: str, nasty: str) -> Case:
    def look(folder: Path) -> Observation:
        place = folder / nasty
        place.mkdir(parents=True)
        shutil.copy(MODEL.partition(":")[0], place / "my model.py")
        start = Start(compare(model=f"{place}/my model.py:make"), output=place / "out", cwd=place)
        return observe(start, folder)

    # A path that is no UTF-8 or holds a colon may be refused.
    return Case(name, ANY if name.endswith(("surrogate", "newline", "long")) else WELL, look)


def _on_machine(name: str, flags: str, expected: Expected, kind: str, script: str) -> Case:
    def look(folder: Path) -> Observation:
        argv = ["unshare", *flags.split(), "sh", "-c", f'{script}\nexec "$@"', str(folder), *compare(kind)]
        return observe(Start(argv), folder)

    return Case(name, expected, look, needs_of(kind) | {"root"})


def _as_nobody() -> Iterator[Case]:
    yield _nobody("F-nobody-local", "local", WELL)
    yield _nobody("F-nobody-shaped", "shaped", ANY)
    yield _nobody("F-nobody-unwritable", "local", Expected(codes=(FAILED, USAGE)), writable=False)
    for name in ("kill", "term", "int", "hup", "int2"):
        for kind in ("local", "shaped"):
            expected = replace(after_signal(name), says=None)
            if kind == "shaped":  # refused where users may make no namespaces
                expected = replace(expected, unaimed=True, codes=(*expected.codes, USAGE, FAILED))
            yield _nobody(f"F-nobody-{kind}-{name}", kind, expected, signal_name=name)


def _nobody(name: str, kind: str, expected: Expected, *, writable: bool = True, signal_name: str | None = None) -> Case:
    """As a user without any rights."""

    def look(folder: Path) -> Observation:
        home = folder / "home"
        home.mkdir()
        home.chmod(0o777 if writable else 0o755)
        folder.chmod(0o777 if writable else 0o755)
        start = Start(compare(kind), env={"HOME": str(home)}, prefix=as_nobody(folder), cwd=home, output=home / "out")
        return observe(start, folder, at("round", to_parent(signal_name)) if signal_name else None)

    return Case(name, expected, look, frozenset({"another user"}))


def as_nobody(folder: Path) -> list[str]:
    """The command that becomes another as a user without any rights."""
    shown = Path(sys.executable).resolve().parents[1]
    script = AS_NOBODY.format(hidden=closed_ancestor(shown) or "", shown=shown, kept=folder / "kept")
    return ["unshare", "--mount", "sh", "-c", script, "sh"]


def _outputs() -> Iterator[Case]:
    """Closed, full and broken outputs, and a terminal that is resized, interrupted or closed."""
    for name, (expected, more, script) in SHELL.items():
        argv = ["bash", "-c", script, "bash", *compare("local", *more)]
        yield case(f"H-{name}", expected, argv=argv)
    for name, expected in AT_TERMINAL.items():
        for kind in ("local", "shaped"):
            yield _at_terminal(f"H-terminal-{name}-{kind}", name, expected, kind)


def _at_terminal(name: str, does: str, expected: Expected, kind: str) -> Case:
    def look(folder: Path) -> Observation:
        start = Start([sys.executable, TERMINAL, str(folder), *compare(kind)])
        return observe(start, folder, at("round", lambda live: live.steer(does)))

    return Case(name, replace(expected), look, needs_of(kind))
