"""Revisions of a git repository: their names, and temporary working trees with their files.

`git worktree add` checks a revision out into a folder of its own under the system's temporary folder. The folder is
always removed afterwards. A killed process leaves its folder behind. The next check of any repository on this machine
removes it (`xbench.scratch`), and git drops its entry with the next prune.
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
        """Find the repository that holds `folder`. Raises SpecError outside of any, or if git is missing."""
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
        """Return the full name of a revision's commit. Raises SpecError if it does not exist."""
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
        """Return the commit of the working tree, with '+' if tracked files differ from it; None before the first
        commit.

        Files under results do not count, as for every record: writing one does not change the code.
        """
        done = _git(self.root, "rev-parse", "--verify", "--quiet", "HEAD")
        if done.returncode != 0:
            return None
        changed = _git(self.root, "status", "--porcelain", "--untracked-files=no", "--", ".", ":!results").stdout
        return done.stdout.strip() + ("+" if changed.strip() else "")

    @contextmanager
    def checked_out(self, commit: str) -> Iterator[Path]:
        """Context with the root of a working tree of this commit, removed at exit. Raises SpecError if git refuses."""
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
    """Return the dependencies in a tree's pyproject.toml; empty if there is no readable one."""
    try:
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8")).get("project", {})
        return {str(line) for line in project.get("dependencies", [])}
    except (OSError, ValueError, AttributeError):
        return set()


def other_needs(base: Path, head: Path) -> str | None:
    """Return a message if the two trees need different packages, because both run with those installed here."""
    was, now = needs(base), needs(head)
    if was == now:
        return None
    gone, new = sorted(was - now), sorted(now - was)
    told = [f"base asks for {', '.join(gone)}"] if gone else []
    told += [f"head asks for {', '.join(new)}"] if new else []
    return f"the two trees need different packages, and both run with what is installed here: {'; '.join(told)}"


def short(revision: str | None) -> str:
    """Shorten a commit's full name to '1a2b3c4d5e', and keep its '+'."""
    if revision is None:
        return "an unknown revision"
    return revision[:SHORT] + ("+" if revision.endswith("+") else "")


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["git", "-C", str(folder), *arguments]
    # A hook that runs us (pre-push) has these set, and they would direct git to its repository instead of this one.
    env = {name: value for name, value in os.environ.items() if name not in _OF_HOOKS} | {"LC_ALL": "C"}
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=GIT_S, check=False, env=env)
    except FileNotFoundError:
        raise SpecError("git is not installed, and --base needs it", hint="apt-get install git") from None
    except subprocess.TimeoutExpired:
        raise SpecError(f"git took longer than {GIT_S:.0f} s: {' '.join(command)}") from None
