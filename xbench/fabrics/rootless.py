"""Shaped links without root: the whole command runs again inside a user namespace, where it is root.

    xbench compare …                         (execs into)
    └─ rootless.py: unshares its namespaces, forwards signals, returns the exit status
       └─ init: mounts /proc and an empty /run (for ip netns), reaps; its death ends everything inside
          └─ xbench compare …                with XBENCH_ROOTLESS=1

Inside there is no network but the shaped links and loopback: ip netns cannot return to a namespace that it does not
own. Only the user's own id is mapped, so files that are written inside belong to the user. All processes inside and all
namespaces die with the init, so there are no leftovers. Kernels and distributions may forbid this
(user.max_user_namespaces=0, kernel.apparmor_restrict_unprivileged_userns=1, most containers); `obstacle` makes a real
trial.

Inside, this file is run by path (`rootless.py COMMAND…`) and uses the standard library alone: unshare(2) of a user
namespace needs a process of one thread, and a process that has imported numpy has more.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from xbench.spec import FabricSpec

MARKER = "XBENCH_ROOTLESS"
TRIAL_TIMEOUT_S = 20.0
_SCRIPT = (sys.executable, "-I", "-S", __file__)
_TRIAL = (
    "from xbench.fabrics.shaped import obstacle; why = obstacle(); print(why or ''); raise SystemExit(why is not None)"
)

_CLONE_NEWNS = 0x00020000
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWPID = 0x20000000
_CLONE_NEWNET = 0x40000000
_SIOCSIFFLAGS = 0x8914
_IFF_UP_RUNNING = 0x41
_MS_REC_PRIVATE = 0x4000 | 0x40000
_PR_SET_PDEATHSIG = 1
_SI_KERNEL = 0x80
_PASSED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD}


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


# --- inside ----------------------------------------------------------------------------------------------------------


def enter(command: Sequence[str]) -> int:
    """Run `command` as root of new user, mount and process-id namespaces; return its exit status.

    Raises OSError if the kernel refuses. The process must have one thread, as unshare(2) requires.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.getuid(), os.getgid()
    flags = _CLONE_NEWUSER | _CLONE_NEWNET | _CLONE_NEWNS | _CLONE_NEWPID
    _check(libc.unshare(flags), "user namespaces are forbidden here")
    with contextlib.suppress(FileNotFoundError):
        _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"0 {uid} 1")
    _write("/proc/self/gid_map", f"0 {gid} 1")
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED)
    child = os.fork()
    if child == 0:
        os._exit(_init(libc, command))
    return supervise(child)


def _init(libc: ctypes.CDLL, command: Sequence[str]) -> int:
    """Process 1 inside: prepare /proc and /run, start the command, forward signals, end with its status."""
    try:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        _check(libc.mount(b"none", b"/", None, _MS_REC_PRIVATE, None), "mounts cannot be made private")
        _check(libc.mount(b"proc", b"/proc", b"proc", 0, None), "/proc cannot be mounted in a user namespace")
        _check(libc.mount(b"tmpfs", b"/run", b"tmpfs", 0, b"mode=755"), "/run cannot be mounted in a user namespace")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14s", b"lo", _IFF_UP_RUNNING, b""))
        child = os.fork()
        if child == 0:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED)
            os.execve(command[0], list(command), {**os.environ, MARKER: "1"})
        return supervise(child)
    except OSError as error:
        print(error.strerror or error, file=sys.stderr, flush=True)
        return 1


def supervise(child: int) -> int:
    """Wait for `child`, reap all others, forward signals; return the child's status as a shell does (128 + signal).

    A Ctrl-C in the terminal reaches the whole foreground group, so a signal that the kernel sent is not forwarded.
    """
    while True:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return 1
            if pid == child and (os.WIFEXITED(status) or os.WIFSIGNALED(status)):
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
            if pid == 0:
                break
        received = signal.sigwaitinfo(_PASSED)
        if received.si_signo != signal.SIGCHLD and received.si_code != _SI_KERNEL:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, received.si_signo)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what} ({os.strerror(number)})")


def _write(path: str, text: str) -> None:
    with open(path, "w") as stream:
        stream.write(text)


if __name__ == "__main__":
    try:
        sys.exit(enter(sys.argv[1:]))
    except OSError as error:
        sys.exit(error.strerror or str(error))
