"""What works and what is missing, on machines that are written down."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from xbench.machine import inventory
from xbench.machine.inventory import EXTRAS, Observations, findings
from xbench.records.parts import Finding

TORCH = {"torch": "2.15.0", "torchvision": "0.29", "nccl": "2.30.7", "cuda": "13.2", "gpus": 8}
NVML = {"driver": "580.65", "driver_cuda": "13.2", "gpus": [{}] * 8, "links": []}
WHOLE = Observations(
    torch=TORCH, nvml=NVML, driver="580.65", cores=64, governor="performance",
    tools={"nvcc": "13.2, /usr/bin/nvcc"},
)  # fmt: skip
BARE = Observations(
    torch={"problem": "ModuleNotFoundError: No module named 'torch'", "installed": False},
    nvml={"problem": "nvidia-ml-py is not installed", "installed": False},
    shaped_problem="iproute2 is not installed (ip is missing)", iproute2=False, root=False, cores=1,
    governor="powersave", noise=["other processes are busy: make (pid 3) uses 1.0 cores"],
)  # fmt: skip


def found(seen: Observations, name: str) -> Finding:
    (one,) = [finding for finding in findings(seen) if finding.name == name]
    return one


def test_a_machine_that_has_everything_misses_nothing() -> None:
    told = findings(WHOLE)
    assert [one.works for one in told] == [True] * len(told)
    assert found(WHOLE, "torch").detail == "2.15.0, built for CUDA 13.2 with NCCL 2.30.7"
    assert found(WHOLE, "GPUs").detail == "torch can use 8: ranks talk over NCCL"
    assert found(WHOLE, "cores").detail == "64: each of two ranks gets 32 of its own"


def test_a_bare_machine_is_told_how_to_get_everything() -> None:
    told = {one.name: one for one in findings(BARE)}
    assert {name: one.get for name, one in told.items() if one.works is False} == {
        "torch": "pip install torch torchvision",
        "GPUs": None,
        "shaped links": "apt-get install iproute2",
        "cores": None,
        "nvidia-ml-py": "pip install nvidia-ml-py",
        "nvcc": "apt-get install cuda-nvcc-13-0, from NVIDIA's repository",
        "CPU governor": "cpupower frequency-set -g performance",
        "quiet": None,
    }
    assert [name for name, one in told.items() if one.works is None] == ["torchvision"]
    assert told["quiet"].detail == "other processes are busy: make (pid 3) uses 1.0 cores"


@pytest.mark.parametrize("seen", [WHOLE, BARE, replace(BARE, driver="580.65"), replace(WHOLE, torch=BARE.torch)])
def test_everything_that_is_missing_says_what_it_costs(seen: Observations) -> None:
    for one in findings(seen):
        assert one.detail
        assert bool(one.costs) is (one.works is False), one.name
        assert one.get is None or one.works is False


@pytest.mark.parametrize(
    ("changes", "name", "detail"),
    [
        ({"torch": {"problem": "OSError: libtorch.so", "installed": True}}, "torch",
         "it is installed and does not work: OSError: libtorch.so"),
        ({"torch": TORCH | {"torchvision": None}}, "torchvision", "not installed"),
        ({"torch": TORCH | {"gpus": 1}}, "several GPUs",
         "torch can use one"),
        ({"torch": TORCH | {"gpus": 0}}, "GPUs",
         "the driver lists 8, and torch is built for CUDA 13.2, the driver runs up to 13.2"),
        ({"torch": TORCH | {"gpus": 0, "cuda": None}}, "GPUs", "the driver lists 8, and torch is built for CPUs"),
        ({"torch": TORCH | {"gpus": 0}, "nvml": {"problem": "x", "installed": True}}, "GPUs",
         "the driver lists some, and torch sees none"),
        ({"nvml": {"problem": "no answer in time", "installed": True}}, "GPU counters", "no answer in time"),
        ({"shaped_problem": "network namespaces need root"}, "shaped links", "network namespaces need root"),
        ({"tools": {}}, "nvcc", "not found on PATH, in CUDA_HOME or in /usr/local/cuda"),
    ],
)  # fmt: skip
def test_each_thing_can_be_missing(changes: dict[str, Any], name: str, detail: str) -> None:
    one = found(replace(WHOLE, **changes), name)
    assert (one.works, one.detail) == (False, detail)


def test_without_root_a_user_namespace_does_and_where_it_does_not_there_is_a_way() -> None:
    assert found(replace(WHOLE, root=False), "shaped links").detail.endswith("in a user namespace, without root")
    refused = found(replace(WHOLE, root=False, shaped_problem="this kernel forbids them"), "shaped links")
    assert refused.get is not None
    assert refused.get.startswith("run xbench as root, or: sysctl -w")


def test_what_only_gpus_need_is_of_no_use_without_one() -> None:
    cpu = replace(
        WHOLE, torch=TORCH | {"gpus": 0}, nvml={"problem": "x", "installed": True}, driver=None, tools={}, governor=None
    )
    assert found(cpu, "GPU counters").works is None
    assert found(cpu, "CPU governor").works is None
    nvcc = found(cpu, "nvcc")
    assert nvcc.costs is not None
    assert nvcc.costs.startswith("nothing without a GPU")
    assert nvcc.get == "apt-get install cuda-nvcc-13-2, from NVIDIA's repository"


def test_optional_packages_are_named_where_they_are_missing() -> None:
    seen = Observations(torch={}, nvml={}, extras={"Horovod": None, "scikit-learn": "1.7.2", "Ray": None})
    told = {one.name: (one.works, one.detail, one.costs, one.get) for one in findings(seen) if one.name in EXTRAS}
    assert told == {
        "Horovod": (False, "not installed, or built against another torch",
                    "mode horovod cannot be used", "make horovod in a checkout of xbench"),
        "scikit-learn": (True, "1.7.2", None, None),
        "Ray": (False, "not installed", "cluster run --engine ray cannot be used", "pip install ray"),
    }  # fmt: skip
    assert inventory.extras().keys() == EXTRAS.keys()
