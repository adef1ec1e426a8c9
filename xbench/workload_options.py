"""Settings of a training step, each once: an option of every command, and a key of a workload's own text.

`--amp bf16 --clip 1` and `resnet18:amp=bf16,clip=1` say the same. `config.WorkloadOptions` makes options of these
fields, and `workloads.parse` reads the keys with their types. `config` says how to add one.
"""

from __future__ import annotations

from dataclasses import dataclass

from xbench.option_fields import choice, option, whole


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """Sizes of a workload, and its training step."""

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
    amp: str | None = choice("--amp", "bf16", "fp16", help="Type of autocast; fp16 with a GradScaler.")
    checkpoint: str | None = choice("--checkpoint", "blocks", help="Modules whose activations backward computes again.")
    clip: float | None = option("--clip", type=float, metavar="NORM", help="Largest norm of a step's gradients.")
    seed: int = whole("--seed", 0, 2**31 - 1, default=0, help="Random seed for weights and data.")
