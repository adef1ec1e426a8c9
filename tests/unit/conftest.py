"""One thread for each worker of these tests, and control groups that are not there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from cores import one_thread

one_thread()


@pytest.fixture
def fake_groups(tmp_path: Path) -> Callable[..., Path]:
    """Make a /proc/self whose control group is `group`, of a hierarchy mounted with `top` as its root.

    `files` are the files of that hierarchy, by path from its mount point. A v1 hierarchy has a `controller`.
    """

    def make(files: Mapping[str, str], group: str = "/", top: str = "/", controller: str = "") -> Path:
        proc, mounted = tmp_path / "proc", tmp_path / "mounted here"
        proc.mkdir()
        kind = "cgroup" if controller else "cgroup2"
        place = str(mounted).replace(" ", "\\040")
        (proc / "mountinfo").write_text(
            f"25 30 0:23 / /sys rw,nosuid - sysfs sysfs rw\n"
            f"36 25 0:30 {top} {place} rw,relatime shared:9 - {kind} {kind} rw,{controller}\n"
        )
        (proc / "cgroup").write_text(f"5:devices:/elsewhere\n{4 if controller else 0}:{controller}:{group}\n")
        for name, text in files.items():
            (mounted / name).parent.mkdir(parents=True, exist_ok=True)
            (mounted / name).write_text(text)
        return proc

    return make
