"""Both sides of a check as working trees, and the processes in which each carries out its own jobs.

`Repository.checked_out` puts a revision into a folder under the system's temporary folder (`git worktree add`), and
always removes it. A killed process leaves its folder behind. The next check of any repository on this machine removes
it (`xbench.scratch`), and git drops its entry with the next prune. A checkout is for reading alone: git runs no hook of
the repository, and a content filter that fails leaves its files as git stores them.

Each job is carried out by the tree's own xbench, in a process of its own. The tree and the suite's folder in it (each
with its `src`, if any) come first on the path. So their packages, xbench included if it is one of them, precede
installed ones. Whatever else we import from head's tree is imported from the same place in this one: entries of
PYTHONPATH and of `sys.path`, and projects that are installed in editable mode. The rest of the environment is shared.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit
from urllib.request import url2pathname

from xbench.errors import Interrupted, RunError, SpecError
from xbench.interrupts import interrupts_held, stop_signals_interrupt
from xbench.launch_guard import GUARD
from xbench.limits import last_line
from xbench.records import SideName
from xbench.regress.protocol import VERSION, JobRequest, JobResult
from xbench.scratch import Scratch, remove_left

GIT_S = 120.0
_OF_HOOKS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")
SHORT = 10
ENDING_S = 15.0
ASK_S = 60.0
LOG_CHARACTERS = 20_000
NO_SUCH_COMMAND = 2
INSTALLED = frozenset({"site-packages", "dist-packages"})
"""Names of folders of installed packages, which both sides share wherever they are."""

SILENT = "it said nothing"
_COMMAND = (sys.executable, "-m", "xbench", "regress", "launch")


@dataclass(frozen=True)
class Repository:
    """The git repository around a folder. `here` is that folder, relative to the root."""

    root: Path
    here: Path

    @classmethod
    def around(cls, folder: Path) -> Repository:
        """Find the repository that holds `folder`. Raises SpecError outside of any, or if git is missing."""
        folder = folder.resolve()
        done = _git(folder, "rev-parse", "--show-toplevel")
        if "dubious ownership" in done.stderr:  # as in a container whose checkout belongs to another user
            raise SpecError(
                f"git does not trust {str(folder)!r}, because it belongs to another user",
                hint=f"git config --global --add safe.directory {folder}",
            )
        if "not a git repository" in done.stderr:
            raise SpecError(
                f"{str(folder)!r} is in no git repository, so there is no base revision to measure",
                hint="leave --base out to compare with a stored baseline",
            )
        if done.returncode != 0:
            said = last_line(done.stderr) or f"it ended with status {done.returncode}"
            raise SpecError(f"git cannot look at {str(folder)!r}: {said}")
        root = Path(done.stdout.strip()).resolve()
        return cls(root, folder.relative_to(root))

    def commit_of(self, revision: str) -> str:
        """Return the full name of a revision's commit. Raises SpecError if it does not exist."""
        if revision.startswith("-") or not revision.strip():
            raise SpecError(f"--base: {revision!r} is no revision", hint="as in --base origin/main")
        done = _git(self.root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        if done.returncode != 0:
            hint = "git log --oneline lists some; git fetch brings those of a remote"
            if self._is_shallow():
                hint = "this clone is shallow: git fetch --unshallow (fetch-depth: 0 in CI)"
            raise SpecError(f"--base: there is no revision {revision!r} in {str(self.root)!r}", hint=hint)
        return done.stdout.strip()

    def branch_point(self, commit: str) -> tuple[str, int]:
        """Return the commit that HEAD and `commit` both descend from, and how many commits `commit` is ahead of it.

        What only `commit` has is no change of this tree. If HEAD and `commit` share no history, or there is no HEAD,
        return `commit` itself. Raises SpecError if a shallow clone lacks the history that would tell.
        """
        found = _git(self.root, "merge-base", "HEAD", commit)
        if found.returncode == 0:
            ahead = _git(self.root, "rev-list", "--count", f"{found.stdout.strip()}..{commit}")
            return found.stdout.strip(), int(ahead.stdout)
        recorded = _git(self.root, "cat-file", "-p", "HEAD")  # names the parents that a shallow clone has cut off
        if not self._is_shallow() or f"parent {commit}" in recorded.stdout.split("\n\n")[0].splitlines():
            return commit, 0
        raise SpecError(
            f"--base: this clone is shallow, and lacks the commits at which {short(commit)} and this tree parted",
            hint="git fetch --unshallow (fetch-depth: 0 in CI)",
        )

    def _is_shallow(self) -> bool:
        return _git(self.root, "rev-parse", "--is-shallow-repository").stdout.strip() == "true"

    def head(self) -> str | None:
        """Return the commit of the tree, with '+' if tracked files outside results differ; None before the first."""
        done = _git(self.root, "rev-parse", "--verify", "--quiet", "HEAD")
        if done.returncode != 0:
            return None
        changed = _git(self.root, "status", "--porcelain", "--untracked-files=no", "--", ".", ":!results").stdout
        return done.stdout.strip() + ("+" if changed.strip() else "")

    @contextmanager
    def checked_out(self, commit: str, say: Callable[[str], None] = lambda _: None) -> Iterator[Path]:
        """Context with the root of a working tree of this commit, removed at exit. Raises SpecError if git refuses.

        `say` gets what git complained of, though it made the tree.
        """
        remove_left([Path(tempfile.gettempdir())])
        with stop_signals_interrupt():
            scratch = Scratch("xbench-base-")
            try:
                tree = Path(scratch.name) / "tree"
                required = _git(self.root, "config", "--name-only", "--get-regexp", r"^filter\..*\.required$")
                lenient = [word for name in required.stdout.splitlines() for word in ("-c", f"{name}=false")]
                done = _git(self.root, *lenient, "worktree", "add", "--detach", "--quiet", str(tree), commit)
                said = last_line(done.stderr)
                if done.returncode != 0:
                    raise SpecError(
                        f"--base: {commit[:SHORT]} could not be checked out: {said or 'git gave no reason'}"
                    )
                if said:
                    say(f"base's checkout may differ from its commit, because git said: {said}")
                yield tree
            finally:
                with interrupts_held():
                    _git(self.root, "worktree", "remove", "--force", str(tree))
                    scratch.cleanup()
                    _git(self.root, "worktree", "prune")


def published(checkout: Path) -> str | None:
    """Return 'git+https://HOST/PATH@COMMIT' for the commit of a checkout, if a remote has it; else None.

    An address of ssh becomes that of https.
    """
    commit = _git(checkout, "rev-parse", "--verify", "--quiet", "HEAD").stdout.strip()
    at = _git(
        checkout, "for-each-ref", "--count=1", "--format=%(refname:lstrip=2)", "--contains", commit, "refs/remotes"
    )
    remote = at.stdout.strip().partition("/")[0]
    if not commit or not remote:
        return None
    url = _git(checkout, "remote", "get-url", remote).stdout.strip()
    url = re.sub(r"^(?:ssh://)?[\w.-]+@([\w-]+(?:\.[\w-]+)+)(?::\d+/|[:/])", r"https://\1/", url)
    return f"git+{url}@{commit}"


def _needs(root: Path) -> set[str]:
    try:
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8")).get("project", {})
        return {str(line) for line in project.get("dependencies", [])}
    except (OSError, ValueError, AttributeError):
        return set()


def other_needs(base: Path, head: Path) -> str | None:
    """Return a message if the two trees need different packages, because both run with those installed here."""
    was, now = _needs(base), _needs(head)
    told = [
        f"{side} asks for {', '.join(sorted(own))}" for side, own in (("base", was - now), ("head", now - was)) if own
    ]
    if not told:
        return None
    return f"the two trees need different packages, and both run with what is installed here: {'; '.join(told)}"


_QUOTED = re.compile(r"'([^'\n]{1,500})'")
_MODULE = re.compile(r"No module named '([\w.]+)'")


def left_out(base: Checkout, reason: str) -> str | None:
    """Return a message if base failed for want of a file that stands in head's tree, but not in git.

    `reason` is the error of base. It names the file, absolute or relative to the suite's folder, or the module.
    """
    named = [Path(text) for text in _QUOTED.findall(reason)]
    for parts in (module.split(".") for module in _MODULE.findall(reason)):
        found = Path(*parts)
        named += [path for one in (found, *list(found.parents)[:-1]) for path in (one, one.with_suffix(".py"))]
    here = base.folder.relative_to(base.root)
    for path in named:
        if path.is_absolute():
            places = [path.relative_to(base.root)] if path.is_relative_to(base.root) else []
        else:
            places = [Path(os.path.normpath(at / path)) for at in (here, here / "src", Path(), Path("src"))]
        for place in places:
            lacking = (base.head_root / place).exists() and not (base.root / place).exists()
            if lacking and ".." not in place.parts and (why := _not_in_git(base.head_root, place)) is not None:
                return why
    return None


def _not_in_git(root: Path, place: Path) -> str | None:
    """Say why git did not check out this file or folder of the tree; None if the commit alone explains it."""
    if "is in submodule" in _git(root, "check-ignore", "--quiet", "--", str(place)).stderr:
        return f"{str(place)!r} is in a git submodule, which is empty in base's checkout"
    if (name := _outside_git(root, place, "--ignored")) is not None:
        return (
            f"{name!r} is ignored by git, so base's checkout lacks it: keep it outside of the repository, or let the "
            "factory make it"
        )
    if (name := _outside_git(root, place)) is not None:
        return f"{name!r} is not committed, so base's checkout lacks it: later revisions have it after git add"
    return None


def _outside_git(root: Path, place: Path, *words: str) -> str | None:
    """Return the first file at this place, or below it, that git does not track; with '--ignored', that it ignores."""
    found = _git(root, "ls-files", "--others", "--exclude-standard", "-z", *words, "--", f":(literal){place}")
    return next((name for name in found.stdout.split("\0") if name and "__pycache__" not in name), None)


def empty_submodules(base: Path) -> str | None:
    """Return a message if base has submodules, which git does not check out with it."""
    if not (base / ".gitmodules").exists():
        return None
    return "base has git submodules, which are empty in its checkout: what is imported from them is not base's"


def short(revision: str | None) -> str:
    """Shorten a commit's full name to '1a2b3c4d5e', and keep its '+'."""
    if revision is None:
        return "an unknown revision"
    return revision[:SHORT] + ("+" if revision.endswith("+") else "")


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["git", "-c", f"core.hooksPath={os.devnull}", "-C", str(folder), *arguments]
    # A hook that runs us (pre-push) has these set, and they would direct git to its repository instead of this one.
    env = {name: value for name, value in os.environ.items() if name not in _OF_HOOKS} | {"LC_ALL": "C"}
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=GIT_S, check=False, env=env)
    except FileNotFoundError:
        raise SpecError("git is not installed, and --base needs it", hint="apt-get install git") from None
    except subprocess.TimeoutExpired:
        raise SpecError(f"git took longer than {GIT_S:.0f} s: {' '.join(command)}") from None


class Incomparable(RunError):
    """The tree's xbench takes no jobs of ours: it lacks the command, or uses another version of the protocol."""


@dataclass(frozen=True)
class Checkout:
    """One side of a check. `root` is the tree's, `folder` the suite's in it, `head_root` that of head's tree."""

    name: SideName
    root: Path
    folder: Path
    head_root: Path
    title: str

    def ask(self) -> None:
        """Raise Incomparable, with one sentence, if this tree cannot carry out our jobs."""
        if not self.folder.is_dir():
            raise Incomparable(f"{self.title} has no folder {self.folder.name!r}, in which head's suite stands")
        code, out, log = Running([*_COMMAND, "--protocol"], self.folder, self.environ()).wait(ASK_S)
        try:
            spoken = int(json.loads(out)["protocol"]) if code == 0 else None
        except (ValueError, KeyError, TypeError):
            spoken = None
        if spoken is None:
            detail = log or None
            if code == NO_SUCH_COMMAND:
                raise Incomparable(f"{self.title} has no xbench regress: it is older than this gate", detail=detail)
            raise Incomparable(f"{self.title}: its xbench does not start: {last_line(log) or SILENT}", detail=detail)
        if spoken != VERSION:
            raise Incomparable(
                f"{self.title} takes orders of version {spoken}, and head gives them in version {VERSION}"
            )

    def begin(self, order: JobRequest) -> RunningJob:
        """Start a job in this tree, and return without waiting."""
        return RunningJob(self, order)

    def carry_out(self, order: JobRequest, longest_s: float) -> JobResult:
        """Carry out a job in this tree, as `RunningJob.answer` does."""
        with self.begin(order) as job:
            return job.answer(longest_s)

    def environ(self, ours: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Return the environment of this tree's processes."""
        own = (self.root, self.root / "src", self.folder, self.folder / "src")
        parts = [str(folder) for folder in own if folder.is_dir()]
        for part in filter(None, ours.get("PYTHONPATH", "").split(os.pathsep)):
            parts.append(str(self._moved(Path(part)) or part))
        for folder in (*map(Path, filter(None, sys.path)), *_editable_projects()):
            moved = self._moved(folder)
            if moved is not None and moved.is_dir() and INSTALLED.isdisjoint(moved.parts):
                parts.append(str(moved))
        return {**ours, "PYTHONPATH": os.pathsep.join(dict.fromkeys(parts))}

    def _moved(self, folder: Path) -> Path | None:
        """Return the place in this tree of a folder in head's; None for a folder elsewhere."""
        folder = folder.resolve()
        return self.root / folder.relative_to(self.head_root) if folder.is_relative_to(self.head_root) else None


def working_tree(folder: Path) -> tuple[Checkout, str | None]:
    """Return the tree around the suite's folder as head, and its revision if it has one."""
    folder = folder.resolve()
    try:
        repository = Repository.around(folder)
    except SpecError:
        return Checkout("head", folder, folder, folder, "this tree"), None
    revision = repository.head()
    title = f"this tree ({short(revision)})" if revision is not None else "this tree"
    return Checkout("head", repository.root, folder, repository.root, title), revision


@cache
def _editable_projects() -> tuple[Path, ...]:
    """Folders, and their `src`, of the projects that are installed here in editable mode.

    Some installers add no entry to `sys.path`, so it does not name them all.
    """
    projects: list[Path] = []
    for installed in distributions():
        with suppress(ValueError, KeyError, AttributeError):  # no file that an installer wrote
            source = json.loads(installed.read_text("direct_url.json") or "{}")
            if source.get("dir_info", {}).get("editable"):
                project = Path(url2pathname(urlsplit(source["url"]).path))
                projects += [project, project / "src"]
    return tuple(projects)


class RunningJob:
    """A job that a tree's process is carrying out. As a context manager it ends the process at exit."""

    def __init__(self, tree: Checkout, order: JobRequest) -> None:
        self._title = tree.title
        self._at = Scratch("xb-order-")
        given, self._made = (Path(self._at.name) / name for name in ("order.json", "answer.json"))
        given.write_text(order.model_dump_json(), encoding="utf-8")
        self._running = Running([*_COMMAND, str(given), str(self._made)], tree.folder, tree.environ())

    @property
    def alive(self) -> bool:
        """True if the process still runs."""
        return self._running.alive

    def answer(self, longest_s: float) -> JobResult:
        """Wait for the result, for at most `longest_s` [s]. It has an `error` if the process gives no valid one.

        Raises Interrupted, after the process has ended, if the user asks to stop.
        """
        code, _, log = self._running.wait(longest_s)
        try:
            return JobResult.model_validate_json(self._made.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # of text that is no UTF-8, or no result
            how = f"took longer than {longest_s:.0f} s" if code is None else f"ended with exit status {code}"
            return JobResult(xbench="unknown", error=f"a launch of {self._title} {how}: {last_line(log) or SILENT}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._running.end()
        self._at.cleanup()


class Running:
    """A process that does not outlive us, and its output."""

    def __init__(self, command: Sequence[str], folder: Path, environ: Mapping[str, str]) -> None:
        # Files instead of pipes: they are not read while it runs, and a full pipe would block it.
        self._out, self._log = (tempfile.TemporaryFile("w+", errors="replace") for _ in range(2))
        self._process = subprocess.Popen(
            [*GUARD, str(os.getpid()), *command],
            cwd=folder,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._log,
            start_new_session=True,
        )

    @property
    def alive(self) -> bool:
        """True if the process still runs."""
        return self._process.poll() is None

    def wait(self, longest_s: float) -> tuple[int | None, str, str]:
        """Return (exit status, stdout, tail of stderr) after the process has ended. Status None: it took too long.

        Raises Interrupted if the user asks to stop, after the process has cleaned up.
        """
        code: int | None = None
        try:
            with suppress(subprocess.TimeoutExpired):
                code = self._process.wait(timeout=longest_s)
        except KeyboardInterrupt:
            raise Interrupted("interrupted") from None
        finally:
            self.end()
        with self._out, self._log:
            self._out.seek(0)
            self._log.seek(0)
            return code, self._out.read(), self._log.read()[-LOG_CHARACTERS:]

    def end(self) -> None:
        """Ask the process to stop, which ends its ranks and links. Kill its session if it does not."""
        if not self.alive:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout=ENDING_S)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
