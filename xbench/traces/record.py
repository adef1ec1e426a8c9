"""Reading of trace files to a `Profile` record that every command takes as it takes a measured one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from xbench.errors import UsageError
from xbench.planning.bounds import bounds
from xbench.planning.cost import CostCurve
from xbench.planning.plans import Planner
from xbench.planning.step import StepModel
from xbench.record_files import now
from xbench.records import NOT_TRACED, Environment, FabricRecord, Plan, Profile, WorkloadRecord
from xbench.spec import FabricSpec, RunSpec, WorkloadSpec
from xbench.text import counted
from xbench.traces.events import RankTrace, collect
from xbench.traces.json_stream import TraceFile
from xbench.traces.profile import TracedProfile, traced_profile
from xbench.traces.ranks import ranks_of
from xbench.traces.sizes import Parameter
from xbench.version import __version__


def read_traces(
    paths: Sequence[Path],
    command: str,
    *,
    model: WorkloadSpec | None = None,
    links: Sequence[Path] = (),
    on_progress: Callable[[Path, float], None] | None = None,
) -> Profile:
    """Read the traces of one or more ranks of a run, and plan from them.

    `command` is the command line for the record. `model` is the workload whose parameters were trained. `links` are
    files of T(M), which replaces what the traces show of it. `on_progress` gets a file and the share of it that was
    read. Raises UsageError for a file that is not such a trace or ends in the middle, and as `ranks_of` and
    `traced_profile` do.
    """
    traces: list[tuple[str, RankTrace]] = []
    cautions: list[str] = []
    hosts: set[str] = set()
    for path in paths:
        file = TraceFile(path, partial(on_progress, path) if on_progress is not None else None)
        trace = collect(file, file.header)
        if file.is_truncated:
            raise UsageError(
                f"{path} ends in the middle, so what its steps did last is not known",
                hint="copy it again, or record fewer steps: a trace does not end with its last step, but with kernels",
            )
        traces.append((path.name, trace))
        if file.broken:
            count = counted(len(file.broken), "value of it is", "values of it are")
            cautions.append(f"{path.name}: {count} no JSON and left out; the first is {file.broken[0]}.")
        cautions.extend(f"{path.name}: {remark}." for remark in trace.remarks)
        if isinstance(file.header.get("host_name"), str):
            hosts.add(file.header["host_name"])
    found = traced_profile(
        ranks_of(traces), parameters=parameters_of(model) if model is not None else None, links=links
    )
    return _record(found, traces, command, model, [*cautions, *found.cautions], sorted(hosts))


def parameters_of(spec: WorkloadSpec) -> list[Parameter]:
    """Return the trainable parameters of a workload, without allocating them. Raises as `workloads.build` does."""
    import torch

    from xbench.workloads.build import build
    from xbench.workloads.parse import resolve

    model = build(resolve(spec, "cpu"), torch.device("meta")).model
    return [
        Parameter(name, tuple(value.shape), str(value.dtype).removeprefix("torch."))
        for name, value in model.named_parameters()
        if value.requires_grad
    ]


def _record(
    found: TracedProfile,
    traces: Sequence[tuple[str, RankTrace]],
    command: str,
    model: WorkloadSpec | None,
    cautions: Sequence[str],
    hosts: Sequence[str],
) -> Profile:
    first = traces[0][1]
    name = Path(traces[0][0]).name.removesuffix(".gz").removesuffix(".json")
    workload = model or WorkloadSpec(name=name)
    step, curve = StepModel.of(found.layers, found.step), CostCurve.of(found.cost)
    lower = bounds(step.gradients, curve, compute_s=step.compute_s, contention=None, **step.parts)
    count = len(hosts) or 1
    per_host = max(1, found.world_size // count)
    fabric = FabricSpec(name="cluster", hosts=count, ranks=per_host)
    return Profile(
        created=now(),
        command=command,
        spec=RunSpec(kind="profile", workloads=(workload,), fabric=fabric, device="cuda" if first.is_gpu else "cpu"),
        environment=_environment(first, found.world_size, hosts),
        fabric=FabricRecord(
            name="cluster",
            spec="traced run",
            label="real",
            backend=found.backend,
            hosts=count,
            ranks_per_host=per_host,
            world_size=found.world_size,
        ),
        complete=True,
        warnings=list(cautions),
        workload=_workload(found, workload),
        layers=found.layers,
        step=found.step,
        cost_model=found.cost,
        bounds=lower,
        plans=_plans(found, Planner(step, found.cost, layers=tuple(found.layers))),
        traced=found.traced,
    )


def _plans(found: TracedProfile, planner: Planner) -> dict[str, Plan]:
    """All plans; DDP's has the buckets that the traced run formed, where gradients were all-reduced."""
    plans = planner.plans()
    if found.traced.collective == "all_reduce":
        numbers = range(max(found.bucket_of) + 1)
        buckets = [[index for index, one in enumerate(found.bucket_of) if one == number] for number in numbers]
        plans["ddp"] = planner.plan("ddp", buckets).model_copy(update={"note": "the buckets of the traced run"})
    return plans


def _workload(found: TracedProfile, spec: WorkloadSpec) -> WorkloadRecord:
    tensors = [tensor for layer in found.layers for tensor in layer.tensors]
    dtypes = sorted({tensor.dtype for tensor in tensors})
    return WorkloadRecord(
        spec=spec,
        title=spec.title,
        parameters=sum(tensor.elements for tensor in tensors),
        tensors=len(tensors),
        grad_bytes=sum(tensor.bytes for tensor in tensors),
        batch_size=0,
        input=NOT_TRACED,
        parameter_dtypes=None if dtypes == ["float32"] else " and ".join(dtypes),
    )


def _environment(trace: RankTrace, world_size: int, hosts: Sequence[str]) -> Environment:
    return Environment(
        hostname=hosts[0] if hosts else "traced machine",
        cpu=NOT_TRACED,
        cores=0,
        memory_bytes=0,
        python=NOT_TRACED,
        torch=None,
        device=trace.device or ("unknown GPU" if trace.is_gpu else "cpu"),
        device_count=world_size if trace.is_gpu else 0,
        xbench=__version__,
        commit=None,
        facts={"source": "profiler traces"},
    )
