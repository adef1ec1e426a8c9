"""One rank of `xbench converge`: profile, then train every mode from every seed on the same real samples.

It is a `rank.main` rank with other phases. A step's batch is this rank's slice of a permutation of the training images.
The seed and the epoch determine the permutation, so all modes see the same samples in the same order. After each epoch,
with every gradient applied, rank 0 evaluates its model on the whole test set. Batch-norm statistics are each rank's
own. The memory kept for backward and the operations of backward are counted, not timed, in one more cycle of steps
after a training.

Two jobs that share the devices train one seed each. The first job trains modes of one job.
"""

from __future__ import annotations

import gc
import hashlib
import itertools
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from xbench.interpreter import uncollected

with uncollected(program=__name__ == "__main__"):
    import torch
    import torch._dynamo
    import torch.distributed as dist

from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from xbench.distribution import install_extra
from xbench.errors import WorkloadError
from xbench.rank import pair
from xbench.rank.events import EpochTrained, ModeTrained, PhaseBegan
from xbench.rank.main import Rank, main
from xbench.rank.memory_phase import activation_bytes
from xbench.rank.partial_work import kept_bytes, work_by_band
from xbench.rank.program import ConvergeProgram, TrainingPlan
from xbench.rank.snapshot import RandomState
from xbench.records import WorkFormula
from xbench.schedules import cycle_of
from xbench.schedules.base import Handle
from xbench.schedules.job_turns import steps_in_turns
from xbench.schedules.spb import PartialBackpropEngine
from xbench.spec import ModeSpec
from xbench.workloads.build import build
from xbench.workloads.workload import Workload

TEST_BATCH = 128
CLASSES = 10
TEST_SHARE = 0.2
SPLIT_SEED = 0


@dataclass(frozen=True)
class Digits:
    """Normalised images (n, 1, 8, 8) and labels (n,), for training and for testing.

    Of 1797 grey images of 8 × 8 pixels, values 0 to 16, ten classes: the test half of "Optical Recognition of
    Handwritten Digits" (E. Alpaydin, C. Kaynak; UCI Machine Learning Repository, 1998, CC BY 4.0), written by 13
    people. They are normalised by the mean and deviation of the training images.
    """

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def digits() -> Digits:
    """Return scikit-learn's images, split by class with a fixed seed. Raises WorkloadError if it is missing."""
    try:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ModuleNotFoundError as error:
        raise WorkloadError(
            f"the digits come with scikit-learn, and {error.name!r} is not installed",
            hint=install_extra("converge"),
        ) from None
    images, labels = load_digits(return_X_y=True)
    train, test, train_labels, test_labels = train_test_split(
        images, labels, test_size=TEST_SHARE, stratify=labels, random_state=SPLIT_SEED
    )
    mean, deviation = float(train.mean()), float(train.std())

    def normal(values: object) -> Tensor:
        return ((torch.as_tensor(values, dtype=torch.float32) - mean) / deviation).view(-1, 1, 8, 8)

    return Digits(normal(train), torch.as_tensor(train_labels), normal(test), torch.as_tensor(test_labels))


def enlarged(images: Tensor, like: Tensor) -> Tensor:
    """Return images (n, 1, 8, 8) in the channels, height, width, dtype and device of a batch `like` (m, c, h, w)."""
    _, channels, height, width = like.shape
    wide = F.interpolate(images, size=(height, width), mode="bilinear", align_corners=False)
    return wide.expand(-1, channels, -1, -1).to(like)


class ConvergeRank(Rank):
    """State of one rank."""

    program: ConvergeProgram
    training: TrainingPlan
    data: Digits

    def run_all(self) -> None:
        """Profile, then train every mode."""
        data = digits()
        for session in self.sessions:
            session.training, session.data = self.program.training, data
        self.note("profile")
        self.journal.write(PhaseBegan(name="profile", number=0))
        self._check(self.workload)
        self.profile()
        for mode in self.run.modes:
            if not self.refuses(mode):
                for number, seeds in enumerate(self.rounds(mode)):
                    self.barrier(f"{mode.text} {number}")
                    if mode.paired:
                        self.trained(mode, self.sessions_of(mode), seeds)
                    elif self.job == 0:  # the first job trains modes of one job
                        self.trained(mode, [self], seeds)
        self.finish()

    def rounds(self, mode: ModeSpec) -> list[list[int]]:
        """Return the seeds that are trained at once, by job. An odd last seed is paired with the first, once more."""
        seeds = list(self.training.seeds)
        if not mode.paired:
            return [[seed] for seed in seeds]
        return [[first, second] for first, second in zip(seeds[::2], [*seeds[1::2], seeds[0]], strict=False)]

    def _check(self, workload: Workload) -> None:
        like = workload.inputs
        if not isinstance(like, Tensor) or like.dim() != 4 or like.shape[1] not in (1, 3):
            raise WorkloadError(f"{workload.spec.title} takes no images, and the digits are images")
        with torch.no_grad():
            outputs = workload.outputs()
        if not isinstance(outputs, Tensor) or outputs.dim() != 2 or outputs.shape[1] < CLASSES:
            raise WorkloadError(f"{workload.spec.title} does not tell {CLASSES} classes apart")

    def trained(self, mode: ModeSpec, jobs: Sequence[Self], seeds: Sequence[int]) -> None:
        """Train one mode in each of these jobs from the seed of its number, and write the curves."""
        for job in jobs:
            job.begin(mode, seeds[job.job])
        sent = taken = 0
        with ExitStack() as stack:
            handles = [pair.attached(stack, job, mode) for job in jobs]
            while taken < self.training.steps:
                steps = min(self.training.steps_per_epoch, self.training.steps - taken)
                before = device_bytes()
                self.epoch(mode, jobs, handles, steps)
                taken += steps
                for handle in handles:
                    if not handle.meets_at_detach:  # others exchange more than the last step's rest here
                        handle.finish()
                sent += device_bytes() - before
                for job, handle in zip(jobs, handles, strict=True):
                    handle.finish()
                    job.tell_epoch(mode)
                dist.all_reduce(torch.zeros(1, device=self.device))  # all ranks begin the next step together
            agreed = [job.digest() for job in jobs]
            peak = torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else None
            # Two jobs at once would count each other's turns. The first seed is counted for all.
            first = seeds[0] == self.training.seeds[0] and not mode.paired
            counted = self.counted(handles[0], cycle_of(mode)) if first else {}
        for job, digest in zip(jobs, agreed, strict=True):
            trained = ModeTrained(
                mode=mode.text,
                seed=job.seed,
                train_loss=[float(loss) for loss in torch.stack(job.losses[: self.training.steps]).cpu()],
                digest=digest,
                sent_bytes=None if mode.paired else sent / self.training.steps,
                device_peak_bytes=peak,
                **job.found,
                **counted,
            )
            job.journal.write(trained)
            job.workload.optimizer.zero_grad(set_to_none=True)
        gc.collect()

    def begin(self, mode: ModeSpec, seed: int) -> None:
        """Build this job's network from a seed."""
        self.seed = seed
        spec = self.run.workloads[self.job].model_copy(update={"seed": seed})
        self.workload = build(spec, self.device, rank=self.rank)
        self.workload.loss = _loss
        self.batches = Batches(self.data, self.workload, self.training, seed, self.rank)
        torch.manual_seed(seed + 7919 * (self.rank + 1))  # dropout: far from the seeds of weights
        self.random = RandomState()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        self.losses: list[Tensor] = []
        self.found: dict[str, list[float]] = {"test_loss": [], "test_accuracy": [], "steps_s": []}
        self.journal.write(PhaseBegan(name=f"{mode.text}, seed {seed}", number=1))

    def tell_epoch(self, mode: ModeSpec) -> None:
        """Evaluate this job's network after an epoch."""
        loss, accuracy = self.tested()
        self.found["test_loss"].append(loss)
        self.found["test_accuracy"].append(accuracy)
        self.journal.write(EpochTrained(mode=mode.text, seed=self.seed, epoch=len(self.found["test_accuracy"])))

    def epoch(self, mode: ModeSpec, jobs: Sequence[Self], handles: Sequence[Handle], steps: int) -> None:
        """Train some steps of every job. The times of each on this rank [s] are in its `found`."""
        stamps: list[list[Any]] = [[job.clock.mark()] for job in jobs]
        marks = [pair.marking(job.clock, own) for job, own in zip(jobs, stamps, strict=True)]
        if len(jobs) == 1:
            self.train(handles[0], steps, f"{mode.text}, seed {self.seed}", marks[0])
        else:
            turns = [
                pair.with_own_random(job, pair.turns_of(job, handle, steps, f"{mode.text}, seed {job.seed}", mark))
                for job, handle, mark in zip(jobs, handles, marks, strict=True)
            ]
            steps_in_turns(turns, range(len(jobs)))
        self.device_idle()
        for job, own in zip(jobs, stamps, strict=True):
            job.clock.flush()
            job.found["steps_s"] += [job.clock.elapsed_s(*each) for each in itertools.pairwise(own)][:steps]
            job.clock.reset()

    def forward_backward(self, handle: Handle) -> None:
        """Run `Rank.forward_backward` on the next batch, with the learning rate of this step."""
        self.batches.next()
        for group in self.workload.optimizer.param_groups:
            group["lr"] = self.training.lr * max(0.0, 1 - len(self.losses) / self.training.steps)
        self.workload.optimizer.zero_grad(set_to_none=True)
        loss = self.workload.forward_loss(handle.model)
        self.losses.append(loss.detach())
        loss.backward()  # type: ignore[no-untyped-call]

    def tested(self) -> tuple[float, float]:
        """Return loss and accuracy of rank 0's model over the test set.

        Other ranks return 0 and wait at their next step.
        """
        if self.rank > 0:
            return 0.0, 0.0
        model, like = self.workload.model, self.workload.inputs
        assert isinstance(like, Tensor)
        training = [module for module in model.modules() if module.training]  # frozen parts may be in evaluation mode
        for module in training:  # not eval(), which a sharded mode would hand on to the modules that it trains
            module.training = False
        total = right = 0.0
        with torch.no_grad():
            for start in range(0, len(self.data.test_labels), TEST_BATCH):
                self.note(f"testing, from image {start + 1} on")
                images = enlarged(self.data.test_images[start : start + TEST_BATCH], like)
                labels = self.data.test_labels[start : start + TEST_BATCH].to(self.device)
                outputs = model(images)
                total += float(_loss(outputs, labels)) * len(labels)
                right += int((outputs[:, :CLASSES].argmax(1) == labels).sum())
        for module in training:
            module.training = True
        return total / len(self.data.test_labels), right / len(self.data.test_labels)

    def digest(self) -> str:
        """Return a digest of all parameters' bits, equal on all ranks that trained one network."""
        made = hashlib.blake2b(digest_size=16)
        for value in self.workload.model.parameters():
            made.update(value.detach().contiguous().cpu().view(-1).view(torch.uint8).numpy().tobytes())
        return made.hexdigest()

    def counted(self, handle: Handle, cycle: int) -> dict[str, Any]:
        """Count the bytes that a cycle of steps keeps for backward and its operations there, with the formula's for
        `spb`."""
        kept: list[int] = []
        flops: list[int] = []
        for step in range(cycle):
            self.note(f"counting, step {step + 1}")
            self.batches.next()
            self.workload.optimizer.zero_grad(set_to_none=True)
            count = activation_bytes if handle.units else kept_bytes  # parameters that a unit gathers are not kept
            loss, nbytes = count(handle.model, lambda: self.workload.forward_loss(handle.model))
            kept.append(nbytes)
            with FlopCounterMode(display=False) as counter:
                loss.backward()  # type: ignore[no-untyped-call]
            flops.append(counter.get_total_flops())
            self.workload.optimizer.step()
        return {
            "activation_bytes": sum(kept) / cycle,
            "activation_peak_bytes": max(kept),
            "backward_flops": sum(flops) / cycle,
            "formula": self.formula(handle.engine, cycle) if isinstance(handle.engine, PartialBackpropEngine) else None,
        }

    def formula(self, engine: PartialBackpropEngine, cycle: int) -> WorkFormula:
        """Return the formula for this rank, from one more forward pass at full depth."""
        self.batches.next()
        now = {parameter: parameter.requires_grad for parameter in engine.parameters.values()}
        for parameter in now:
            parameter.requires_grad_(True)
        work = work_by_band(
            self.workload.model,
            engine.band_of,
            engine.split.levels,
            lambda: self.workload.forward_loss(self.workload.model),
        )
        band_bytes = [0] * engine.split.levels
        for name, parameter in engine.parameters.items():
            band_bytes[engine.band_of[name] - 1] += parameter.nbytes
        for parameter, needed in now.items():
            parameter.requires_grad_(needed)
        steps = [work.up_to(engine.split.level(engine.worker, step)) for step in range(cycle)]
        return WorkFormula(
            sent_bytes=engine.split.sent_bytes(band_bytes)[engine.worker],
            activation_bytes=sum(kept for kept, _ in steps) / cycle,
            backward_flops=sum(flops for _, flops in steps) / cycle,
        )


class Batches:
    """Batches of this rank for one seed's training. Each epoch has a new permutation, whose remainder is left out."""

    def __init__(self, data: Digits, workload: Workload, training: TrainingPlan, seed: int, rank: int) -> None:
        self._data, self._workload, self._training = data, workload, training
        self._seed, self._rank = seed, rank
        self._world = dist.get_world_size()
        self._taken = 0
        assert isinstance(workload.inputs, Tensor)
        self._like = workload.inputs

    def next(self) -> None:
        """Set the workload's inputs and targets to the next batch."""
        epoch, step = divmod(self._taken, self._training.steps_per_epoch)
        self._taken += 1
        generator = torch.Generator().manual_seed(1_000_003 * self._seed + epoch)
        order = torch.randperm(len(self._data.train_labels), generator=generator)
        start = (step * self._world + self._rank) * self._training.batch_size
        mine = order[start : start + self._training.batch_size]
        self._workload.inputs = enlarged(self._data.train_images[mine], self._like)
        self._workload.targets = self._data.train_labels[mine].to(self._like.device)


def _loss(outputs: Any, labels: Any) -> Tensor:
    """Return the cross-entropy over the first ten outputs, because the digits have ten classes."""
    return F.cross_entropy(outputs[:, :CLASSES].float(), labels)


def device_bytes(table: Path = Path("/proc/self/net/dev")) -> int:
    """Return the bytes that the network device of collectives has sent so far; 0 if that is not known."""
    name = os.environ.get("GLOO_SOCKET_IFNAME", "")
    try:
        lines = table.read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        device, colon, counts = line.partition(":")
        if colon and device.strip() == name:
            return int(counts.split()[8])
    return 0


if __name__ == "__main__":
    main(sys.argv[1:], ConvergeProgram, ConvergeRank)
