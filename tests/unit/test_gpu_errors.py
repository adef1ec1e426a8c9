"""What a machine with a GPU says when it cannot: torch's and NCCL's own texts in, one sentence out."""

from __future__ import annotations

import pytest

from xbench import gpu_errors
from xbench.errors import SpecError
from xbench.gpu_errors import explain, no_gpu, shortage, unusable_gpu
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
DUPLICATE = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:268, invalid usage (run with NCCL_DEBUG=WARN "
    "for details), NCCL version 2.21.5\nncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
    "Last error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 10"
)
SHARED = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, invalid usage (run with NCCL_DEBUG=WARN for "
    "details), NCCL version 2.30.7\nncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
    "Last error:\n"
    "Multiple Ranks are using the same GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this configuration."
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


SHARING = "with NCCL_MULTI_RANK_GPU_ENABLE=1"
OLDER_HINT = f"NCCL 2.30.3 and newer allow that, experimentally, {SHARING}; or try --device cpu"
NEWER_HINT = f"it allows that, experimentally, {SHARING} in the environment; or try --device cpu"


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


def test_a_shortage_in_a_rank_names_the_workload_and_what_to_lower() -> None:
    images, tokens, factory = (explain("OutOfMemoryError", OUT_OF_MEMORY, w) for w in (IMAGES, TOKENS, FACTORY))
    assert images == (
        "ran out of GPU memory with resnet50, batch 256: 226.00 MiB were wanted, and 210.38 MiB of GPU 0's 15.70 GiB "
        "were free",
        "a smaller --batch-size or --image-size needs less",
        True,
    )
    assert tokens is not None
    assert tokens.hint == "a smaller --batch-size or --seq-len needs less"
    assert factory is not None
    assert factory.what.startswith("ran out of GPU memory with train.py:make: 226.00 MiB")
    assert factory.hint == "let its factory make a smaller batch"


BUSY = "CUDA error: CUDA-capable device(s) is/are busy or unavailable\nCUDA kernel errors might be reported later"
BUSY_SENTENCE = (
    "found its GPU busy or unavailable (CUDA error 46), as in compute mode EXCLUSIVE_PROCESS, in which a GPU takes one "
    "process"
)
BUSY_HINT = (
    "leave out concurrent, which needs two processes on a GPU, or set compute mode DEFAULT (nvidia-smi -c DEFAULT)"
)


@pytest.mark.parametrize(
    ("text", "sentence", "hint"),
    [
        (DUPLICATE, "found another rank on its GPU (ranks 1 and 0), which NCCL 2.21.5 refuses", OLDER_HINT),
        (SHARED, "found another rank on its GPU, which NCCL 2.30.7 refuses", NEWER_HINT),
        (BUSY, BUSY_SENTENCE, BUSY_HINT),
        (BUSY.replace("CUDA-capable device(s) is/are", "all CUDA-capable devices are"), BUSY_SENTENCE, BUSY_HINT),
        (TOO_OLD,
         "cannot use its GPU: the NVIDIA driver here knows CUDA up to 12.4, and this torch was built for a newer one",
         "update the driver, or install a torch that was built for CUDA 12.4 or older"),
    ],
)  # fmt: skip
def test_what_a_rank_died_of_is_one_sentence(text: str, sentence: str, hint: str) -> None:
    assert explain("DistBackendError", text, IMAGES) == (sentence, hint, False)


def test_an_error_that_says_what_it_means_is_left_alone() -> None:
    assert explain("RuntimeError", "mat1 and mat2 shapes cannot be multiplied (4x5 and 3x2)", IMAGES) is None
    assert explain("DistBackendError", "NCCL error: unhandled system error, NCCL version 2.30.7", IMAGES) is None


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


def test_two_ranks_on_one_gpu_are_refused_by_the_nccl_that_refuses_them() -> None:
    check_ranks(2, 2)
    check_ranks(1, 1)
    with pytest.raises(SpecError) as caught:
        check_ranks(2, 1)
    assert str(caught.value) == "local:ranks=2 puts 2 ranks on 1 GPU, and NCCL 2.27.3 refuses two ranks on one GPU"
    assert caught.value.hint == OLDER_HINT
    with pytest.raises(SpecError, match="puts 4 ranks on 2 GPUs, and NCCL refuses"):
        check_ranks(4, 2, nccl=None)


@pytest.mark.parametrize("nccl", ["2.30.3", "2.30.7", "2.31", "3.0.0"])
def test_newer_nccl_allows_it_where_it_is_told_to(nccl: str) -> None:
    check_ranks(2, 1, nccl=nccl, NCCL_MULTI_RANK_GPU_ENABLE="1")
    with pytest.raises(SpecError) as caught:
        check_ranks(2, 1, nccl=nccl)
    assert caught.value.hint == NEWER_HINT


@pytest.mark.parametrize("nccl", [None, "2.30.2", "2.21.5", "2.30"])
def test_older_nccl_does_not_whatever_it_is_told(nccl: str | None) -> None:
    with pytest.raises(SpecError, match="refuses two ranks on one GPU"):
        check_ranks(2, 1, nccl=nccl, NCCL_MULTI_RANK_GPU_ENABLE="1")


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
