"""`make horovod`: build Horovod from its source distribution against the installed torch, and install it.

    python -m xbench.horovod.build [--rebuild] [--wheel-only] [--log FILE]

Horovod's last release (0.28.1, of 2023) requests C++14, and today's torch headers need C++20, so two lines of its CMake
files are changed. A third change allows a second initialisation: once HOROVOD_FUSION_THRESHOLD or HOROVOD_CYCLE_TIME
was set, the second `init` writes beyond the end of a vector. A fourth leaves out debugging symbols, which take the
compiler more than a third of its time. No code that runs in a step is changed; the version names this build
(0.28.1+xbench). It has Gloo for CPUs and its own launcher's rendezvous, without MPI. A torch with CUDA brings CUDA into
the build, which needs nvcc. Without nvcc, that one line is left out as well, and Horovod then averages on CPUs alone.
NCCL is built in if there is a GPU with NCCL's headers.

The wheel is kept in $XBENCH_CACHE/horovod, else $XDG_CACHE_HOME/xbench/horovod, else ~/.cache/xbench/horovod, in a
folder named after everything that it depends on, and installed from there the next time. About 5 minutes on two cores.

Packages from the package index are pinned by hash in pinned.txt, next to this file; nothing else is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath

from xbench.errors import RunError, UsageError, XbenchError
from xbench.horovod import LOCAL_VERSION, VERSION
from xbench.scratch import Scratch, part_file
from xbench.streams import secure

NEEDED = ("setuptools", "cloudpickle", "psutil", "pyyaml", "packaging", "cffi", "pycparser")
"""Packages that Horovod's setup, and Horovod itself, import; the last is a dependency of cffi."""

PINNED = Path(__file__).with_name("pinned.txt")

BUILD_S = 3600.0
STANDARD = 20
CUDA_HOME = Path("/usr/local/cuda")
NO_CUDA = ("elseif (Pytorch_CUDA AND NOT HAVE_CUDA)\n    add_cuda()\n", "")
"""Lines in horovod/torch/CMakeLists.txt that bring in CUDA because torch has it."""

REINITIALISE = (
    "  } else {\n    Eigen::VectorXd v = TunableParameter::BestValue();\n    v[index_[variable]] = value;\n",
    "  } else if (fixed_values_.find(variable) != fixed_values_.end()) {\n    fixed_values_[variable] = value;\n"
    "  } else {\n    Eigen::VectorXd v = TunableParameter::BestValue();\n    v[index_[variable]] = value;\n",
)
"""Change in horovod/common/parameter_manager.cc: a later `init` no longer writes a fixed value to the vector."""


NO_SYMBOLS = 'string(REPLACE "-g " "" CMAKE_CXX_FLAGS_RELWITHDEBINFO "${CMAKE_CXX_FLAGS_RELWITHDEBINFO}")'
"""Line for CMakeLists.txt after its standard: no debugging symbols."""


@dataclass(frozen=True)
class Target:
    """Everything that a wheel depends on."""

    torch: str
    cuda_home: Path | None = None
    """Home of nvcc, if CUDA is built in."""
    nccl_home: Path | None = None
    """A folder with include/nccl.h and lib, if NCCL is built in."""

    @property
    def folder(self) -> str:
        """Name of the wheel's folder: '2.15.0-py3.11-linux-x86_64-cpu'."""
        python = f"py{sys.version_info.major}.{sys.version_info.minor}"
        system = sysconfig.get_platform()
        kind = "nccl" if self.nccl_home else "cuda" if self.cuda_home else "cpu"
        return f"{self.torch}-{python}-{system}-{kind}"

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Environment of Horovod's setup, in addition to the caller's."""
        env = {name: value for name, value in environ.items() if not name.startswith("HOROVOD_")}
        env |= {
            "HOROVOD_WITH_PYTORCH": "1",
            "HOROVOD_WITHOUT_TENSORFLOW": "1",
            "HOROVOD_WITHOUT_MXNET": "1",
            "HOROVOD_WITH_GLOO": "1",
            "HOROVOD_WITHOUT_MPI": "1",
            "HOROVOD_CPU_OPERATIONS": "GLOO",
            "CMAKE_POLICY_VERSION_MINIMUM": "3.5",  # CMake 4 refuses the older minimum of the bundled Gloo
            "MAKEFLAGS": environ.get("MAKEFLAGS", f"-j{len(os.sched_getaffinity(0))}"),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), environ.get("PATH", os.defpath)]),
        }
        if self.cuda_home is not None:
            env |= {"CUDA_HOME": str(self.cuda_home), "HOROVOD_CUDA_HOME": str(self.cuda_home)}
            env["PATH"] += f"{os.pathsep}{self.cuda_home / 'bin'}"
        if self.nccl_home is not None:
            env |= {"HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_NCCL_HOME": str(self.nccl_home)}
            env["HOROVOD_NCCL_LINK"] = "SHARED"
        return env


def target() -> Target:
    """The target on this machine. Raises UsageError without an installed torch."""
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        raise UsageError("Horovod is built against torch, and none is installed", hint="pip install torch") from None
    if torch_cuda() is None:
        return Target(torch)
    home = Path(os.environ.get("CUDA_HOME") or CUDA_HOME)
    if not (home / "bin" / "nvcc").exists():
        return Target(torch)
    gpu = Path("/proc/driver/nvidia/version").exists()
    return Target(torch, home, nccl_home() if gpu else None)


def torch_cuda() -> str | None:
    """The CUDA version that the installed torch was built for, or None; torch is not imported."""
    spec = importlib.util.find_spec("torch")
    version_file = Path(spec.origin).with_name("version.py") if spec is not None and spec.origin is not None else None
    try:
        text = version_file.read_text(encoding="utf-8") if version_file is not None else ""
    except OSError:
        return None
    match = re.search(r"^cuda\b[^=]*=\s*'([^']+)'", text, flags=re.MULTILINE)
    return match[1] if match else None


def nccl_home(roots: Sequence[Path] = (Path("/usr"), Path("/usr/local"))) -> Path | None:
    """The system's NCCL if it can be linked with: include/nccl.h and a library called libnccl.so; or None."""
    for root in roots:
        if (root / "include" / "nccl.h").exists() and list(root.glob("lib*/**/libnccl.so")):
            return root
    return None


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Folder of the wheels."""
    if environ.get("XBENCH_CACHE"):
        return Path(environ["XBENCH_CACHE"]) / "horovod"
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "xbench" / "horovod"


def patch(source: Path, *, cuda: bool) -> None:
    """Make Horovod build against today's torch. Raises RunError if its sources are not the known ones."""
    manager = source / "horovod" / "common" / "parameter_manager.cc"
    text = manager.read_text(encoding="utf-8")
    if text.count(REINITIALISE[0]) != 1:
        raise RunError(f"Horovod's {manager.name} is not the one that {VERSION} has")
    manager.write_text(text.replace(*REINITIALISE), encoding="utf-8")
    for name in ("CMakeLists.txt", "horovod/torch/CMakeLists.txt"):
        file = source / name
        text = file.read_text(encoding="utf-8")
        changed = text.replace("set(CMAKE_CXX_STANDARD 14)", f"set(CMAKE_CXX_STANDARD {STANDARD})")
        if not name.startswith("horovod"):
            changed = changed.replace(f"STANDARD {STANDARD})", f"STANDARD {STANDARD})\n{NO_SYMBOLS}")
        elif not cuda:
            changed = changed.replace(*NO_CUDA)
        if changed == text:
            raise RunError(f"Horovod's {name} is not the one that {VERSION} has: nothing in it asks for C++14")
        file.write_text(changed, encoding="utf-8")


def check_tools() -> None:
    """Raise UsageError if a compiler or make is missing; CMake comes from the registry if necessary."""
    for names in (("g++", "c++"), ("make",)):
        if not any(shutil.which(name) for name in names):
            raise UsageError(
                f"Horovod is C++, and there is no {names[0]} to build it with", hint="apt-get install g++ make"
            )


def build(wanted: Target, into: Path, log: Path) -> Path:
    """Download, patch and build; returns the wheel, in `into`. Raises UsageError and RunError."""
    check_tools()
    env = wanted.environment(os.environ)
    missing = [name for name in NEEDED if not installed(name)]
    if shutil.which("cmake") is None and not (Path(sys.executable).parent / "cmake").exists():
        missing.append("cmake")
    if missing:
        say(f"installing {', '.join(missing)}, which the build needs")
        install(missing, log)
    if not installed("setuptools", at_least=70):  # with built-in bdist_wheel
        install(["setuptools"], log)
    with Scratch("xbench-horovod-") as scratch:
        folder = Path(scratch)
        source = fetch(folder, log, env)
        patch(source, cuda=wanted.cuda_home is not None)
        kind = f"CUDA from {wanted.cuda_home}" if wanted.cuda_home else "CPUs alone"
        say(f"building it against torch {wanted.torch} for {kind}, which takes about 5 minutes on two cores")
        wheels = folder / "wheels"
        pip(
            ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), str(source)],
            log,
            what=f"Horovod {VERSION} could not be built against torch {wanted.torch}",
            env=env | {"HOROVOD_LOCAL_VERSION": LOCAL_VERSION},
        )
        (wheel,) = wheels.glob("horovod-*.whl")
        into.mkdir(parents=True, exist_ok=True)
        cached = into / wheel.name
        handle, part = part_file(cached)
        os.close(handle)
        shutil.copyfile(wheel, part)
        os.replace(part, cached)
        return cached


def fetch(folder: Path, log: Path, env: Mapping[str, str]) -> Path:
    """Download Horovod's source distribution and unpack it; returns its folder.

    Raises RunError, as for a wrong hash.
    """
    say(f"downloading Horovod {VERSION}")
    words = ["download", "--no-binary", ":all:", "--no-deps", "--no-build-isolation", "--dest", str(folder)]
    words += pinned(["horovod"], folder)
    pip(words, log, what=f"Horovod {VERSION} could not be downloaded", env=env)
    (archive,) = folder.glob(f"horovod-{VERSION}.tar.gz")
    unpack(archive, folder)
    return folder / f"horovod-{VERSION}"


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a source distribution. Raises RunError for a member that is not a file or folder below `folder`."""
    try:
        with tarfile.open(archive) as packed:
            if hasattr(tarfile, "data_filter"):
                packed.extractall(folder, filter="data")
                return
            for member in packed.getmembers():  # Debian 12's Python has no filters
                member_path = PurePosixPath(member.name)
                if not (member.isfile() or member.isdir()) or member_path.is_absolute() or ".." in member_path.parts:
                    raise RunError(f"{archive.name} is not unpacked: it holds {member.name!r}")
                member.mode &= 0o755
            packed.extractall(folder)
    except tarfile.TarError as error:
        raise RunError(f"{archive.name} is not unpacked: {error}") from None


def install(packages: Sequence[str], log: Path) -> None:
    """Install the pinned wheels of these packages, without their dependencies. Raises RunError."""
    with Scratch("xbench-horovod-") as scratch:
        words = ["install", "--no-deps", "--only-binary", ":all:", *pinned(packages, Path(scratch))]
        pip(words, log, what=f"{', '.join(packages)} could not be installed")


def pinned(packages: Sequence[str], folder: Path) -> list[str]:
    """Arguments of pip for exactly these packages as pinned; writes a file into `folder`."""
    entries = re.split(r"^(?=\w)", PINNED.read_text(encoding="utf-8"), flags=re.MULTILINE)
    chosen = folder / "pinned.txt"
    chosen.write_text("".join(entry for entry in entries if entry.partition("==")[0] in packages), encoding="utf-8")
    return ["--require-hashes", "--requirement", str(chosen)]


def pip(words: Sequence[str], log: Path, *, what: str, env: Mapping[str, str] | None = None) -> None:
    """Run pip with its output in `log`. Raises RunError with `what` and pip's own last error."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words]
    with open(log, "ab") as stream:
        stream.write(f"$ {' '.join(command)}\n".encode())
        stream.flush()
        try:
            result = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env=dict(env) if env is not None else None,
                timeout=BUILD_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise RunError(f"{what}: it took more than {BUILD_S:.0f} s", hint=f"see {log}") from None
    if result.returncode != 0:
        error_line = last_error(log.read_text(encoding="utf-8", errors="replace"))
        raise RunError(f"{what}: {error_line}", hint=f"see {log}")


def last_error(text: str) -> str:
    """The most useful line of a build's output: the first error of the compiler, of CMake, or pip's last."""
    lines = [line.strip() for line in text.splitlines()]
    for mark in ("error: #error", ": error:", "CMake Error", "No matching distribution", "ERROR:"):
        matches = [line for line in lines if mark in line]
        if matches:
            return matches[0].removeprefix("ERROR: ")
    return lines[-1] if lines else "it said nothing"


def installed(package: str, *, at_least: int = 0) -> bool:
    """True if a package is installed, of this major version or later."""
    try:
        return int(metadata.version(package).partition(".")[0]) >= at_least
    except (metadata.PackageNotFoundError, ValueError):
        return False


def check_import() -> None:
    """Import the installed Horovod in a separate process. Raises RunError."""
    words = [sys.executable, "-c", "import horovod.torch as hvd; assert hvd.gloo_built()"]
    result = subprocess.run(words, capture_output=True, text=True, cwd="/", timeout=300, check=False)
    if result.returncode != 0:
        error_line = (result.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise RunError(
            f"Horovod was installed and does not load: {error_line}",
            hint="python -m xbench.horovod.build --rebuild builds it anew",
        )


def run(*, rebuild: bool = False, wheel_only: bool = False, log: Path | None = None) -> Path:
    """Install the wheel of the cache, after building it if necessary; returns it. Raises UsageError and RunError."""
    wanted = target()
    if log is None:
        handle, name = tempfile.mkstemp(prefix="xbench-horovod-", suffix=".log")
        os.close(handle)
        wheel = run(rebuild=rebuild, wheel_only=wheel_only, log=Path(name))
        os.unlink(name)  # an error's hint names it
        return wheel
    log.write_bytes(b"")
    cached = cache_folder() / wanted.folder
    wheels = [] if rebuild else sorted(cached.glob(f"horovod-{VERSION}+{LOCAL_VERSION}-*.whl"))
    wheel = wheels[0] if wheels else build(wanted, cached, log)
    if wheel_only:
        return wheel
    pip(["install", "--force-reinstall", "--no-deps", str(wheel)], log, what="Horovod's wheel could not be installed")
    missing = [name for name in NEEDED if not installed(name)]
    if missing:
        install(missing, log)
    check_import()
    return wheel


def say(text: str) -> None:
    """Print progress, for people."""
    print(text, file=sys.stderr, flush=True)


def main(argv: Sequence[str]) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m xbench.horovod.build", description="Build and install Horovod.")
    parser.add_argument("--rebuild", action="store_true", help="build even where the cache has a wheel")
    parser.add_argument("--wheel-only", action="store_true", help="build the wheel into the cache, and install nothing")
    parser.add_argument("--log", type=Path, help="where the output of pip and of the compiler goes")
    options = parser.parse_args(argv)
    try:
        wheel = run(rebuild=options.rebuild, wheel_only=options.wheel_only, log=options.log)
    except XbenchError as error:
        hint = f" ({error.hint})" if error.hint else ""
        print(f"error: {error}{hint}", file=sys.stderr)
        return error.exit_code
    say(f"{'built' if options.wheel_only else 'installed'} {wheel}")
    return 0


if __name__ == "__main__":
    secure()
    sys.exit(main(sys.argv[1:]))
