"""Revisions of a git repository: which one is meant, and its files beside the working tree for as long as it is needed.

A revision is checked out by `git worktree add` into a folder of its own under the system's temporary folder, and
removed again whatever happens. A killed process leaves its folder behind, and the next check of any repository on this
machine removes it (see `xbench.scratch`); git forgets it with its next prune.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from xbench.errors import SpecError
from xbench.interrupts import interrupts_held, stop_signals_interrupt
from xbench.limits import last_line
from xbench.scratch import Scratch, remove_left

GIT_S = 120.0
_OF_HOOKS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")
SHORT = 10


@dataclass(frozen=True)
class Repository:
    """The git repository around a folder. `here` is that folder, relative to the root."""

    root: Path
    here: Path

    @classmethod
    def around(cls, folder: Path) -> Repository:
        """The one that holds `folder`. Raises SpecError outside of any, or where git is missing."""
        folder = folder.resolve()
        done = _git(folder, "rev-parse", "--show-toplevel")
        if "dubious ownership" in done.stderr:  # as in a container whose checkout belongs to another user
            raise SpecError(
                f"git does not trust {str(folder)!r}, because it belongs to another user",
                hint=f"git config --global --add safe.directory {folder}",
            )
        if done.returncode != 0 and "not a git repository" not in done.stderr:
            said = last_line(done.stderr) or f"it ended with status {done.returncode}"
            raise SpecError(f"git cannot look at {str(folder)!r}: {said}")
        if done.returncode != 0:
            raise SpecError(
                f"{str(folder)!r} is in no git repository, so there is no base revision to measure",
                hint="leave --base out to compare with a stored baseline",
            )
        root = Path(done.stdout.strip()).resolve()
        return cls(root, folder.relative_to(root))

    def commit_of(self, revision: str) -> str:
        """The full name of a revision's commit. Raises SpecError for one that is not there."""
        if revision.startswith("-") or not revision.strip():
            raise SpecError(f"--base: {revision!r} is no revision", hint="as in --base origin/main")
        done = _git(self.root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        if done.returncode != 0:
            shallow = _git(self.root, "rev-parse", "--is-shallow-repository").stdout.strip() == "true"
            raise SpecError(
                f"--base: there is no revision {revision!r} in {str(self.root)!r}",
                hint="this clone is shallow: git fetch --unshallow (fetch-depth: 0 in CI)"
                if shallow
                else "git log --oneline lists some; git fetch brings those of a remote",
            )
        return done.stdout.strip()

    def head(self) -> str | None:
        """The commit of the working tree, with '+' where tracked files differ from it; None before the first.

        Results do not count, as for every record: writing one does not change the code.
        """
        done = _git(self.root, "rev-parse", "--verify", "--quiet", "HEAD")
        if done.returncode != 0:
            return None
        changed = _git(self.root, "status", "--porcelain", "--untracked-files=no", "--", ".", ":!results").stdout
        return done.stdout.strip() + ("+" if changed.strip() else "")

    @contextmanager
    def checked_out(self, commit: str) -> Iterator[Path]:
        """The root of a working tree of this commit, inside the context alone. Raises SpecError when git refuses."""
        remove_left([Path(tempfile.gettempdir())])
        with stop_signals_interrupt():
            scratch = Scratch("xbench-base-")
            try:
                tree = Path(scratch.name) / "tree"
                done = _git(self.root, "worktree", "add", "--detach", "--quiet", str(tree), commit)
                if done.returncode != 0:
                    said = last_line(done.stderr) or "git gave no reason"
                    raise SpecError(f"--base: {commit[:SHORT]} could not be checked out: {said}")
                yield tree
            finally:
                with interrupts_held():
                    _git(self.root, "worktree", "remove", "--force", str(tree))
                    scratch.cleanup()
                    _git(self.root, "worktree", "prune")


def needs(root: Path) -> set[str]:
    """What a tree's pyproject.toml asks to be installed; nothing where there is none, or none that can be read."""
    try:
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8")).get("project", {})
        return {str(line) for line in project.get("dependencies", [])}
    except (OSError, ValueError, AttributeError):
        return set()


def other_needs(base: Path, head: Path) -> str | None:
    """One sentence where the two trees ask for different packages: both run with those that are installed here."""
    was, now = needs(base), needs(head)
    if was == now:
        return None
    gone, new = sorted(was - now), sorted(now - was)
    told = [f"base asks for {', '.join(gone)}"] if gone else []
    told += [f"head asks for {', '.join(new)}"] if new else []
    return f"the two trees need different packages, and both run with what is installed here: {'; '.join(told)}"


def short(revision: str | None) -> str:
    """'1a2b3c4d5e' of a commit's full name, its '+' kept."""
    if revision is None:
        return "an unknown revision"
    return revision[:SHORT] + ("+" if revision.endswith("+") else "")


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["git", "-C", str(folder), *arguments]
    # A hook that runs us (pre-push) has these set, and they would turn git to its repository in place of this one.
    env = {name: value for name, value in os.environ.items() if name not in _OF_HOOKS} | {"LC_ALL": "C"}
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=GIT_S, check=False, env=env)
    except FileNotFoundError:
        raise SpecError("git is not installed, and --base needs it", hint="apt-get install git") from None
    except subprocess.TimeoutExpired:
        raise SpecError(f"git took longer than {GIT_S:.0f} s: {' '.join(command)}") from None
