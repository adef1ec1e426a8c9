"""`make horovod`: build Horovod from its source distribution against the torch that is installed, and install it.

    python -m xbench.horovod.build [--rebuild] [--wheel-only] [--log FILE]

Horovod's last release (0.28.1, of 2023) asks for C++14, and today's torch headers need C++20, so two lines of its CMake
files are changed. A third change lets it be initialised again: once HOROVOD_FUSION_THRESHOLD or HOROVOD_CYCLE_TIME was
set, its second `init` writes beyond the end of a vector. Nothing that runs in a step is touched; the version says that
it is this build (0.28.1+xbench). With Gloo for CPUs and its own launcher's rendezvous, without MPI. A torch of CUDA
brings CUDA into the build, which needs nvcc; where there is no nvcc, that one line is left out as well, and Horovod
then averages on CPUs alone. NCCL is built in where a GPU and NCCL's headers are.

The wheel is kept in $XBENCH_CACHE/horovod, else $XDG_CACHE_HOME/xbench/horovod, else ~/.cache/xbench/horovod, in a
folder named after everything that it depends on, and installed from there the next time. About 5 minutes on two cores.

What comes from the package index is pinned by hash in pinned.txt, beside this file; nothing else is installed.
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
from xbench.horovod.available import LOCAL_VERSION, VERSION
from xbench.scratch import Scratch, part_file
from xbench.streams import secure

NEEDED = ("setuptools", "cloudpickle", "psutil", "pyyaml", "packaging", "cffi", "pycparser")
"""Packages that Horovod's setup, and Horovod itself, import; the last is cffi's."""

PINNED = Path(__file__).with_name("pinned.txt")

BUILD_S = 3600.0
STANDARD = 20
CUDA_HOME = Path("/usr/local/cuda")
NO_CUDA = ("elseif (Pytorch_CUDA AND NOT HAVE_CUDA)\n    add_cuda()\n", "")
"""In horovod/torch/CMakeLists.txt: what brings in CUDA because torch has it."""

AGAIN = (
    "  } else {\n    Eigen::VectorXd v = TunableParameter::BestValue();\n    v[index_[variable]] = value;\n",
    "  } else if (fixed_values_.find(variable) != fixed_values_.end()) {\n    fixed_values_[variable] = value;\n"
    "  } else {\n    Eigen::VectorXd v = TunableParameter::BestValue();\n    v[index_[variable]] = value;\n",
)
"""In horovod/common/parameter_manager.cc: a fixed value is no longer in the vector that a later `init` writes to."""


@dataclass(frozen=True)
class Target:
    """Everything that a wheel depends on."""

    torch: str
    cuda_home: Path | None = None
    """Where nvcc is, if CUDA is built in."""
    nccl_home: Path | None = None
    """A folder with include/nccl.h and lib, if NCCL is built in."""

    @property
    def folder(self) -> str:
        """'2.15.0-py3.11-linux-x86_64-cpu'."""
        python = f"py{sys.version_info.major}.{sys.version_info.minor}"
        system = sysconfig.get_platform()
        kind = "nccl" if self.nccl_home else "cuda" if self.cuda_home else "cpu"
        return f"{self.torch}-{python}-{system}-{kind}"

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """What Horovod's setup reads, over the caller's own environment."""
        env = {name: value for name, value in environ.items() if not name.startswith("HOROVOD_")}
        env |= {
            "HOROVOD_WITH_PYTORCH": "1",
            "HOROVOD_WITHOUT_TENSORFLOW": "1",
            "HOROVOD_WITHOUT_MXNET": "1",
            "HOROVOD_WITH_GLOO": "1",
            "HOROVOD_WITHOUT_MPI": "1",
            "HOROVOD_CPU_OPERATIONS": "GLOO",
            "CMAKE_POLICY_VERSION_MINIMUM": "3.5",  # CMake 4 refuses the bundled Gloo's own, older one
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
    """What is to be built here. Raises UsageError where no torch is installed."""
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        raise UsageError("Horovod is built against torch, and none is installed", hint="make installs it") from None
    if torch_cuda() is None:
        return Target(torch)
    home = Path(os.environ.get("CUDA_HOME") or CUDA_HOME)
    if not (home / "bin" / "nvcc").exists():
        return Target(torch)
    gpu = Path("/proc/driver/nvidia/version").exists()
    return Target(torch, home, nccl_home() if gpu else None)


def torch_cuda() -> str | None:
    """The CUDA version that the installed torch was built for, or None; torch is not imported."""
    found = importlib.util.find_spec("torch")
    place = Path(found.origin).with_name("version.py") if found is not None and found.origin is not None else None
    try:
        text = place.read_text(encoding="utf-8") if place is not None else ""
    except OSError:
        return None
    said = re.search(r"^cuda\b[^=]*=\s*'([^']+)'", text, flags=re.MULTILINE)
    return said[1] if said else None


def nccl_home(roots: Sequence[Path] = (Path("/usr"), Path("/usr/local"))) -> Path | None:
    """The system's NCCL as far as one can link with it: include/nccl.h and a library called libnccl.so; or None."""
    for root in roots:
        if (root / "include" / "nccl.h").exists() and list(root.glob("lib*/**/libnccl.so")):
            return root
    return None


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where wheels are kept."""
    if environ.get("XBENCH_CACHE"):
        return Path(environ["XBENCH_CACHE"]) / "horovod"
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "xbench" / "horovod"


def patch(source: Path, *, cuda: bool) -> None:
    """Make Horovod build against today's torch. Raises RunError when its sources are not the known ones."""
    manager = source / "horovod" / "common" / "parameter_manager.cc"
    text = manager.read_text(encoding="utf-8")
    if text.count(AGAIN[0]) != 1:
        raise RunError(f"Horovod's {manager.name} is not the one that {VERSION} has")
    manager.write_text(text.replace(*AGAIN), encoding="utf-8")
    for name in ("CMakeLists.txt", "horovod/torch/CMakeLists.txt"):
        file = source / name
        text = file.read_text(encoding="utf-8")
        changed = text.replace("set(CMAKE_CXX_STANDARD 14)", f"set(CMAKE_CXX_STANDARD {STANDARD})")
        if not cuda and name.startswith("horovod"):
            changed = changed.replace(*NO_CUDA)
        if changed == text:
            raise RunError(f"Horovod's {name} is not the one that {VERSION} has: nothing in it asks for C++14")
        file.write_text(changed, encoding="utf-8")


def check_tools() -> None:
    """Raise UsageError for a compiler or a make that is missing; CMake comes from the registry if need be."""
    for names in (("g++", "c++"), ("make",)):
        if not any(shutil.which(name) for name in names):
            raise UsageError(
                f"Horovod is C++, and there is no {names[0]} to build it with", hint="apt-get install g++ make"
            )


def build(what: Target, into: Path, log: Path) -> Path:
    """Download, patch and build; the wheel lies in `into`. Raises UsageError and RunError."""
    check_tools()
    env = what.environment(os.environ)
    missing = [name for name in NEEDED if not installed(name)]
    if shutil.which("cmake") is None and not (Path(sys.executable).parent / "cmake").exists():
        missing.append("cmake")
    if missing:
        say(f"installing {', '.join(missing)}, which the build needs")
        install(missing, log)
    if not installed("setuptools", at_least=70):  # with bdist_wheel built in
        install(["setuptools"], log)
    with Scratch("xbench-horovod-") as scratch:
        folder = Path(scratch)
        source = fetch(folder, log, env)
        patch(source, cuda=what.cuda_home is not None)
        kind = f"CUDA from {what.cuda_home}" if what.cuda_home else "CPUs alone"
        say(f"building it against torch {what.torch} for {kind}, which takes about 5 minutes on two cores")
        wheels = folder / "wheels"
        pip(
            ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), str(source)],
            log,
            what=f"Horovod {VERSION} could not be built against torch {what.torch}",
            env=env | {"HOROVOD_LOCAL_VERSION": LOCAL_VERSION},
        )
        (wheel,) = wheels.glob("horovod-*.whl")
        into.mkdir(parents=True, exist_ok=True)
        kept = into / wheel.name
        handle, part = part_file(kept)
        os.close(handle)
        shutil.copyfile(wheel, part)
        os.chmod(part, 0o644)
        os.replace(part, kept)
        return kept


def fetch(folder: Path, log: Path, env: Mapping[str, str]) -> Path:
    """Download Horovod's source distribution and unpack it; its folder. Raises RunError, as for another file's hash."""
    say(f"downloading Horovod {VERSION}")
    words = ["download", "--no-binary", ":all:", "--no-deps", "--no-build-isolation", "--dest", str(folder)]
    words += pinned(["horovod"], folder)
    pip(words, log, what=f"Horovod {VERSION} could not be downloaded", env=env)
    (archive,) = folder.glob(f"horovod-{VERSION}.tar.gz")
    unpack(archive, folder)
    return folder / f"horovod-{VERSION}"


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a source distribution. Raises RunError for a member that is no file or folder below `folder`."""
    try:
        with tarfile.open(archive) as packed:
            if hasattr(tarfile, "data_filter"):
                packed.extractall(folder, filter="data")
                return
            for member in packed.getmembers():  # Debian 12's Python has no filters
                place = PurePosixPath(member.name)
                if not (member.isfile() or member.isdir()) or place.is_absolute() or ".." in place.parts:
                    raise RunError(f"{archive.name} is not unpacked: it holds {member.name!r}")
                member.mode &= 0o755
            packed.extractall(folder)
    except tarfile.TarError as error:
        raise RunError(f"{archive.name} is not unpacked: {error}") from None


def install(packages: Sequence[str], log: Path) -> None:
    """Install the pinned wheels of these packages, and nothing that they ask for. Raises RunError."""
    with Scratch("xbench-horovod-") as scratch:
        words = ["install", "--no-deps", "--only-binary", ":all:", *pinned(packages, Path(scratch))]
        pip(words, log, what=f"{', '.join(packages)} could not be installed")


def pinned(packages: Sequence[str], folder: Path) -> list[str]:
    """pip's words for exactly these packages as they are pinned; writes a file into `folder`."""
    entries = re.split(r"^(?=\w)", PINNED.read_text(encoding="utf-8"), flags=re.MULTILINE)
    chosen = folder / "pinned.txt"
    chosen.write_text("".join(one for one in entries if one.partition("==")[0] in packages), encoding="utf-8")
    return ["--require-hashes", "--requirement", str(chosen)]


def pip(words: Sequence[str], log: Path, *, what: str, env: Mapping[str, str] | None = None) -> None:
    """Run pip with its output in `log`. Raises RunError: `what`, and pip's own last error."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words]
    with open(log, "ab") as stream:
        stream.write(f"$ {' '.join(command)}\n".encode())
        stream.flush()
        try:
            done = subprocess.run(
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
    if done.returncode != 0:
        said = last_error(log.read_text(encoding="utf-8", errors="replace"))
        raise RunError(f"{what}: {said}", hint=f"see {log}")


def last_error(text: str) -> str:
    """The line of a build's output that says most: the first error of the compiler, of CMake, or pip's last."""
    lines = [line.strip() for line in text.splitlines()]
    for mark in ("error: #error", ": error:", "CMake Error", "No matching distribution", "ERROR:"):
        found = [line for line in lines if mark in line]
        if found:
            return found[0].removeprefix("ERROR: ")
    return lines[-1] if lines else "it said nothing"


def installed(package: str, *, at_least: int = 0) -> bool:
    """Whether a package is installed, of this major version or later."""
    try:
        return int(metadata.version(package).partition(".")[0]) >= at_least
    except (metadata.PackageNotFoundError, ValueError):
        return False


def check_import() -> None:
    """Import what was installed in a process of its own. Raises RunError."""
    words = [sys.executable, "-c", "import horovod.torch as hvd; assert hvd.gloo_built()"]
    done = subprocess.run(words, capture_output=True, text=True, cwd="/", timeout=300, check=False)
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise RunError(
            f"Horovod was installed and does not load: {said}",
            hint="python -m xbench.horovod.build --rebuild builds it anew",
        )


def run(*, rebuild: bool = False, wheel_only: bool = False, log: Path | None = None) -> Path:
    """Install the wheel of the cache, built first where there is none; the wheel. Raises UsageError and RunError."""
    what = target()
    if log is None:
        handle, name = tempfile.mkstemp(prefix="xbench-horovod-", suffix=".log")
        os.close(handle)
        wheel = run(rebuild=rebuild, wheel_only=wheel_only, log=Path(name))
        os.unlink(name)  # an error's hint names it
        return wheel
    log.write_bytes(b"")
    kept = cache_folder() / what.folder
    wheels = [] if rebuild else sorted(kept.glob(f"horovod-{VERSION}+{LOCAL_VERSION}-*.whl"))
    wheel = wheels[0] if wheels else build(what, kept, log)
    if wheel_only:
        return wheel
    pip(["install", "--force-reinstall", "--no-deps", str(wheel)], log, what="Horovod's wheel could not be installed")
    missing = [name for name in NEEDED if not installed(name)]
    if missing:
        install(missing, log)
    check_import()
    return wheel


def say(text: str) -> None:
    """Progress, for people."""
    print(text, file=sys.stderr, flush=True)


def main(argv: Sequence[str]) -> int:
    """The command line: an exit code."""
    parser = argparse.ArgumentParser(prog="python -m xbench.horovod.build", description="Build and install Horovod.")
    parser.add_argument("--rebuild", action="store_true", help="build even where the cache has a wheel")
    parser.add_argument("--wheel-only", action="store_true", help="build the wheel into the cache, and install nothing")
    parser.add_argument("--log", type=Path, help="where the output of pip and of the compiler goes")
    asked = parser.parse_args(argv)
    try:
        wheel = run(rebuild=asked.rebuild, wheel_only=asked.wheel_only, log=asked.log)
    except XbenchError as error:
        hint = f" ({error.hint})" if error.hint else ""
        print(f"error: {error}{hint}", file=sys.stderr)
        return error.exit_code
    say(f"{'built' if asked.wheel_only else 'installed'} {wheel}")
    return 0


if __name__ == "__main__":
    secure()
    sys.exit(main(sys.argv[1:]))
