"""Reference steps of the parity check, made once for each workload.

They are DistributedDataParallel's if DDP can train the model (`ddp_refusal`), else those of averaging by hand
(`rank.parity_power`). Averaging by hand also takes DDP's steps again from the same states, and must give the same
result. It does not if two runs of the model from one state differ; then no comparison is possible. It does not either
if the forward pass reads a buffer that is made from the batch, which DDP makes equal on all ranks.

DDP is first tried on a process group of this rank alone. Its refusals are errors on some ranks only, sometimes a step
later, and the other ranks would wait in a collective for ever. A group of one raises the same errors, and no rank
waits.
"""

from __future__ import annotations

import itertools
import math
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from xbench.equal_ranks import digest
from xbench.errors import UsageError, WorkloadError
from xbench.gpu_errors import shortage
from xbench.modes import mode_info
from xbench.rank import parity_power
from xbench.rank.parity_checker import ParityChecker, Reference, copies, gathered, momentum_of, size_of
from xbench.rank.parity_power import Gradients
from xbench.rank.session import Session
from xbench.rank.snapshot import expanded_buffer, trained
from xbench.records import BY_HAND
from xbench.schedules.base import Handle
from xbench.schedules.groups import workers_of
from xbench.spec import ModeSpec
from xbench.units import format_bytes
from xbench.workloads.memory import available_bytes

DDP = ModeSpec(text="ddp", name="ddp", carrier="ddp")
WEIGHTS = (1.0, 0.5, 0.25, 0.125)
"""Factors of the loss, one a step, in the parity check alone. Gradients of neighbouring steps on one batch are nearly
the same. With these weights they differ by half, so a schedule that is a step late is detected. All are powers of two,
and therefore exact."""

REHEARSED = 2
"""Steps of DDP on a group of one. Some of its errors appear at the beginning of the second."""

DIFFERS = (
    "two runs of this model from one state differ: it keeps state, or draws random numbers, outside what can be put "
    "back"
)


@contextmanager
def weighted(session: Session) -> Iterator[None]:
    """Context in which the losses of the rank's steps are multiplied by WEIGHTS in turn."""
    session.weights = itertools.cycle(WEIGHTS)
    try:
        yield
    finally:
        session.weights = None


def steps_of(session: Session, mode: ModeSpec, train: Callable[[Handle], None], *, exact: bool = False) -> None:
    """Call `train` with a mode attached, from the snapshot's state and with weighted losses. Restore the state."""

    def attached() -> None:
        with session.attach(mode, exact=exact) as handle, weighted(session):
            train(handle)

    trained(session.workload, session.snapshot, attached)


def make(session: Session) -> Reference:
    """Make and test the reference of this rank's workload. Collective over the job."""
    refusal = ddp_refusal(session)
    short = _short_of_memory(session)
    if short is not None:
        return _nothing(session, refusal, short)
    if refusal is None:
        reference = _by_ddp(session)
    else:
        try:
            reference = _averaged(session, None)[0]
        except WorkloadError:
            raise
        except UsageError as error:
            return _nothing(session, refusal, f"DDP cannot train this model, and {error}")
    reference.ddp_refusal = refusal
    lost = _lost(session, reference)
    if lost is not None:
        reference.not_shown, reference.comparable = lost, False
        return reference
    try:
        _, second, local, averaged, buffers = _averaged(session, reference)
    except UsageError as error:
        reference.not_shown = f"{error}, so the parity check could not be tested"
        return reference
    assert second is not None
    if not second.verdict().ok:
        if reference.by == BY_HAND or not _ddp_again(session, reference):
            reference.not_shown, reference.comparable = DIFFERS, False
            return reference
        everyone = gathered(buffers)
        uneven = [name for name in buffers if any(other.get(name) != buffers[name] for other in everyone)]
        # Batch-norm's come last: training does not read them.
        reference.buffer = min(uneven, key=lambda name: "running_" in name, default=None)
    world_size = dist.get_world_size()
    if world_size > 1:
        why_not_shown = partial(parity_power.not_shown, session.workload, session.snapshot, local=local,
                                averaged=averaged, note=session.note)  # fmt: skip
        reference.not_shown = why_not_shown(lambda: checker_of(session, reference))
        if any(mode_info(mode.carrier).compiled for mode in session.run.modes):
            reference.not_shown_compiled = why_not_shown(lambda: checker_of(session, reference, compiled=True))
    elif (workers := workers_of(session.group)) > 1:
        reference.not_shown = (
            f"one rank stands for all {workers} workers, so a schedule that does not average would pass"
        )
    return reference


def check_parameters(session: Session, known: dict[str, Tensor]) -> None:
    """Raise WorkloadError for a parameter that the first forward pass has made."""
    new = next((name for name, _ in session.workload.model.named_parameters() if name not in known), None)
    if new is not None:
        raise WorkloadError(
            f"parameter {new!r} is made in the first forward pass, so no optimizer and no schedule has it",
            hint="run the model once in the factory before returning it",
        )


def ddp_refusal(session: Session, attach: Callable[[Any], Handle] | None = None) -> str | None:
    """Return DDP's reason for refusing the model, the same on all ranks; None if it accepts. Collective.

    `attach` attaches DDP over a process group; None attaches mode `ddp` with the job's plan.
    """
    buffer = expanded_buffer(session.workload.model)
    if buffer is not None:
        said: str | None = (
            f"DDP broadcasts buffers in place, and the elements of buffer {buffer!r} share memory, as those of an "
            "expanded view do; .clone() gives it memory of its own"
        )
    else:
        said = _rehearsed(session, attach or (lambda alone: session.attach(DDP, exact=True, group=alone)))
    return next((each for each in gathered(said) if each is not None), None)


def _rehearsed(session: Session, attach: Callable[[Any], Handle]) -> str | None:
    """Return the error that DDP raises on this rank alone, in one line; None if it raises none."""
    alone: Any = dist.new_group([dist.get_rank()], use_local_synchronization=True)
    session.snapshot.restore(session.workload)
    try:
        with session.workload.on_one_batch(), attach(alone) as handle:
            for step in range(REHEARSED):
                session.note(f"whether DDP can train the model, step {step + 1}")
                session.forward_backward(handle)
                if isinstance(handle.model, DistributedDataParallel):
                    handle.model._check_reducer_finalized()  # type: ignore[no-untyped-call]
                session.update(handle)
    except (UsageError, RuntimeError) as error:
        if shortage(type(error).__name__, str(error)) is not None:
            raise
        return " ".join(str(error).split()).rstrip(".") + _unsent_buffer(session, alone)
    finally:
        session.snapshot.restore(session.workload)
        dist.destroy_process_group(alone)
    return None


def _unsent_buffer(session: Session, group: Any) -> str:
    """Return a clause on the first buffer that this backend cannot broadcast, as Gloo cannot int16; '' without one."""
    for name, buffer in session.workload.model.named_buffers():
        try:
            dist.broadcast(torch.zeros(1, dtype=buffer.dtype, device=buffer.device), dist.get_rank(), group=group)
        except RuntimeError:
            dtype = str(buffer.dtype).removeprefix("torch.")
            return f": DDP broadcasts buffers, and {dist.get_backend(group)} cannot send {name!r}, which is {dtype}"
    return ""


def _by_ddp(session: Session) -> Reference:
    reference = Reference([copies(session.workload.model.named_parameters())])

    def keep() -> None:
        check_parameters(session, reference.states[0])
        reference.states.append(copies(session.workload.model.named_parameters()))
        reference.norms.append(size_of(session.norm))
        _watch_loss(session, len(reference.states) - 1)

    def train(handle: Handle) -> None:
        session.train(handle, session.run.effort.parity_steps, "gate ddp", keep)
        reference.momentum = copies(momentum_of(session.workload).items())

    session.lost = None
    steps_of(session, DDP, train, exact=True)
    return reference


def _ddp_again(session: Session, reference: Reference) -> bool:
    """True if DDP gives the same result in a second run."""
    judged, steps = checker_of(session, reference, exact=True), session.run.effort.parity_steps

    def judge() -> None:
        judged.step(norm=session.norm)

    steps_of(session, DDP, lambda handle: session.train(handle, steps, "gate ddp again", judge), exact=True)
    return judged.verdict().ok


def _averaged(
    session: Session, reference: Reference | None
) -> tuple[Reference, ParityChecker | None, list[Gradients], list[Gradients], dict[str, str]]:
    """Average by hand for k steps, alone or compared with a reference.

    Return the reference that it makes, the checker, this rank's gradients and the averaged ones, step by step, and a
    digest of each buffer at the end. One rank's gradients show nothing and are not kept. Raises UsageError, on every
    rank alike, if gradients cannot be averaged.
    """
    workload = session.workload
    start = copies(workload.model.named_parameters()) if reference is None else reference.states[0]
    made = Reference([start], by=BY_HAND)
    judged = checker_of(session, reference, exact=True) if reference is not None else None
    local: list[Gradients] = []
    averaged: list[Gradients] = []
    buffers: dict[str, str] = {}
    shows = dist.get_world_size() > 1

    def train() -> None:
        handle = Handle(workload.model)
        for step in range(session.run.effort.parity_steps):
            session.note(f"gate: averaging by hand, step {step + 1}")
            session.forward_backward(handle)
            parameters = parity_power.trainable(workload.model)
            mine = parity_power.local_gradients(parameters)
            try:
                mean = parity_power.averaged(parameters, mine)
            except (RuntimeError, TypeError, ValueError) as error:
                raise UsageError(f"averaging by hand cannot be done: {' '.join(str(error).split())[:300]}") from error
            check_parameters(session, made.states[0])
            parity_power.give(parameters, mean)
            session.update(handle)
            if judged is None:
                made.states.append(copies(workload.model.named_parameters()))
                made.norms.append(size_of(session.norm))
                _watch_loss(session, step + 1)
            else:
                if shows:
                    local.append(mine)
                    averaged.append(mean)
                judged.step(norm=session.norm)
        made.momentum = copies(momentum_of(workload).items()) if judged is None else {}
        buffers.update((name, digest(buffer)) for name, buffer in workload.model.named_buffers())

    if judged is None:
        session.lost = None
    with weighted(session):
        trained(workload, session.snapshot, train)
    return made, judged, local, averaged, buffers


def checker_of(session: Session, reference: Reference, *, exact: bool = False, compiled: bool = False) -> ParityChecker:
    """Return a new checker. `exact`: gradients are not compressed, even if the run compresses them.

    `compiled`: it judges a compiled step. Verdicts use the real process group, also if collectives are emulated.
    """
    return ParityChecker(
        session.workload,
        reference.states,
        dist.group.WORLD,
        momentum=reference.momentum,
        norms=reference.norms,
        compressed=session.run.compress is not None and not exact,
        compiled=compiled,
        comparable=reference.comparable,
    )


def _nothing(session: Session, refusal: str | None, why: str) -> Reference:
    """Return a reference without a step."""
    start = copies(session.workload.model.named_parameters())
    steps = session.run.effort.parity_steps
    return Reference([start] * (steps + 1), BY_HAND, ddp_refusal=refusal, not_shown=why, comparable=False)


def _short_of_memory(session: Session) -> str | None:
    """Return why the copies of the check do not fit in the memory of a rank's host; None if they do. Collective.

    They are k + 1 states, a moment, and for each of the k steps the gradients of this rank and their averages.
    """
    copies_held = 3 * session.run.effort.parity_steps + 2
    nbytes = sum(one.numel() * one.element_size() for one in session.workload.model.parameters())
    wanted = copies_held * nbytes * session.program.jobs
    everyone = gathered((socket.gethostname(), wanted, available_bytes([])))
    for host, _, free in everyone:
        together = sum(wanted for other, wanted, _ in everyone if other == host)
        if together > free:
            return (
                f"the parity check would hold {format_bytes(together)} in the memory of {host}, where "
                f"{format_bytes(free)} are free"
            )
    return None


# --- losses that are not finite ------------------------------------------------------------------------------------


def _watch_loss(session: Session, step: int) -> None:
    """Remember the first step whose loss is infinite or NaN."""
    loss = float(session.loss.sum()) if session.loss is not None else 0.0
    if session.lost is None and not math.isfinite(loss):
        session.lost = (step, loss)


def _lost(session: Session, reference: Reference) -> str | None:
    """Return a sentence on a loss or parameter of the reference's steps that is not finite; None if all are."""
    broken = next(
        (
            name
            for name, value in reference.states[-1].items()
            if value.is_floating_point() and not bool(value.isfinite().all())
        ),
        None,
    )
    everyone = gathered((session.lost, broken))
    for number, (lost, _) in enumerate(everyone):
        if lost is not None:
            return f"the loss of rank {number} is {lost[1]} at step {lost[0]}, so there is nothing to compare"
    for number, (_, name) in enumerate(everyone):
        if name is not None:
            return f"parameter {name!r} is not finite on rank {number} after {len(reference.states) - 1} steps"
    return None
