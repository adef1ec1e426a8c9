"""The engine `ray` without Ray: one attempt from its bundles to its end, on a cluster that is played."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from xbench.cluster.live import checkpoints, ray_engine
from xbench.cluster.live.attempt import LOCK, PROGRAM, STOP, AttemptProgress, attempt_of
from xbench.cluster.live.jobs_file import JobEntry
from xbench.cluster.live.ray_engine import RayEngine, RayRunning, Worker
from xbench.errors import SpecError

JOB = JobEntry(name="a", workload="synthetic:layers=4,bytes=64k", steps=40, batch_size=8)


class RayError(Exception):
    """What Ray raises."""


class ActorUnavailableError(RayError):
    """Nobody answers."""


@dataclass
class Ref:
    """What will be there."""

    value: Any = None
    there: bool = False


@dataclass
class PlayedRay:
    """As much of Ray as the engine asks for."""

    bundles: list[dict[str, int]] = field(default_factory=list)
    ready: Ref = field(default_factory=Ref)
    addresses: list[Ref] = field(default_factory=list)
    exits: list[Ref] = field(default_factory=list)
    options: list[dict[str, Any]] = field(default_factory=list)
    told: list[tuple[Any, ...]] = field(default_factory=list)
    alive: list[bool] = field(default_factory=lambda: [True, True])
    """True for each of the nodes n0, n1, ... that is alive; each has an actor."""
    killed: int = 0
    removed: int = 0

    def __post_init__(self) -> None:
        self.exceptions = types.SimpleNamespace(RayError=RayError, ActorUnavailableError=ActorUnavailableError)
        self.util = types.SimpleNamespace(placement_group=self.group, remove_placement_group=self.remove)

    def group(self, bundles: list[dict[str, int]], strategy: str) -> Any:
        assert strategy == "PACK"
        self.bundles = bundles
        return types.SimpleNamespace(ready=lambda: self.ready)

    def remove(self, group: Any) -> None:
        self.removed += 1

    def remote(self, actor: type) -> Any:
        assert actor is Worker

        def options(**given: Any) -> Any:
            self.options.append(given)
            return types.SimpleNamespace(remote=self.actor)

        return types.SimpleNamespace(options=options)

    def actor(self) -> Any:
        def place() -> Ref:
            number = len(self.addresses)
            self.addresses.append(Ref((f"10.0.0.{number + 7}", f"n{number}")))
            return self.addresses[-1]

        def run(*told: Any) -> Ref:
            self.told.append(told)
            self.exits.append(Ref(""))
            return self.exits[-1]

        return types.SimpleNamespace(place=types.SimpleNamespace(remote=place), run=types.SimpleNamespace(remote=run))

    def wait(self, refs: list[Ref], num_returns: int = 1, timeout: float | None = None) -> tuple[list[Ref], list[Ref]]:
        assert timeout == 0, "nobody waits here"
        return [ref for ref in refs if ref.there], [ref for ref in refs if not ref.there]

    def get(self, ref: Ref) -> Any:
        if isinstance(ref.value, Exception):
            raise ref.value
        return ref.value

    def kill(self, actor: Any) -> None:
        self.killed += 1

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"NodeID": f"n{number}", "Alive": alive, "NodeManagerAddress": f"10.0.0.{number + 7}"}
            for number, alive in enumerate(self.alive)
        ]

    def place_all(self) -> None:
        for address in self.addresses:
            address.there = True


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> PlayedRay:
    strategies = types.ModuleType("ray.util.scheduling_strategies")
    strategies.PlacementGroupSchedulingStrategy = (  # type: ignore[attr-defined]
        lambda group, placement_group_bundle_index: placement_group_bundle_index
    )
    for name in ("ray", "ray.util"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "ray.util.scheduling_strategies", strategies)
    return PlayedRay()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "a" / "incarnation-0001"
    made.mkdir(parents=True)
    return made


def begun(ray: PlayedRay, directory: Path, device: str = "cpu") -> RayRunning:
    program = attempt_of(JOB, (0, 0)).model_copy(update={"device": device})
    checkpoints.write(directory.parent, program.key, 10, b"kept")
    return RayRunning(ray, program, directory)


def asked(ray: PlayedRay, directory: Path) -> RayRunning:
    """An attempt that has its bundles, and has asked for its actors."""
    running = begun(ray, directory)
    ray.ready.there = True
    for _ in range(2):
        running.look()
    return running


def placed(ray: PlayedRay, directory: Path) -> RayRunning:
    """An attempt whose ranks have been placed and are starting."""
    running = asked(ray, directory)
    ray.place_all()
    running.look()
    return running


def say(directory: Path, *events: dict[str, Any]) -> None:
    with open(directory / "job0-rank0.jsonl", "a", encoding="utf-8") as stream:
        stream.writelines(json.dumps({"t": 0.0, **event}) + "\n" for event in events)


def test_a_gang_from_its_bundles_to_its_end(ray: PlayedRay, directory: Path) -> None:
    running = begun(ray, directory)
    assert running.look() == AttemptProgress("starting", 10, 10)
    assert ray.bundles == [{"CPU": 1}, {"CPU": 1}]
    running.look()
    assert ray.options == []  # no worker before all bundles are there
    ray.ready.there = True
    running.look()
    assert [one["scheduling_strategy"] for one in ray.options] == [0, 1]
    assert all((one["num_cpus"], one["num_gpus"], one["max_restarts"]) == (1, 0, 0) for one in ray.options)
    ray.place_all()
    running.look()
    assert [told[:4] for told in ray.told] == [(rank, str(directory), 2, "10.0.0.7") for rank in (0, 1)]
    say(directory, {"event": "loaded", "steps": 10, "skipped": []}, {"event": "step", "step": 11, "loss": 1.0})
    assert running.look() == AttemptProgress("training", 11, 10)
    running.stop()
    assert (directory / STOP).exists()
    say(directory, {"event": "kept", "steps": 11}, {"event": "end", "how": "stopped", "steps": 11})
    ray.exits[0].there = True
    assert running.look() == AttemptProgress("training", 11, 11)
    ray.exits[1].there = True
    assert running.look() == AttemptProgress("stopped", 11, 11)
    assert running.look() == AttemptProgress("stopped", 11, 11)
    assert ray.removed == 1


def test_a_worker_that_fails_takes_the_others_along_and_is_over_when_nobody_is_left(
    ray: PlayedRay, directory: Path
) -> None:
    running = placed(ray, directory)
    lock = os.open(directory.parent / LOCK, os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_SH)
    ray.exits[1].there, ray.exits[1].value = True, "rank 1 was killed (SIGKILL)"
    assert running.look().state == "starting"
    assert ray.killed == 2
    os.close(lock)
    assert running.look() == AttemptProgress("failed", 10, 10, "rank 1 was killed (SIGKILL)")


def training(ray: PlayedRay, directory: Path) -> RayRunning:
    """Two ranks that are at step 13, of which 10 are kept."""
    running = placed(ray, directory)
    say(directory, {"event": "loaded", "steps": 10, "skipped": []}, {"event": "step", "step": 13, "loss": 1.0})
    assert running.look() == AttemptProgress("training", 13, 10)
    return running


@pytest.mark.parametrize(("alive", "state", "reason"), [
    (True, "failed", "Ray: The actor died unexpectedly."),
    (False, "lost", "the Ray cluster has lost a node (10.0.0.8)"),
])  # fmt: skip
def test_an_actor_that_cannot_be_made(
    alive: bool, state: str, reason: str, ray: PlayedRay, directory: Path
) -> None:  # fmt: skip
    running = asked(ray, directory)
    ray.addresses[1].value, ray.alive[1] = RayError("The actor died unexpectedly.\nlog"), alive
    ray.place_all()
    assert running.look() == AttemptProgress(state, 10, 10, reason)


def test_the_verdict_waits_until_ray_knows_of_the_node(ray: PlayedRay, directory: Path) -> None:
    """The rank of the other node notices at once, and its word is no crash of the job."""
    running = training(ray, directory)
    say(directory, {"event": "error", "message": "RuntimeError: Connection closed by peer", "traceback": ""})
    ray.exits[0].there, ray.exits[0].value = True, "rank 0 exited with 1"
    assert running.look().state == "training"
    ray.exits[1].there, ray.exits[1].value = True, ActorUnavailableError("RPC error: Socket closed")
    assert running.look().state == "training"
    assert ray.killed == 0
    ray.alive[1] = False
    assert running.look() == AttemptProgress("lost", 13, 10, "the Ray cluster has lost a node (10.0.0.8)")


def test_a_worker_that_never_answers_again_is_a_crash_at_last(
    ray: PlayedRay, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = training(ray, directory)
    monkeypatch.setattr(ray_engine, "VERDICT_S", -1.0)
    ray.exits[1].there, ray.exits[1].value = True, ActorUnavailableError("RPC error: Socket closed")
    assert running.look() == AttemptProgress("failed", 13, 10, "Ray: RPC error: Socket closed")


@pytest.mark.parametrize(("message", "reason"), [
    ("ValueError: no such data\nmore", "rank 0: ValueError: no such data"),
    ("RuntimeError: Connection closed by peer", "rank 1 was killed (SIGKILL)"),
])  # fmt: skip
def test_the_rank_that_died_by_itself_is_named_and_not_those_who_noticed(
    message: str, reason: str, ray: PlayedRay, directory: Path
) -> None:
    running = training(ray, directory)
    say(directory, {"event": "error", "message": message, "traceback": ""})
    ray.exits[0].there, ray.exits[0].value = True, "rank 0 exited with 1"
    ray.exits[1].there, ray.exits[1].value = True, "rank 1 was killed (SIGKILL)"
    assert running.look() == AttemptProgress("failed", 13, 10, reason)


def test_a_checkpoint_that_the_journal_does_not_know_counts(ray: PlayedRay, directory: Path) -> None:
    running = training(ray, directory)
    checkpoints.write(directory.parent, running._program.key, 12, b"kept")
    running.kill()
    assert running.look() == AttemptProgress("failed", 13, 12, "it was killed")


def test_room_is_waited_for_as_long_as_it_takes_and_workers_are_not(
    ray: PlayedRay, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_engine, "PLACING_S", -1.0)
    monkeypatch.setattr(ray_engine, "PATIENCE_S", -1.0)
    running = begun(ray, directory)
    for _ in range(3):
        assert running.look().state == "starting"
    assert running.look().reason == "waits: the Ray cluster has no room for 2 workers now"
    ray.ready.there = True
    for _ in range(2):
        running.look()
    assert running.look() == AttemptProgress("failed", 10, 10, "its workers did not start within -1 s")
    assert ray.removed == 1


def install(monkeypatch: pytest.MonkeyPatch, resources: dict[str, float]) -> None:
    """Put a Ray in place whose cluster has these."""
    played = types.ModuleType("ray")
    played.is_initialized = lambda: True  # type: ignore[attr-defined]
    played.cluster_resources = lambda: resources  # type: ignore[attr-defined]
    played.exceptions = types.SimpleNamespace(RayError=RayError)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", played)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())


@pytest.mark.parametrize(("most", "expected"), [(None, [2, 1, 3]), (2, [2, 1, 2])])
def test_slots_are_counted_again(most: int | None, expected: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"CPU": 2.0}
    install(monkeypatch, there)
    monkeypatch.setattr(ray_engine, "COUNT_S", -1.0)
    engine = RayEngine(most, "cpu", None)
    found = []
    for there["CPU"] in (2.0, 1.0, 3.0):
        found.append(engine.slots)
    assert found == expected


def test_a_run_that_goes_on_takes_fewer_slots_for_now(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, {})
    assert RayEngine(2, "cpu", None, fewer=True).slots == 0
    with pytest.raises(SpecError, match="2 slots were asked for, and the Ray cluster has 0 CPUs"):
        RayEngine(2, "cpu", None)


def test_gpus_are_asked_for_when_the_last_attempt_is_gone(ray: PlayedRay, directory: Path) -> None:
    lock = os.open(directory.parent / LOCK, os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_SH)
    running = begun(ray, directory, "cuda")
    running.look()
    assert ray.bundles == []
    os.close(lock)
    running.look()
    assert ray.bundles == [{"CPU": 1, "GPU": 1}] * 2
    ray.ready.there = True
    running.look()
    assert [one["num_gpus"] for one in ray.options] == [1, 1]


def test_a_node_that_does_not_see_the_folder_says_so(tmp_path: Path) -> None:
    told = Worker().run(0, str(tmp_path / "nowhere"), 1, "127.0.0.1", "/")
    assert "--folder has to be on a file system that all nodes of the Ray cluster share" in told


def test_two_attempts_in_one_folder(directory: Path) -> None:
    (directory / PROGRAM).write_text("{}", encoding="utf-8")
    lock = os.open(directory.parent / LOCK, os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert "another attempt lives in" in Worker().run(0, str(directory), 1, "127.0.0.1", "/")
    os.close(lock)
