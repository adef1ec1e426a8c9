"""A hand-made record of four restarts there and back."""

from __future__ import annotations

from xbench.cluster.live.restart_result import compare_losses, record_of
from xbench.records import Environment, Restart, RestartTimes, WorkloadRecord
from xbench.runs.frames import RestartFrame
from xbench.spec import WorkloadSpec

CUT = {1: 1.0, 2: 0.9, 3: 0.8, 4: 0.70001, 5: 0.6}
UNCUT = {1: 1.0, 2: 0.9, 3: 0.8, 4: 0.7, 5: 0.6}


def times(steps: int, from_workers: int, to_workers: int, more_s: float = 0.0) -> RestartTimes:
    return RestartTimes(
        from_workers=from_workers, to_workers=to_workers, steps=steps, last_step_s=0.02, checkpoint_s=0.08,
        teardown_s=0.1, start_s=0.05, imports_s=2.0 + more_s, join_s=0.2, build_s=0.1, load_s=0.05, first_step_s=0.4,
        step_s=0.05,
    )  # fmt: skip


def frame() -> RestartFrame:
    return RestartFrame(
        created="2026-03-01T12:00:00+00:00", command="xbench cluster restart resnet18", xbench="0.1.0",
        environment=Environment(
            hostname="bench", cpu="A CPU", cores=2, memory_bytes=8 * 2**30, python="3.11.7", torch="2.11.0",
            device="cpu", device_count=0, xbench="0.1.0", commit=None,
        ),
        workload=WorkloadRecord(
            spec=WorkloadSpec(name="resnet18", batch_size=8, image_size=64), title="resnet18", parameters=11_689_512,
            tensors=62, grad_bytes=46_758_048, batch_size=8, input="3×64×64 images",
        ),
        batch_size=8, slots=[[0], [1]], backend="gloo", from_workers=1, to_workers=2, warnings=[],
    )  # fmt: skip


def four() -> list[RestartTimes]:
    return [times(1 + number, *((1, 2) if number % 2 == 0 else (2, 1)), 0.1 * number) for number in range(4)]


def restart(*, held: bool = True, depends: tuple[str, ...] = ()) -> Restart:
    cut = CUT if held else CUT | {5: 0.7}
    check = compare_losses(cut, UNCUT, 1e-4, [1, 2, 1, 2, 1], depends)
    check = check.model_copy(update={"stops": [1, 2, 3, 4]})
    return record_of(
        frame(), four(), checkpoint_bytes=93_600_000, check=check, losses=cut.values(), uncut_losses=UNCUT.values()
    )


def cut_short(error: str = "interrupted") -> Restart:
    return record_of(frame(), four()[:2], error=error)
