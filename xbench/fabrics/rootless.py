"""Shaped links without root: the whole command runs again inside a user namespace, where it is root.

Linux lets an ordinary user make a user namespace and be root in it. xbench re-executes itself there once:

    xbench compare …                         (execs into)
    └─ user_namespace.py: unshares its namespaces, forwards signals, returns the exit status
       └─ init: mounts /proc and an empty /run (for ip netns), reaps; its death ends everything inside
          └─ xbench compare …                with XBENCH_ROOTLESS=1

Inside there is no network but the shaped links and loopback: ip netns cannot return to a namespace that it does not
own, so the machine's own is not used. Only the user's own id is mapped, so files that are written inside belong to the
user. All processes inside and all namespaces die with the init, so there are no leftovers. Kernels and distributions
may forbid this (user.max_user_namespaces=0, kernel.apparmor_restrict_unprivileged_userns=1, most containers);
`obstacle` makes a real trial.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from xbench.fabrics.user_namespace import MARKER
from xbench.spec import FabricSpec

TRIAL_TIMEOUT_S = 20.0
_SCRIPT = (sys.executable, "-I", "-S", str(Path(__file__).with_name("user_namespace.py")))
_TRIAL = (
    "from xbench.fabrics.shaped import obstacle; why = obstacle(); print(why or ''); raise SystemExit(why is not None)"
)


@functools.cache
def obstacle() -> str | None:
    """Reason why shaped links do not work in a user namespace, as half a sentence, or None if they do.

    Call it where iproute2 is installed.
    """
    command = [*_SCRIPT, sys.executable, "-c", _TRIAL]
    try:
        result = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TRIAL_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"a user namespace did not start ({error})"
    if result.returncode == 0:
        return None
    output = (result.stdout + result.stderr).strip().splitlines()
    return output[-1] if output else "this kernel forbids unprivileged user namespaces"


def reexec_needed(spec: FabricSpec, environ: Mapping[str, str] = os.environ) -> bool:
    """True if `spec` needs namespaces that this process can make only after `reexec`."""
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
