"""One worker of one attempt: `python -m xbench.cluster.live.job_rank FOLDER`, FOLDER being the attempt's.

It joins the others, builds the workload, loads the newest whole checkpoint, and trains under DistributedDataParallel to
the job's last step, or until it is asked to stop. RANK, WORLD_SIZE and MASTER_ADDR stand in the environment, as
torchrun sets them; rank 0 listens at a port that the kernel chooses, and writes it into `meeting`. Exit code 0: stopped
or finished, and rank 0's journal says which.

**Samples.** The job's seed and the step decide which samples a step has. A workload of ours draws sample i from the
seed and i, so that a rank makes only those that it needs, and the set is `EPOCH_STEPS` batches large; a factory's batch
is the set. An epoch goes through the set in an order that the seed and the epoch decide; what does not fill a batch is
left out. Random numbers of the forward pass come from a seed a step and a rank: a step that is done again with as many
workers is the same step. What else of a model depends on how a batch is shared is trained as it is (batch-norm).
"""

from __future__ import annotations

import io
import os
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, NoReturn

from xbench.interpreter import uncollected

with uncollected(program=__name__ == "__main__"):
    import numpy as np
    import torch
    import torch._dynamo  # every optimizer of torch imports it when it is made: seconds that are no model's
    import torch.distributed as dist

from torch.distributed import Store  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from xbench.cluster.live import checkpoints
from xbench.cluster.live.attempt import MEETING, PROGRAM, STOP, AttemptSpec, share
from xbench.errors import WorkloadError
from xbench.gpu_errors import shortage_in
from xbench.rank import events
from xbench.rank.journal import Journal
from xbench.rank.store import rank_store
from xbench.spec import WorkloadSpec
from xbench.workloads import check_one_batch, family_of
from xbench.workloads.batches import with_each
from xbench.workloads.build import build, place, recipe_of
from xbench.workloads.workload import Workload

MEETING_S = 300.0
PATIENCE = timedelta(minutes=30)
"""With a silent peer: a dead one is noticed at once, and a slow one may be writing its checkpoint."""

EPOCH_STEPS = 16
_SAMPLE, _LOOP, _ORDER = range(3)


class Drawn:
    """Samples of a workload of ours: `spec.batch_size` is one. `count`: how many there are."""

    def __init__(self, spec: WorkloadSpec, batch_size: int) -> None:
        self._recipe = recipe_of(spec)
        self._seed = spec.seed
        self.count = EPOCH_STEPS * batch_size

    def take(self, numbers: Sequence[int]) -> tuple[Any, Any]:
        """(inputs, targets) of these samples, in this order, on the CPU. Leaves torch's generator anywhere."""
        rows: list[Any] = []
        targets: list[torch.Tensor] = []
        for number in numbers:
            torch.manual_seed(mixed(self._seed, _SAMPLE, number))
            row, target = self._recipe.batch(0)
            rows.append(row)
            targets.append(target)
        if isinstance(rows[0], dict):
            return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}, torch.cat(targets)
        return torch.cat(rows), torch.cat(targets)


class BatchSamples:
    """The samples of a factory's batch: what has as many rows as its first input is taken by row."""

    def __init__(self, workload: Workload) -> None:
        self._whole = (workload.inputs, workload.targets)
        self.count = workload.batch_size

    def take(self, numbers: Sequence[int]) -> tuple[Any, Any]:
        """(inputs, targets) of these samples, in this order, where the workload is."""

        def rows(tensor: torch.Tensor) -> torch.Tensor:
            return tensor[list(numbers)] if tensor.dim() and tensor.shape[0] == self.count else tensor

        inputs, targets = with_each(self._whole, rows)
        return inputs, targets


class Order:
    """The samples of each step (from 0): no torch in it, and the same for every number of workers."""

    def __init__(self, seed: int, count: int, batch_size: int) -> None:
        if batch_size > count:
            raise ValueError(f"a batch of {batch_size} from {count} samples")
        self._seed, self._count, self._batch_size = seed, count, batch_size
        self._epoch, self._order = -1, np.arange(0)

    def of_step(self, step: int) -> list[int]:
        """Numbers of its samples, in the order in which ranks share them."""
        epoch, place = divmod(step, self._count // self._batch_size)
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = np.random.default_rng((self._seed, _ORDER, epoch)).permutation(self._count)
        return [int(one) for one in self._order[place * self._batch_size : (place + 1) * self._batch_size]]


def samples_of(workload: Workload, batch_size: int) -> Drawn | BatchSamples:
    """The set of a built workload.

    Raises WorkloadError for a factory whose batch is smaller than the job's, or comes from a loader.
    """
    if family_of(workload.spec.name) != "factory":
        return Drawn(workload.spec, batch_size)
    check_one_batch(workload.describe(), "a live job")
    given = BatchSamples(workload)
    if given.count < batch_size:
        raise WorkloadError(
            f"{workload.spec.title}: its factory made {given.count} samples, and a step wants {batch_size}",
            hint=f"a batch size of at most {given.count}, or a larger batch from the factory",
        )
    return given


def mixed(*parts: int) -> int:
    """One seed below 2⁶³ of several numbers."""
    low, high = np.random.SeedSequence(parts).generate_state(2, np.uint32)
    return (int(high) >> 1) << 32 | int(low)


class JobRank:
    """The state of one worker."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.folder = directory.parent
        self.program = AttemptSpec.model_validate_json((directory / PROGRAM).read_text(encoding="utf-8"))
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.journal = Journal(directory, 0, self.rank)
        self.journal.write(events.RankStarted(rank=self.rank, pid=os.getpid()))
        self.device = torch.device("cpu")
        self.steps = 0
        self.kept: int | None = None

    def start(self) -> None:
        """Join the others, build, load, wrap."""
        program = self.program
        if program.device == "cuda":
            self.device = torch.device("cuda", program.slots[self.rank])
            torch.cuda.set_device(self.device)
        elif "XBENCH_CORES" in os.environ:  # the guard has pinned us
            torch.set_num_threads(len(os.sched_getaffinity(0)))
        self.journal.note("joining the process group")
        self.store = store = self.meet()
        backend = "nccl" if program.device == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.world, timeout=PATIENCE)
        dist.all_reduce(torch.zeros(1, device=self.device))  # connections are made by the first collective
        self.workload = build(program.workload, self.device)
        self.samples = samples_of(self.workload, program.batch_size)
        self.order = Order(program.workload.seed, self.samples.count, program.batch_size)
        self.mine = share(program.batch_size, self.world, self.rank)
        self.weight = len(self.mine) * self.world / program.batch_size
        self.load()
        ids = [self.device.index] if self.device.type == "cuda" else None
        self.parallel = DistributedDataParallel(self.workload.model, device_ids=ids)

    def meet(self) -> Store:
        """The store at which all ranks meet, which rank 0 keeps."""
        address, path = os.environ["MASTER_ADDR"], self.directory / MEETING
        if self.rank == 0:
            store = rank_store(address, 0, PATIENCE, serves=True)
            part = path.with_suffix(".part")
            part.write_text(str(store.port), encoding="utf-8")
            part.rename(path)
            return store
        deadline_s = time.monotonic() + MEETING_S
        while not path.exists():
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"rank 0 was not there within {MEETING_S:.0f} s")
            time.sleep(0.005)
        port = int(path.read_text(encoding="utf-8"))
        return rank_store(address, port, PATIENCE, serves=False)

    def load(self) -> None:
        """Go back to the newest whole checkpoint, which rank 0 chooses for all."""
        key = self.program.key
        content: bytes | None
        if self.rank == 0:
            checkpoints.clear_parts(self.folder)
            self.steps, content, skipped = checkpoints.newest(self.folder, key)
            self.store.set("steps", str(self.steps))
            self.journal.write(events.CheckpointLoaded(steps=self.steps, skipped=skipped))
        else:
            self.steps = int(self.store.get("steps"))
            content = checkpoints.at(self.folder, key, self.steps)
        if content is not None:
            state = torch.load(io.BytesIO(content), map_location=self.device, weights_only=True)
            self.workload.model.load_state_dict(state["model"])
            self.workload.optimizer.load_state_dict(state["optimizer"])
            self.kept = self.steps

    def run_all(self) -> None:
        """Train to the end, or until asked to stop.

        Rank 0 looks for the file `stop` before every step. What it finds travels with the loss in one all-reduce, so
        all ranks stop after the same step.
        """
        program = self.program
        both, told = self.start_sum(torch.zeros((), dtype=torch.float64, device=self.device))
        told.wait()
        stop = bool(both[1] > 0)
        while self.steps < program.steps and not stop:
            self.journal.note(f"step {self.steps + 1}")
            loss, stop = self.step()
            self.steps += 1
            if self.rank == 0:
                self.journal.write(events.StepTrained(step=self.steps, loss=loss))
            if stop or self.steps >= program.steps or self.steps % program.checkpoint_steps == 0:
                self.keep()
        how: Literal["finished", "stopped"] = "finished" if self.steps >= program.steps else "stopped"
        self.journal.write(events.RankEnded(how=how, steps=self.steps))
        self.part()

    def part(self) -> None:
        """Nobody leaves before all have heard the last collective: what a socket still holds may go with its owner."""
        if self.rank > 0:
            with suppress(RuntimeError):  # the store goes with rank 0, who has heard of everybody by then
                self.store.add("done", 1)
                self.store.get("end")
            return
        while self.store.add("done", 0) < self.world - 1:
            time.sleep(0.001)
        self.store.set("end", "")

    def step(self) -> tuple[float, bool]:
        """One step of the whole batch: its mean loss before the update, and whether to stop after it."""
        numbers = self.order.of_step(self.steps)
        inputs, targets = self.samples.take([numbers[one] for one in self.mine])
        dtype = torch.bfloat16 if self.program.workload.dtype == "bf16" else None
        self.workload.inputs = place(inputs, self.device, dtype)
        self.workload.targets = place(targets, self.device, dtype)
        torch.manual_seed(mixed(self.program.workload.seed, _LOOP, self.steps, self.rank))
        self.workload.optimizer.zero_grad(set_to_none=True)
        loss = self.workload.forward_loss(self.parallel)
        both, told = self.start_sum(loss.detach().double() * (self.weight / self.world))
        (loss * self.weight).backward()  # type: ignore[no-untyped-call]
        self.workload.optimizer.step()
        told.wait()
        total, stops = both.tolist()
        return total, stops > 0

    def start_sum(self, part: torch.Tensor) -> tuple[torch.Tensor, dist.Work]:
        """What becomes (sum of the ranks' parts, above 0 where we are asked to stop) on all ranks, once it is there."""
        asked = self.rank == 0 and (self.directory / STOP).exists()
        both = torch.stack([part, torch.tensor(float(asked), dtype=torch.float64, device=self.device)])
        work = dist.all_reduce(both, async_op=True)
        assert work is not None
        return both, work

    def keep(self) -> None:
        """Rank 0 writes a checkpoint; the others go on, and wait for it at the next collective."""
        if self.rank > 0 or self.kept == self.steps:
            return
        self.journal.note(f"writing the checkpoint of step {self.steps}")
        state = {"model": self.workload.model.state_dict(), "optimizer": self.workload.optimizer.state_dict()}
        stream = io.BytesIO()
        torch.save(state, stream)
        checkpoints.write(self.folder, self.program.key, self.steps, stream.getbuffer())
        self.kept = self.steps
        self.journal.write(events.CheckpointKept(steps=self.steps))


def main(argv: list[str]) -> NoReturn:
    """Run one worker; any exception is written to the journal before the process ends with 1."""
    rank = JobRank(Path(argv[0]))
    try:
        rank.start()
        rank.run_all()
    except BaseException as error:
        said = shortage_in(rank.program.workload, error)
        with suppress(OSError):
            message = f"{type(error).__name__}: {error}"
            rank.journal.write(events.RankFailed(message=message, traceback=traceback.format_exc(), said=said))
        print(traceback.format_exc(), file=sys.stderr, flush=True)
        os._exit(1)  # not sys.exit: see `rank.main`
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
