"""What a machine with a GPU says when it cannot: torch's and NCCL's own texts in, one sentence out."""

from __future__ import annotations

import pytest

from xbench import gpu_errors
from xbench.errors import SpecError
from xbench.gpu_errors import lower_what, no_gpu, shortage, shortage_in, unusable_gpu
from xbench.spec import WorkloadSpec

IMAGES = WorkloadSpec(name="resnet50", batch_size=256, image_size=224)
TOKENS = WorkloadSpec(name="bert-base", batch_size=64, seq_len=512)
FACTORY = WorkloadSpec(name="/home/me/train.py:make")

OUT_OF_MEMORY = (
    "CUDA out of memory. Tried to allocate 226.00 MiB. GPU 0 has a total capacity of 15.70 GiB of which 210.38 MiB is "
    "free. Including non-PyTorch memory, this process has 15.48 GiB memory in use. Of the allocated memory 14.81 GiB "
    "is allocated by PyTorch, and 336.73 MiB is reserved by PyTorch but unallocated. If reserved but unallocated "
    "memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See "
    "documentation for Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)
OTHERS_THERE = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 139.72 GiB of which 1.20 GiB is "
    "free. Process 4711 has 100.00 GiB memory in use. Including non-PyTorch memory, this process has 38.00 GiB memory "
    "in use."
)
ON_CPU = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "140737488355328 bytes. Error code 12 (Cannot allocate memory)"
)
TOO_OLD = (
    "The NVIDIA driver on your system is too old (found version 12040). Please update your GPU driver by downloading "
    "and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx Alternatively, go to: "
    "https://pytorch.org to install a PyTorch version that has been compiled with your version of the CUDA driver."
)
NO_DRIVER = (
    "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver from "
    "http://www.nvidia.com/Download/index.aspx"
)
UNKNOWN = (
    "CUDA initialization: CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing env "
    "variable CUDA_VISIBLE_DEVICES after program start. Setting the available devices to be zero. (Triggered "
    "internally at /pytorch/c10/cuda/CUDAFunctions.cpp:119.)"
)


@pytest.mark.parametrize(
    ("kind", "text", "sentence"),
    [
        ("OutOfMemoryError", OUT_OF_MEMORY,
         "ran out of GPU memory: 226.00 MiB were wanted, and 210.38 MiB of GPU 0's 15.70 GiB were free"),
        ("OutOfMemoryError", OTHERS_THERE,
         "ran out of GPU memory: 2.00 GiB were wanted, and 1.20 GiB of GPU 3's 139.72 GiB were free"),
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate more than 1EB memory.", "ran out of GPU memory"),
        ("AcceleratorError", "CUDA error: out of memory\nCUDA kernel errors might be", "ran out of GPU memory"),
        ("RuntimeError", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`", "ran out of GPU memory"),
        ("DistBackendError", "ncclUnhandledCudaError: x\nCuda failure 2 'out of memory'", "ran out of GPU memory"),
        ("RuntimeError", ON_CPU, "ran out of memory: 131072 GiB were wanted"),
        ("MemoryError", "Unable to allocate 7.28 TiB for an array", "ran out of memory"),
        ("RuntimeError", "CUDA error: an illegal memory access was encountered", None),
        ("DistBackendError", "Cuda failure 217 'peer access is not supported'", None),
        ("ValueError", "no memory of this", None),
    ],
)  # fmt: skip
def test_a_shortage_says_what_was_wanted_and_what_there_was(kind: str, text: str, sentence: str | None) -> None:
    assert shortage(kind, text) == sentence


@pytest.mark.parametrize(
    ("spec", "subject", "hint"),
    [
        (IMAGES, "resnet50, batch 256", "a smaller --batch-size or --image-size needs less"),
        (TOKENS, "bert-base, batch 64", "a smaller --batch-size or --seq-len needs less"),
        (FACTORY, "train.py:make", "let its factory make a smaller batch"),
    ],
)
def test_a_shortage_in_a_rank_names_the_workload_and_what_to_lower(spec: WorkloadSpec, subject: str, hint: str) -> None:
    found = shortage_in(spec, MemoryError(OUT_OF_MEMORY))
    assert str(found).startswith(f"ran out of memory with {subject}: 226.00 MiB were wanted")
    assert lower_what(spec) == hint
    assert shortage_in(spec, RuntimeError("mat1 and mat2 shapes cannot be multiplied (4x5 and 3x2)")) is None


@pytest.mark.parametrize(
    ("said", "built_for", "sentence", "hint"),
    [
        ("", "13.0", "torch sees no usable GPU here", "try --device cpu"),
        ("", None, "this torch was built without CUDA", "install a torch that was built with it, or try --device cpu"),
        (NO_DRIVER, "13.0", "torch sees no usable GPU here", "try --device cpu"),
        (f"CUDA initialization: {TOO_OLD} (Triggered internally at /pytorch/c10/cuda/CUDAFunctions.cpp:119.)", "13.0",
         "the NVIDIA driver here knows CUDA up to 12.4, and this torch was built for CUDA 13.0",
         "update the driver, or install a torch that was built for CUDA 12.4 or older"),
        (UNKNOWN, "13.0",
         "torch sees no usable GPU here: CUDA unknown error - this may be due to an incorrectly set up environment, "
         "e.g. changing env variable CUDA_VISIBLE_DEVICES after program start", "try --device cpu"),
    ],
)  # fmt: skip
def test_why_there_is_no_gpu(said: str, built_for: str | None, sentence: str, hint: str) -> None:
    assert no_gpu(said, built_for) == (sentence, hint)


def test_a_gpu_that_cannot_be_used_is_told_from_none() -> None:
    maybe = "CUDA initialization: CUDA driver initialization failed, you might not have a CUDA gpu."
    for said in ("", NO_DRIVER, maybe):
        assert unusable_gpu(said, "13.0") is None
        assert unusable_gpu(said, "13.0", listed=1) is not None
    assert unusable_gpu(TOO_OLD, "13.0") is not None
    assert unusable_gpu(UNKNOWN, "13.0") is not None


@pytest.mark.parametrize(
    ("visible", "hidden"), [("", True), ("-1", True), ("NoDevFiles", True), ("0", False), ("GPU-8f", False)]
)
def test_gpus_that_the_environment_hides(visible: str, hidden: bool) -> None:
    assert gpu_errors.hides_all({"CUDA_VISIBLE_DEVICES": visible}) is hidden
    assert not gpu_errors.hides_all({})


def test_cuda_counts_versions_its_own_way() -> None:
    assert [gpu_errors.cuda_version(number) for number in (12040, 11080, 13000)] == ["12.4", "11.8", "13.0"]


def test_the_index_of_a_gpu() -> None:
    assert [gpu_errors.gpu_index(asked) for asked in ("auto", "cpu", "cuda", "cuda:0", "cuda:12")] == [
        None, None, None, 0, 12,
    ]  # fmt: skip
    for wrong in ("cuda:", "cuda:x", "cpu:0", "cuda:-1", "cuda:²"):
        with pytest.raises(SpecError, match="is not a device"):
            gpu_errors.gpu_index(wrong)


def test_a_gpu_that_does_not_exist_is_refused_with_those_that_do() -> None:
    gpu_errors.check_index("cuda:1", ["NVIDIA H200"] * 2)
    gpu_errors.check_index("auto", [])
    with pytest.raises(SpecError) as caught:
        gpu_errors.check_index("cuda:3", ["NVIDIA H200", "NVIDIA L4"])
    assert str(caught.value) == (
        "--device cuda:3: there is no such GPU; this machine has cuda:0 (NVIDIA H200), cuda:1 (NVIDIA L4)"
    )
    assert caught.value.hint == "try --device cuda:0"
    with pytest.raises(SpecError, match=r"cuda:7 \(G\) and 8 more\n"):
        gpu_errors.check_index("cuda:16", ["G"] * 16)


def check_ranks(ranks: int, gpus: int, index: int | None = None, nccl: str | None = "2.27.3", **environ: str) -> None:
    gpu_errors.check_ranks("local:ranks=2", ranks, gpus, index, nccl, environ)


@pytest.mark.parametrize(
    ("nccl", "told", "allowed", "hint"),
    [
        ("2.30.3", True, True, ""),
        ("3.0.0", True, True, ""),
        ("2.30.7", False, False, "it allows that, experimentally, with"),
        ("2.31", False, False, "it allows that, experimentally, with"),
        ("2.30.2", True, False, "NCCL 2.30.3 and newer allow that"),
        ("2.30", True, False, "NCCL 2.30.3 and newer allow that"),
        ("2.21.5", False, False, "NCCL 2.30.3 and newer allow that"),
        (None, True, False, "NCCL 2.30.3 and newer allow that"),
    ],
)
def test_two_ranks_on_one_gpu_need_a_newer_nccl_that_is_told_to(
    nccl: str | None, told: bool, allowed: bool, hint: str
) -> None:
    check_ranks(2, 2, nccl=nccl)
    environ = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"} if told else {}
    if allowed:
        check_ranks(2, 1, nccl=nccl, **environ)
        return
    named = f"NCCL {nccl}" if nccl else "NCCL"
    with pytest.raises(SpecError, match=f"puts 2 ranks on 1 GPU, and {named} refuses two ranks on one GPU") as caught:
        check_ranks(2, 1, nccl=nccl, **environ)
    assert str(caught.value.hint).startswith(hint)
    assert "NCCL_MULTI_RANK_GPU_ENABLE=1" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("device", "name", "value", "warned"),
    [
        ("cuda", "TORCH_NCCL_BLOCKING_WAIT", "1", True),
        ("cuda", "TORCH_NCCL_BLOCKING_WAIT", "0", False),
        ("cpu", "TORCH_NCCL_BLOCKING_WAIT", "1", False),
        ("cuda", "TORCH_DISTRIBUTED_DEBUG", "detail", True),
        ("cpu", "TORCH_DISTRIBUTED_DEBUG", "DETAIL", True),
        ("cuda", "TORCH_DISTRIBUTED_DEBUG", "INFO", False),
        ("cuda", "NCCL_DEBUG", "TRACE", True),
        ("cuda", "NCCL_DEBUG", "WARN", False),
        ("cuda", "NCCL_ALGO", "Ring", False),
        ("cpu", "CUDA_LAUNCH_BLOCKING", "1", False),
        ("cuda", "CUDA_LAUNCH_BLOCKING", "0", False),
    ],
)
def test_variables_that_lengthen_steps_are_named(device: str, name: str, value: str, warned: bool) -> None:
    said = gpu_errors.check_variables(device, {name: value})
    assert [line.partition(" ")[0] for line in said] == ([f"{name}={value}"] if warned else [])


def test_one_gpu_is_picked_for_one_rank() -> None:
    check_ranks(1, 4, index=3)
    with pytest.raises(SpecError) as caught:
        check_ranks(2, 4, index=3)
    assert str(caught.value) == "--device cuda:3 picks one GPU, and local:ranks=2 has 2 ranks here"
    assert caught.value.hint == "--device cuda gives each its own; --fabric local:ranks=1 takes one"
