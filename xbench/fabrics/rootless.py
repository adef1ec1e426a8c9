"""Shaped links without root: the whole command runs again inside a user namespace, where it is root over its own.

Linux lets an ordinary user make a user namespace and be root in it. xbench re-executes itself there once:

    xbench compare …                         (execs into)
    └─ user_namespace.py: unshares its namespaces, forwards signals, returns the exit status
       └─ init: mounts /proc and an empty /run (for ip netns), reaps; its death ends everything inside
          └─ xbench compare …                with XBENCH_ROOTLESS=1

Inside there is no network but the shaped links and loopback (ip netns cannot return to a namespace that it does not
own, so the machine's own is left behind). Only the user's own id is mapped, so files that are written inside belong to
the user. Everything inside dies with the init, and the namespaces with it:
nothing can be left behind. Kernels and distributions may forbid this (user.max_user_namespaces=0,
kernel.apparmor_restrict_unprivileged_userns=1, most containers); `obstacle` tries for real.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from xbench.fabrics import links
from xbench.fabrics.user_namespace import MARKER
from xbench.spec import FabricSpec

TRIAL_TIMEOUT_S = 20.0
_SCRIPT = (sys.executable, "-I", "-S", str(Path(__file__).with_name("user_namespace.py")))
_TRIAL = (
    "from xbench.fabrics.shaped import obstacle; why = obstacle(); print(why or ''); raise SystemExit(why is not None)"
)


@functools.cache
def obstacle() -> str | None:
    """Why an unprivileged user namespace does not help, as half a sentence, or None when shaped links work in one."""
    if not sys.platform.startswith("linux"):
        return "namespaces exist on Linux only"
    if links.tool("ip") is None or links.tool("tc") is None:
        return "iproute2 is not installed"
    command = [*_SCRIPT, sys.executable, "-c", _TRIAL]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TRIAL_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"a user namespace did not start ({error})"
    if done.returncode == 0:
        return None
    said = (done.stdout + done.stderr).strip().splitlines()
    return said[-1] if said else "this kernel forbids unprivileged user namespaces"


def reexec_needed(spec: FabricSpec, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether `spec` needs namespaces that this process may only make after `reexec`."""
    return spec.name == "shaped" and os.geteuid() != 0 and MARKER not in environ


def reexec(argv: Sequence[str]) -> NoReturn:
    """Replace this process by the same command inside a user namespace. `argv` is sys.argv. Raises OSError."""
    command = [*_SCRIPT, *inner_command(argv)]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, command)


def inner_command(argv: Sequence[str]) -> list[str]:
    """The command that runs `argv` (a sys.argv) again under this interpreter."""
    module = getattr(sys.modules.get("__main__"), "__spec__", None)
    if module is not None and module.name:  # started as python -m
        name = module.name.removesuffix(".__main__")
        return [sys.executable, "-m", name, *argv[1:]]
    return [sys.executable, *argv]
