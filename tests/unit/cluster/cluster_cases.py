"""Jobs, speeds, policies and traces for the tests of the cluster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st

from xbench.cluster.jobs import Job, RigidSpeed, Speed
from xbench.cluster.metrics import Simulated
from xbench.cluster.policy import Active, Change, Cluster, Grant, Policy
from xbench.cluster.simulator import simulate

TRACES = st.lists(st.tuples(st.integers(0, 15), st.integers(1, 4), st.integers(1, 12)), min_size=1, max_size=12).map(
    sorted
)
"""(arrival, GPUs, duration) of rigid jobs, in whole seconds."""


@dataclass(frozen=True)
class Amdahl(Speed):
    """1 on one GPU; `parallel` of the work is shared by all."""

    parallel: float = 1.0
    sizes: tuple[int, ...] | None = None

    def __call__(self, gpus: int) -> float:
        if self.sizes is not None and gpus not in self.sizes:
            raise ValueError(gpus)
        return 1 / (1 - self.parallel + self.parallel / gpus)


def rigid(*jobs: tuple[float, int, float]) -> list[Job]:
    """(arrival, GPUs, duration) each; named a, b, c, ..."""
    return [
        Job(name(number), arrival_s, gpus, duration_s, RigidSpeed(gpus))
        for number, (arrival_s, gpus, duration_s) in enumerate(jobs)
    ]


def name(number: int) -> str:
    return chr(ord("a") + number) if number < 26 else f"j{number}"


def ends(simulated: Simulated) -> dict[str, float]:
    return {job.job.name: job.finished_s for job in simulated.finished}


def run(jobs: list[Job], policy: Policy, gpus: int, restart_s: float = 0.0, spans: bool = False) -> Simulated:
    return simulate(jobs, policy, Cluster(gpus, restart_s), moments=True, spans=spans)


class Scripted(Policy):
    """Does at each time what it was told to."""

    def __init__(self, script: Mapping[float, Mapping[str, Grant]]) -> None:
        self.script = dict(sorted(script.items()))
        self.jobs: dict[str, Active] = {}
        self.told: list[tuple[str, str]] = []

    def arrived(self, job: Active, now_s: float) -> None:
        self.jobs[job.job.name] = job
        self.told.append(("arrived", job.job.name))

    def finished(self, job: Active, now_s: float) -> None:
        self.told.append(("finished", job.job.name))

    def decide(self, now_s: float) -> Iterator[Change]:
        for at_s in [at_s for at_s in self.script if at_s <= now_s]:
            for job, grant in self.script.pop(at_s).items():
                yield self.jobs[job], grant

    def look_again_s(self, now_s: float) -> float | None:
        return next(iter(self.script), None)


def every_second(kind: type[Policy]) -> Policy:
    """The policy, asked again every second whatever happens."""

    class Asked(kind):  # type: ignore[misc, valid-type]
        def look_again_s(self, now_s: float) -> float:
            super().look_again_s(now_s)
            return now_s + 1

    return Asked()


def stepped(jobs: Iterable[tuple[int, int, int]], gpus: int, rule: str, restart: int = 0) -> dict[str, float]:
    """When each job ends, second by second, everything looked at every second. Whole seconds only.

    rule: fifo, sjf, srtf, srsf.
    """
    todo = [
        {"name": name(number), "number": number, "at": at, "gpus": wide, "left": long, "all": long, "warm": 0,
         "on": False, "ran": False}
        for number, (at, wide, long) in enumerate(jobs)
    ]  # fmt: skip
    out: dict[str, float] = {}
    now = 0
    while todo:
        here = [job for job in todo if job["at"] <= now]
        if rule in ("srtf", "srsf"):
            for job in here:
                again = job["warm"] if job["on"] else restart * job["ran"]
                job["key"] = (job["left"] + again) * (job["gpus"] if rule == "srsf" else 1)
            free = gpus
            for job in sorted(here, key=lambda job: (job["key"], job["number"])):
                fits = job["gpus"] <= free
                free -= job["gpus"] * fits
                if fits and not job["on"]:
                    job["warm"] = restart * job["ran"]
                job["on"] = fits
                job["ran"] = job["ran"] or fits
        else:
            free = gpus - sum(job["gpus"] for job in here if job["on"])
            waiting = [job for job in here if not job["on"]]
            for job in sorted(waiting, key=lambda job: (job["all"] if rule == "sjf" else 0, job["number"])):
                if job["gpus"] <= free:
                    job["on"] = True
                    free -= job["gpus"]
                elif rule == "fifo":
                    break
        now += 1
        for job in here:
            if job["on"] and job["warm"]:
                job["warm"] -= 1
            elif job["on"]:
                job["left"] -= 1
        for job in here:
            if job["left"] == 0:
                out[job["name"]] = float(now)
                todo.remove(job)
    return out


def write(path: Path, *lines: str) -> Path:
    """A CSV of these lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def pollux_folder(folder: Path) -> Path:
    """One application, yolov3, whose step on w packed GPUs of b samples each takes b + w/10 s, w/10 of it exchange."""
    placements = ["placement,local_bsz,step_time,sync_time", "41,4,99,1"]
    for gpus in (1, 2, 4, 8):
        placement = "44" if gpus == 8 else str(gpus)
        placements += [f"{placement},{local},{local + gpus / 10},{gpus / 10}" for local in (4, 8, 16)]
    write(folder / "yolov3" / "placements.csv", *placements)
    write(
        folder / "yolov3" / "scalability.csv",
        "num_nodes,num_replicas,local_bsz,step_time,sync_time", "4,16,4,5.6,1.6", "6,16,4,99,1",
    )  # fmt: skip
    write(
        folder / "workloads" / "workload-1.csv",
        "name,time,application,num_replicas,batch_size", "yolov3-0,5,yolov3,4,64", "yolov3-1,7,yolov3,2,64",
    )  # fmt: skip
    return folder
