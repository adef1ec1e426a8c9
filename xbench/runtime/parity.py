"""The correctness gate: does a schedule train the network that DDP trains?

From one saved state (parameters, buffers, optimizer, random numbers) and the same batches DDP takes k steps, and then
the schedule does, each of its steps from where DDP's own had left off: from three ranks on the order in which an
all-reduce adds depends on the buckets, and training amplifies what that changes, whoever adds. After each step
parameters must be bitwise equal across ranks, and close to DDP's, measured against how far that step moved them:

    difference(p) = max|a - b| / (max|b - start| + 100 ε max|b| + 10⁻³ U),   U: the largest update of all parameters

with the schedule's a, DDP's b and the dtype's ε. The denominator is the update, not the parameter: a schedule that
forgot to send one small layer's gradient differs by about 1 here, and by nothing visible against the parameter itself.
The second term is rounding: one unit in the last place counts for a hundredth. The third is there from three ranks on
alone, for gradients that are zero but for rounding, such as that of a bias which the next batch-norm takes out again. A
layer that is forgotten is then still seen when its update is more than 2·10⁻⁵ of the largest.

Where gradients are compressed, DDP's steps are taken without compression all the same, and every mode, DDP's own among
them, is judged by the same formula with means in place of maxima, against COMPRESSED_TOLERANCE. Rounding to bf16 is off
by up to 2⁻⁹ of each rank's gradient, so where ranks nearly cancel, an element's mean may have the other sign, and an
optimizer that normalises (Adam) moves that element the other way: the largest difference is then 2, whatever the
schedule. Such elements are few, so the mean hardly moves. A layer that was forgotten, or had another step's gradients,
is off by 1 in the mean as well, and one whose mean over two ranks was taken twice by 0.5. Ranks must be bitwise equal
as ever.

A schedule that puts updates off into the next forward pass (`next_forward`) is judged after `Handle.finish`, which is
the only moment at which its parameters are those of a step. What it is there for, a forward pass beside gradients that
travel, is then gated by itself: it takes k steps with a `finish` after each and k steps without any, from the same
state. That is the same arithmetic in the same order, so both must end in the same bits; a layer that ran before its
update had come would see to it that they do not. Where a step does not end in the same bits twice either (some kernels
of GPUs), both must agree as closely as with DDP.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from xbench.records import RANKS, Parity
from xbench.runtime.program import block_id, whole_cycles
from xbench.schedules import MODES, cycle_of, puts_off
from xbench.schedules.base import Handle
from xbench.spec import ModeSpec
from xbench.workloads.build import Workload

if TYPE_CHECKING:
    from xbench.runtime.worker import Rank

TOLERANCE = 0.02
COMPRESSED_TOLERANCE = 0.25
"""Of means: half of the least that a wrong schedule is off by, and many times what rounding to bf16 is."""

PIECE = 1 << 22
"""Elements of a parameter that are compared at a time."""

_ULPS = 100.0
_NULL = 1e-3


class Snapshot:
    """Everything that a training step changes, so that it can be put back exactly."""

    def __init__(self, workload: Workload) -> None:
        self.model = {name: value.detach().clone() for name, value in _state(workload).items()}
        self.random = torch.get_rng_state()
        self.cuda_random = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]

    def restore(self, workload: Workload) -> None:
        """Put it back. The optimizer forgets its momentum: the snapshot was taken before its first step."""
        with torch.no_grad():
            for name, value in _state(workload).items():
                value.copy_(self.model[name])
        workload.optimizer.state.clear()
        workload.optimizer.zero_grad(set_to_none=True)
        torch.set_rng_state(self.random)
        if self.cuda_random is not None:
            torch.cuda.set_rng_state(self.cuda_random)


def _state(workload: Workload) -> dict[str, Tensor]:
    return {**dict(workload.model.named_parameters()), **dict(workload.model.named_buffers())}


def trained(workload: Workload, snapshot: Snapshot, train: Callable[[], None]) -> None:
    """Call `train()` from the snapshot's state, and put that back afterwards."""
    snapshot.restore(workload)
    train()
    snapshot.restore(workload)


def parameters(workload: Workload) -> dict[str, Tensor]:
    """A copy of the parameters."""
    return {name: value.detach().clone() for name, value in workload.model.named_parameters()}


def gate(rank: Rank, mode: ModeSpec) -> None:
    """k steps of this mode beside k steps of DDP, on the same data; the verdict goes to the journal.

    DDP's own are taken once and kept in `rank.reference`.
    """
    steps = rank.run.effort.parity_steps
    what = f"gate {mode.text}"
    if MODES.entry(mode.carrier).facts.get("gradients") == "partial":
        rank.journal.write("parity", mode=mode.text, **agreement(rank, mode, whole_cycles(steps, cycle_of(mode))))
        return

    def steps_of(which: ModeSpec, train: Callable[[Handle], None], *, exact: bool = False) -> None:
        def attached() -> None:
            with rank.attach(which, exact=exact) as handle:
                train(handle)

        trained(rank.workload, rank.snapshot, attached)

    if rank.reference is None:
        states = [parameters(rank.workload)]

        def keep() -> None:
            states.append(parameters(rank.workload))

        ddp = ModeSpec(text="ddp", name="ddp", carrier="ddp")
        steps_of(ddp, lambda handle: rank.train(handle, steps, "gate ddp", keep), exact=True)
        rank.reference = states
    beside = Beside(
        # Verdicts go by the group that is real, also where collectives are emulated.
        rank.workload,
        rank.reference,
        dist.group.WORLD,
        compressed=rank.run.compress is not None,
    )
    if mode.name == "crossover":
        block, pattern = block_id("gate", mode), tuple(range(rank.program.jobs))
        steps_of(
            mode,
            lambda handle: rank.train_in_turns(
                handle, block, pattern, steps, what, mark=lambda: None, applied=beside.step
            ),
        )
    else:

        def alone(handle: Handle) -> None:
            def judge() -> None:
                handle.finish()
                beside.step()

            rank.train(handle, steps, what, judge)

        steps_of(mode, alone)
    late = None
    if puts_off(rank.plans[rank.job].carrier_of(mode)):

        def end(finish: bool) -> dict[str, Tensor]:
            ends: dict[str, Tensor] = {}

            def run(handle: Handle) -> None:
                rank.train(handle, steps, what, handle.finish if finish else lambda: None)
                handle.finish()
                ends.update(parameters(rank.workload))

            steps_of(mode, run)
            return ends

        late = read_too_early(end, rank.reference[0], dist.group.WORLD)
    rank.journal.write("parity", mode=mode.text, **beside.verdict(late).model_dump())


def read_too_early(
    end: Callable[[bool], dict[str, Tensor]], start: dict[str, Tensor], group: dist.ProcessGroup | None
) -> str | None:
    """The parameter that ends otherwise when steps are not finished one by one, on any rank; None if there is none.

    `end(finish)`: parameters after k steps, each finished or not. Collective: every rank of the group must call it.
    """

    def first(a: dict[str, Tensor], b: dict[str, Tensor]) -> str | None:
        mine = next((name for name, value in a.items() if not _same_bits(value, b[name])), None)
        found: list[str | None] = [None] * dist.get_world_size(group)
        dist.all_gather_object(found, mine, group=group)
        return next((name for name in found if name is not None), None)

    finished = end(True)
    name = first(end(False), finished)
    if name is None:
        return None
    again = end(True)
    if first(again, finished) is None:
        return name
    worst, _ = largest_difference(end(False), finished, start, reordered=True)
    found = [False] * dist.get_world_size(group)
    dist.all_gather_object(found, worst <= TOLERANCE, group=group)
    return None if all(found) else name


def agreement(rank: Rank, mode: ModeSpec, steps: int) -> dict[str, Any]:
    """What a mode can be held to whose gradients are not DDP's: after each step all ranks have the same bits."""
    digests: dict[str, str] = {}

    def digest() -> None:
        for name, value in rank.workload.model.named_parameters():
            digests[name] = _digest(value, digests.get(name, ""))

    def attached() -> None:
        with rank.attach(mode) as handle:

            def judge() -> None:
                handle.finish()
                digest()

            rank.train(handle, steps, f"gate {mode.text}", judge)

    trained(rank.workload, rank.snapshot, attached)
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, digests)
    unequal = [name for name in digests if any(other[name] != digests[name] for other in everyone)]
    return Parity(
        ok=not unequal,
        max_relative_difference=None,
        tolerance=0.0,
        bitwise_across_ranks=not unequal,
        steps=steps,
        worst_parameter=unequal[0] if unequal else None,
        reference=RANKS,
        message=f"ranks disagree on {unequal[0]!r}" if unequal else None,
    ).model_dump()


class Beside:
    """A schedule's steps beside DDP's. `states`: DDP's parameters before the first step and after each of its k."""

    def __init__(
        self,
        workload: Workload,
        states: Sequence[dict[str, Tensor]],
        group: dist.ProcessGroup | None,
        *,
        compressed: bool = False,
    ) -> None:
        self._workload = workload
        self._states = states
        self._group = group
        self._size = mean if compressed else largest
        self._tolerance = COMPRESSED_TOLERANCE if compressed else TOLERANCE
        self._reordered = dist.get_world_size(group) > 2  # a sum of two is the same in either order
        self._taken = 0
        self._worst: float = 0.0
        self._worst_name: str | None = None
        self._digests: dict[str, str] = {}

    def step(self) -> None:
        """A step was taken: judge it, and go on from DDP's state. A step too many is left to `verdict`."""
        self._taken += 1
        if self._taken >= len(self._states):
            return
        before, there = self._states[self._taken - 1], self._states[self._taken]
        mine = dict(self._workload.model.named_parameters())
        worst, name = largest_difference(
            {n: value.detach() for n, value in mine.items()}, there, before, reordered=self._reordered, size=self._size
        )
        if not worst <= self._worst and not math.isnan(self._worst):
            self._worst, self._worst_name = worst, name
        with torch.no_grad():
            for n, value in mine.items():
                self._digests[n] = _digest(value, self._digests.get(n, ""))
                value.copy_(there[n])

    def verdict(self, late: str | None = None) -> Parity:
        """On every rank alike: the worst rank decides. Collective: every rank of the group must call it.

        `late`: the parameter that was read before its update, if one was; see `read_too_early`.
        """
        steps = len(self._states) - 1
        found: list[Any] = [None] * dist.get_world_size(self._group)
        said = (self._digests, self._worst, self._worst_name, self._taken)
        dist.all_gather_object(found, said, group=self._group)
        first = found[0][0]
        unequal = [name for name in first if any(rank[0].get(name) != first[name] for rank in found)]
        worst, worst_name = max(((rank[1], rank[2]) for rank in found), key=lambda pair: (pair[0] != pair[0], pair[0]))
        message = None
        taken = next((rank[3] for rank in found if rank[3] != steps), steps)
        if taken != steps:
            message = f"it took {taken} steps in place of {steps}"
        elif unequal:
            message = f"ranks disagree on {unequal[0]!r}" + (
                f" and {len(unequal) - 1} more" if len(unequal) > 1 else ""
            )
        elif not worst <= self._tolerance:
            message = f"{worst_name!r} differs from DDP's by {worst:.3g} of its update (tolerance {self._tolerance:g})"
        elif late is not None:
            message = f"{late!r} ends otherwise when its update is put off than when each step is finished"
        return Parity(
            ok=message is None,
            max_relative_difference=worst if math.isfinite(worst) else None,
            tolerance=self._tolerance,
            bitwise_across_ranks=not unequal,
            steps=steps,
            worst_parameter=unequal[0] if unequal else late or worst_name,
            message=message,
        )


def largest(values: Tensor, less: Tensor | None = None) -> float:
    """The largest magnitude, of the difference where there is `less`, in fp64; NaN where there is one."""
    found = [float(piece.abs().max()) for piece in _pieces(values, less)]
    return math.nan if any(map(math.isnan, found)) else max(found)


def mean(values: Tensor, less: Tensor | None = None) -> float:
    """The mean magnitude, likewise."""
    return math.fsum(float(piece.abs().sum()) for piece in _pieces(values, less)) / values.numel()


def _pieces(values: Tensor, less: Tensor | None) -> Iterator[Tensor]:
    """The values, or differences, in fp64 and in pieces: all of a large layer would take eight times its bytes."""
    flat = torch.split(values.reshape(-1), PIECE)
    if less is None:
        yield from (piece.double() for piece in flat)
    else:
        others = torch.split(less.reshape(-1), PIECE)
        yield from (piece.double() - other.double() for piece, other in zip(flat, others, strict=True))


def compressed(compress: str) -> str:
    """What the record says of a run whose gradients are compressed."""
    return (
        f"fp32 gradients travel as {compress}, in every mode; the gate compares mean differences with DDP's exact "
        f"steps (tolerance {COMPRESSED_TOLERANCE:g} in place of {TOLERANCE:g} of the largest)"
    )


def largest_difference(
    result: dict[str, Tensor],
    reference: dict[str, Tensor],
    start: dict[str, Tensor],
    *,
    reordered: bool,
    size: Callable[[Tensor, Tensor | None], float] = largest,
) -> tuple[float, str | None]:
    """The largest difference(p) of the module's formula, NaN before all, and whose it is; (0, None) for none at all.

    `reordered`: whether sums over ranks may have been made in another order, which brings in the term with U. `size`:
    of a tensor; for compressed gradients it is the mean.
    """
    filled = {name: b for name, b in reference.items() if b.numel()}
    updates = {name: size(b, start[name]) for name, b in filled.items()}
    most = max((update for update in updates.values() if math.isfinite(update)), default=0.0)
    least = _NULL * most if reordered else 0.0
    worst, worst_name = 0.0, None
    for name, b in filled.items():
        a = result[name]
        scale = updates[name] + _ULPS * torch.finfo(b.dtype).eps * size(b, None) + least
        difference = size(a, b) / scale if scale > 0 else float((a != b).any())
        if math.isnan(difference):
            return difference, name
        if difference > worst:
            worst, worst_name = difference, name
    return worst, worst_name


def _same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a, b) or _digest(a, "") == _digest(b, "")  # a NaN is not equal to itself


def _digest(value: Tensor, before: str) -> str:
    """Of the value's bits, and of what was digested before."""
    raw = value.detach().contiguous().cpu().view(-1).view(torch.uint8).numpy()
    digest = hashlib.blake2b(raw.data, digest_size=16)
    digest.update(before.encode())
    return digest.hexdigest()
