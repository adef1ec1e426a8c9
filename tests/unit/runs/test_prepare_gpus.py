"""Which GPUs a run takes, decided from what the preflight found, before anything is launched."""

from __future__ import annotations

from typing import Any

import pytest

from xbench.config import RunConfig
from xbench.errors import SpecError
from xbench.fabrics import parse_fabric
from xbench.records import WorkloadRecord
from xbench.runs import prepare as preparing
from xbench.runs.prepare import prepare
from xbench.schedules import parse_modes
from xbench.spec import FabricSpec, RunSpec, WorkloadSpec
from xbench.workloads.probe import Preflight, Probed

SPEC = WorkloadSpec(name="transformer-tiny", batch_size=4, seq_len=8)
RECORD = WorkloadRecord(spec=SPEC, title="t", parameters=1, tensors=1, grad_bytes=4, batch_size=4, input="8 tokens")


def found(**fields: Any) -> Preflight:
    facts = {"device": "cuda", "gpus": 4, "torch": "2.15.0", "torchvision": None, "nccl": "2.27.3", "cuda": "13.0"}
    return Preflight(**facts | fields, workloads=[Probed(record=RECORD, memory_bytes_estimate=1)])


def prepared(
    monkeypatch: pytest.MonkeyPatch, asked: str, fabric: FabricSpec, modes: str = "ddp,wfbp", **fields: Any
) -> tuple[RunSpec, list[str]]:
    monkeypatch.setattr(preparing, "probe", lambda specs, device, ranks, local_rank: found(**fields))
    config = RunConfig(workloads=[SPEC], fabric=fabric, modes=parse_modes(modes), device=asked)
    run, _, notes = prepare(config)
    return run, notes


def local(ranks: int) -> FabricSpec:
    return FabricSpec(name="local", ranks=ranks)


def test_ranks_have_a_gpu_each_or_the_one_that_was_picked(monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = prepared(monkeypatch, "cuda", local(4))
    assert (run.device, run.gpu) == ("cuda", None)
    run, _ = prepared(monkeypatch, "cuda:2", local(1), gpu=2)
    assert (run.device, run.gpu) == ("cuda", 2)


def test_ranks_that_would_share_a_gpu_are_refused_unless_nccl_is_told_to_allow_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NCCL_MULTI_RANK_GPU_ENABLE", raising=False)
    with pytest.raises(SpecError, match="puts 2 ranks on 1 GPU, and NCCL 2"):
        prepared(monkeypatch, "cuda", local(2), gpus=1)
    with pytest.raises(SpecError, match="--device cuda:1 picks one GPU, and local:ranks=2 has 2 ranks here"):
        prepared(monkeypatch, "cuda:1", local(2), gpu=1)
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    assert prepared(monkeypatch, "cuda", local(2), gpus=1, nccl="2.30.7")[0].device == "cuda"


def test_what_the_environment_does_to_steps_is_warned_of_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_NCCL_BLOCKING_WAIT", "1")
    monkeypatch.setattr(preparing, "probe", lambda specs, device, ranks, local_rank: found())
    config = RunConfig(workloads=[SPEC], fabric=local(2), modes=parse_modes("ddp"), device="cuda")
    _, preflight, notes = prepare(config)
    assert "TORCH_NCCL_BLOCKING_WAIT=1" in " ".join(notes)
    assert "TORCH_NCCL_BLOCKING_WAIT=1" in " ".join(preflight.warnings)  # the record has these
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    with pytest.raises(SpecError, match="CUDA_LAUNCH_BLOCKING"):
        prepare(config)


SHAPED = FabricSpec(name="shaped", hosts=2, rate="1gbit")


@pytest.mark.parametrize(
    ("asked", "fabric"), [("cuda", SHAPED), ("cuda:1", SHAPED), ("auto", SHAPED), ("cuda", FabricSpec(name="auto"))]
)
def test_shaped_links_are_refused_on_gpus(asked: str, fabric: FabricSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "choose", lambda fabric, gpus: (SHAPED, "auto"))
    with pytest.raises(SpecError, match=r"shaped:hosts=2,rate=1gbit joins .* NCCL takes") as caught:
        prepared(monkeypatch, asked, fabric)
    assert all(word in (caught.value.hint or "") for word in ("local", "emulated", "--device cpu"))


def test_a_library_is_refused_on_the_emulated_link_that_auto_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "ranks_around", lambda environ: None)
    monkeypatch.setattr(preparing, "choose", lambda fabric, gpus: (parse_fabric("emulated"), "auto"))
    assert prepared(monkeypatch, "auto", FabricSpec(name="auto"), gpus=1)[0].fabric.name == "emulated"
    with pytest.raises(SpecError, match=r"mode 'fsdp' sends by torch itself, .* are emulated") as caught:
        prepared(monkeypatch, "auto", FabricSpec(name="auto"), "ddp,fsdp", gpus=1)
    assert caught.value.hint == "try --device cpu --fabric shaped:hosts=2,rate=1gbit"


def test_shaped_links_are_refused_before_the_workload_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "probe", lambda *_: pytest.fail("the workload was tried"))
    with pytest.raises(SpecError, match="NCCL takes for one host"):
        prepare(RunConfig(workloads=[SPEC], fabric=SHAPED, modes=parse_modes("ddp"), device="cuda"))


def test_shaped_links_stay_for_ranks_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "choose", lambda fabric, gpus: (fabric, "as requested"))
    monkeypatch.setattr(preparing.rootless, "reexec_needed", lambda fabric: False)
    assert prepared(monkeypatch, "cpu", SHAPED, device="cpu")[0].fabric == SHAPED


AROUND = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "a"}


def test_a_cluster_s_hosts_have_their_own_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (AROUND | {"MASTER_PORT": "1"}).items():
        monkeypatch.setenv(name, value)
    run, _ = prepared(monkeypatch, "cuda", FabricSpec(name="cluster"))
    assert (run.fabric.world_size, run.device) == (8, "cuda")


def test_a_rank_of_an_engine_looks_at_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (AROUND | {"MASTER_PORT": "1"}).items():
        monkeypatch.setenv(name, value)
    seen: list[tuple[int, int | None]] = []

    def probe(specs: Any, device: str, ranks: int, local_rank: int | None) -> Preflight:
        seen.append((ranks, local_rank))
        raise SpecError("seen")

    monkeypatch.setattr(preparing, "probe", probe)
    for fabric in (FabricSpec(name="cluster"), local(2)):
        with pytest.raises(SpecError, match="seen"):
            prepare(RunConfig(workloads=[SPEC], fabric=fabric, modes=parse_modes("ddp"), device="cuda"))
    assert seen == [(4, 3), (2, None)]  # ranks that we start have one preflight, which looks at all GPUs


@pytest.mark.parametrize(
    ("cuda", "reason"), [(None, "this torch was built without CUDA"), ("13.0", "torch sees no usable GPU here")]
)
def test_gpus_that_the_driver_lists_and_torch_cannot_use_are_not_passed_over(
    cuda: str | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    listed = 8
    monkeypatch.setattr(preparing, "listed_gpus", lambda: listed)
    on_cpu = {"device": "cpu", "gpus": 0, "cuda": cuda}
    with pytest.raises(SpecError, match=f"lists 8 GPUs, and {reason}") as caught:
        prepared(monkeypatch, "auto", local(2), **on_cpu)
    assert "--device cpu" in (caught.value.hint or "")
    assert prepared(monkeypatch, "cpu", local(2), **on_cpu)[0].device == "cpu"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert prepared(monkeypatch, "auto", local(2), **on_cpu)[0].device == "cpu"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    listed = 0  # a machine without a GPU
    run, notes = prepared(monkeypatch, "auto", local(2), **on_cpu)
    assert run.device == "cpu"
    assert not [note for note in notes if "GPU" in note]


def test_a_run_on_several_gpus_says_once_that_none_had_run_this(monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = preparing.UNTRIED_ON_GPUS
    assert prepared(monkeypatch, "cuda", local(4))[1].count(sentence) == 1
    assert sentence not in prepared(monkeypatch, "cpu", local(2), device="cpu", gpus=0)[1]
