"""Variables of NCCL that a rank sets before it joins the process group, unless its environment has them.

NCCL reads them at its first use. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import MutableMapping

ONE_ORDER = ("NCCL_LAUNCH_ORDER_IMPLICIT", "1")
"""Variable of NCCL 2.26 and newer, and its value. Collectives of two communicators then run in the order in which the
host launched them. That order is the same on all ranks, so two communicators never wait for each other."""


def keep_order_of_launches(environ: MutableMapping[str, str]) -> str | None:
    """Let NCCL run collectives in the order of their launches. Returns a remark for the record, or None."""
    name, value = ONE_ORDER
    if environ.setdefault(name, value) != value:
        return None
    return (
        f"{name}={value} holds for every mode of this run, because one of them uses several communicators at once; "
        "a launch may take longer with it"
    )
