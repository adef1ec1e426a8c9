"""Options of the workloads of a command: their sizes, and the training step (`config`, which says how to add one)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xbench.option_fields import choice, option, whole

if TYPE_CHECKING:
    from xbench.spec import WorkloadSpec


@dataclass(frozen=True, kw_only=True)
class WorkloadOptions:
    """Names of workloads, and the options that apply to all of them."""

    names: str | Sequence[str] = ()
    batch_size: int | None = whole("--batch-size", 1, 1_000_000, help="Samples per rank and step.")
    image_size: int | None = whole("--image-size", 1, 16_384, help="Height and width of images, in pixels.")
    seq_len: int | None = whole("--seq-len", 1, 1_000_000, help="Tokens (text) or frames (speech) per sample.")
    dtype: str = choice("--dtype", "fp32", "bf16", default="fp32", help="Type of weights and gradients.")
    optimizer: str = choice("--optimizer", "sgd", "adamw", default="sgd", help="Optimizer used for the step.")
    optimizer_impl: str = choice(
        "--optimizer-impl", "default", "foreach", "fused", default="default", help="Kernels of the optimizer."
    )
    accumulate: int = whole(
        "--accumulate", 1, 1024, default=1, help="Micro-steps of a step; only the last one communicates."
    )
    amp: str | None = choice(
        "--amp", "bf16", "fp16", help="Type of autocast; fp16 with a GradScaler.  [default: no autocast]"
    )
    checkpoint: str | None = choice(
        "--checkpoint", "blocks", help="Modules whose activations backward computes again.  [default: none]"
    )
    clip: float | None = option(
        "--clip", type=float, metavar="NORM", help="Largest norm of a step's gradients.  [default: not clipped]"
    )
    seed: int = whole("--seed", 0, 2**31 - 1, default=0, help="Random seed for weights and data.")

    def read(self) -> tuple[WorkloadSpec, ...]:
        """Parse the workloads; resnet50 if none is named. Raises SpecError."""
        from xbench.workloads import parse_workload

        names = (self.names,) if isinstance(self.names, str) else self.names or ("resnet50",)
        values = {key: value for key, value in vars(self).items() if key != "names"}
        return tuple(parse_workload(name, **values) for name in names)
