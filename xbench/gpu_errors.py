"""Explanations of errors of torch, CUDA and NCCL on GPUs, each as one sentence and a hint.

Their own messages have ten lines, name no workload and no rank, and most of their advice does not apply. Every function
here is pure: it takes facts or the text of an error and returns words. So a machine without a GPU can test what a
machine with one will report. The texts are those of torch 2.11 to 2.15 and of NCCL up to 2.30.

- A driver older than torch's CUDA: a warning of `torch.cuda.is_available()`, or a RuntimeError at the first use.
- No memory left: OutOfMemoryError of torch's allocator, or the errors of CUDA, cuBLAS, cuDNN and NCCL; on a CPU a
  RuntimeError of its allocator, or MemoryError.
- A GPU that another process holds, in compute mode EXCLUSIVE_PROCESS: error 46 of CUDA at the first use.
- Two ranks on one GPU: DistBackendError at the first collective, since NCCL refuses that; from 2.30.3 on an option
  allows it.
- A missing GPU: there is no message until a rank dies of an "invalid device ordinal", so the GPUs are counted.

Nothing here imports torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from xbench.errors import SpecError
from xbench.spec import WorkloadSpec
from xbench.text import counted
from xbench.units import format_bytes

SHARING_NCCL = (2, 30, 3)
"""The first NCCL that lets ranks share a GPU, if SHARING_VARIABLE allows it."""

SHARING_VARIABLE = "NCCL_MULTI_RANK_GPU_ENABLE"
MAX_NAMED = 8

_TOO_OLD = re.compile(r"driver on your system is too old \(found version (\d+)\)")
_NO_DRIVER = re.compile(r"Found no NVIDIA driver", re.IGNORECASE)
_NO_GPU = re.compile(rf"{_NO_DRIVER.pattern}|you might not have a CUDA gpu|Can't initialize NVML", re.IGNORECASE)
_A_GPU = re.compile(r"\s*(\d|GPU-|MIG-)")
_NCCL_VERSION = re.compile(r"NCCL version (\d+(?:\.\d+)*)")
_SHARED_GPU = re.compile(
    r"Duplicate GPU detected ?: rank (\d+) and rank (\d+)|Multiple Ranks are using the same GPU", re.IGNORECASE
)
_BUSY = re.compile(
    r"CUDA-capable device(?:s|\(s\))? (?:is/)?are busy or unavailable|cudaErrorDevicesUnavailable", re.IGNORECASE
)
_OUT_OF_MEMORY = re.compile(
    r"CUDA out of memory|CUDA error: out of memory|Cuda failure (?:2\b|'out of memory')|CUBLAS_STATUS_ALLOC_FAILED"
    r"|CUDNN_STATUS_ALLOC_FAILED|DefaultCPUAllocator: can't allocate memory"
)
_SIZE = r"(\d+(?:\.\d+)? (?:bytes|[KMGTE]iB))"
_WANTED = re.compile(rf"(?:Tried to allocate|Requested size:) {_SIZE}")
_THERE = re.compile(rf"GPU (\d+) has a total capacity of {_SIZE} of which {_SIZE} is free")
_CPU_WANTED = re.compile(r"you tried to allocate (\d+) bytes")


class Explanation(NamedTuple):
    """Explanation for a user: `what` continues a sentence that begins with the rank, `hint` is a remedy."""

    what: str
    hint: str | None
    out_of_memory: bool = False


def explain(kind: str, text: str, spec: WorkloadSpec) -> Explanation | None:
    """Explanation of an exception in a rank, from its class's name and its text; None for an unknown one.

    'ran out of GPU memory with resnet50, batch 256: …'. `spec` is the rank's workload.
    """
    batch = f", batch {spec.batch_size}" if spec.batch_size is not None else ""
    short = shortage(kind, text, f" with {spec.title}{batch}")
    if short is not None:
        return Explanation(short, lower_what(spec), out_of_memory=True)
    shared_gpu = _SHARED_GPU.search(text)
    if shared_gpu:
        version = _NCCL_VERSION.search(text)
        rank_numbers = f" (ranks {shared_gpu[1]} and {shared_gpu[2]})" if shared_gpu[1] else ""
        nccl = version[1] if version else None
        library = f"NCCL {nccl}" if nccl else "NCCL"
        return Explanation(f"found another rank on its GPU{rank_numbers}, which {library} refuses", _sharing_hint(nccl))
    if _BUSY.search(text):
        return Explanation(
            "found its GPU busy or unavailable (CUDA error 46), as in compute mode EXCLUSIVE_PROCESS, in which a GPU "
            "takes one process",
            "leave out concurrent, which needs two processes on a GPU, or set compute mode DEFAULT (nvidia-smi -c "
            "DEFAULT)",
        )
    if _TOO_OLD.search(text):
        return Explanation(f"cannot use its GPU: {no_gpu(text, None)[0]}", no_gpu(text, None)[1])
    return None


def shortage(kind: str, text: str, context: str = "") -> str | None:
    """'ran out of GPU memory: 2.00 GiB were wanted, and 1.20 GiB of GPU 0's 139.72 GiB were free', or None.

    It contains as much as the text tells: torch's allocator on GPUs gives all figures, CUDA's libraries none. `context`
    is inserted before the colon.
    """
    if kind not in ("OutOfMemoryError", "MemoryError") and not _OUT_OF_MEMORY.search(text):
        return None
    on_cpu = kind == "MemoryError" or "DefaultCPUAllocator" in text
    what = ("ran out of memory" if on_cpu else "ran out of GPU memory") + context
    wanted, capacity, bytes_wanted = _WANTED.search(text), _THERE.search(text), _CPU_WANTED.search(text)
    size = wanted[1] if wanted else format_bytes(int(bytes_wanted[1])) if bytes_wanted else None
    if size is None:
        return what
    sentence = f"{what}: {size} were wanted"
    return sentence + (f", and {capacity[3]} of GPU {capacity[1]}'s {capacity[2]} were free" if capacity else "")


def lower_what(spec: WorkloadSpec) -> str:
    """Hint on the option to lower if memory runs out."""
    if spec.batch_size is None:
        return "let its factory make a smaller batch"
    size = " or --image-size" if spec.image_size is not None else " or --seq-len" if spec.seq_len is not None else ""
    return f"a smaller --batch-size{size} needs less"


def no_gpu(message: str, built_for: str | None) -> tuple[str, str]:
    """Reason why torch can use no GPU, and a remedy, from its warning or error and the CUDA it was built for.

    An empty text means that there is none.
    """
    old = _TOO_OLD.search(message)
    if old:
        cuda = cuda_version(int(old[1]))
        needed = f" for CUDA {built_for}" if built_for else " for a newer one"
        return (
            f"the NVIDIA driver here knows CUDA up to {cuda}, and this torch was built{needed}",
            f"update the driver, or install a torch that was built for CUDA {cuda} or older",
        )
    if built_for is None and not message:
        return "this torch was built without CUDA", "install a torch that was built with it, or try --device cpu"
    if _NO_DRIVER.search(message) or not message:
        return "torch sees no usable GPU here", "try --device cpu"
    line = " ".join(message.split()).removeprefix("CUDA initialization: ")
    first = re.split(r"(?<=[.!?]) (?=[A-Z(])", line)[0].rstrip(".")
    return f"torch sees no usable GPU here: {first}", "try --device cpu"


def unusable_gpu(message: str, built_for: str | None, listed: int = 0) -> SpecError | None:
    """Error for `--device auto` if a GPU exists and torch cannot use it; None if there is simply none.

    `message` and `built_for` are those of `no_gpu`. `listed` is the number of GPUs that the driver lists.
    """
    if not listed and (not message or _NO_GPU.search(message)):
        return None
    reason, hint = no_gpu(message, built_for)
    seen = f"the driver lists {counted(listed, 'GPU')}, and " if listed else ""
    return SpecError(
        f"--device auto takes GPUs, and can use none: {seen}{reason}",
        hint=hint if "--device cpu" in hint else f"{hint}; or try --device cpu",
    )


def hides_all(environ: Mapping[str, str]) -> bool:
    """True if CUDA_VISIBLE_DEVICES hides all GPUs, as its empty value and -1 do."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    return visible is not None and not _A_GPU.match(visible)


def cuda_version(number: int) -> str:
    """'12.4' from 12040, as CUDA counts its versions."""
    return f"{number // 1000}.{number % 1000 // 10}"


def gpu_index(device: str) -> int | None:
    """The 3 of 'cuda:3'; None without a number. Raises SpecError for an invalid number."""
    name, colon, number = device.partition(":")
    if not colon:
        return None
    if name != "cuda" or not number.isascii() or not number.isdigit():
        raise SpecError(f"--device: {device!r} is not a device", hint="auto, cpu, cuda, or cuda:N for one GPU")
    return int(number)


def check_index(device: str, names: Sequence[str]) -> None:
    """Refuse a GPU that does not exist. Raises SpecError, which lists the existing ones."""
    index = gpu_index(device)
    if index is None or index < len(names):
        return
    some = [f"cuda:{number} ({name})" for number, name in enumerate(names[:MAX_NAMED])]
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    raise SpecError(
        f"--device {device}: there is no such GPU; this machine has {', '.join(some)}{more}", hint="try --device cuda:0"
    )


def check_ranks(
    fabric: str, ranks: int, gpus: int, index: int | None, nccl: str | None, environ: Mapping[str, str]
) -> None:
    """Refuse more ranks on this machine than GPUs, if NCCL cannot share one, or than the one that was picked.

    `fabric` is its text, `index` the N of `--device cuda:N`, `nccl` NCCL's version. Raises SpecError.
    """
    if index is not None and ranks > 1:
        raise SpecError(
            f"--device cuda:{index} picks one GPU, and {fabric} has {ranks} ranks here",
            hint="--device cuda gives each its own; --fabric local:ranks=1 takes one",
        )
    if ranks <= gpus or (can_share(nccl) and environ.get(SHARING_VARIABLE) == "1"):
        return
    gpu_count = counted(gpus, "GPU")
    library = f"NCCL {nccl}" if nccl else "NCCL"
    raise SpecError(
        f"{fabric} puts {ranks} ranks on {gpu_count}, and {library} refuses two ranks on one GPU",
        hint=_sharing_hint(nccl),
    )


def check_variables(device: str, environ: Mapping[str, str]) -> list[str]:
    """Warnings about variables that lengthen steps on this device. Raises SpecError for one that leaves no overlap."""
    if device != "cpu" and _is_on(environ.get("CUDA_LAUNCH_BLOCKING", "")):
        raise SpecError(
            "CUDA_LAUNCH_BLOCKING makes the host wait for each kernel, so no communication overlaps any computation",
            hint="unset CUDA_LAUNCH_BLOCKING",
        )
    return [
        f"{name}={environ[name]} is in the environment: {effect}"
        for name, (slows, effect) in _SLOWING.items()
        if (device != "cpu" or name in _ON_CPUS) and slows(environ.get(name, ""))
    ]


def _is_on(value: str) -> bool:
    return value.strip().lower() not in ("", "0", "n", "no", "f", "false", "off")


_SLOWING: Mapping[str, tuple[Callable[[str], bool], str]] = {
    "TORCH_NCCL_BLOCKING_WAIT": (_is_on, "each wait for a collective blocks the host, which else runs ahead"),
    "NCCL_BLOCKING_WAIT": (_is_on, "each wait for a collective blocks the host, which else runs ahead"),
    "TORCH_NCCL_DESYNC_DEBUG": (_is_on, "each collective is noted in the store"),
    "TORCH_NCCL_NAN_CHECK": (_is_on, "the input of each collective is searched for NaN"),
    "TORCH_DISTRIBUTED_DEBUG": (
        lambda value: value.strip().upper() == "DETAIL", "before each collective the ranks compare what they will send"
    ),
    "NCCL_DEBUG": (lambda value: value.strip().upper() == "TRACE", "NCCL prints a line for each call"),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": (_is_on, "each tensor is a call of the driver, which may wait for the GPU"),
}  # fmt: skip
"""Variables by name: the values that lengthen steps, and their effect."""

_ON_CPUS = {"TORCH_DISTRIBUTED_DEBUG"}


def can_share(nccl: str | None) -> bool:
    """True if an option lets ranks share a GPU under this NCCL."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", nccl or "")[:3])
    return numbers >= SHARING_NCCL


def _sharing_hint(nccl: str | None) -> str:
    if can_share(nccl):
        return f"it allows that, experimentally, with {SHARING_VARIABLE}=1 in the environment; or try --device cpu"
    first = ".".join(str(number) for number in SHARING_NCCL)
    return f"NCCL {first} and newer allow that, experimentally, with {SHARING_VARIABLE}=1; or try --device cpu"
