"""ddp-tuned: DDP's own reducer, with the exact plan's buckets.

`bucket_cap_mb_list` gives each of DDP's buckets its own size. DDP closes a bucket when its size reaches the cap, so
suitable caps reproduce the plan (`xbench.planning.plans.bucket_caps_mib`). A user of DDP gets it by changing one line.
Only newer torch versions have the argument.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from xbench.errors import UsageError
from xbench.planning.plans import bucket_caps_mib
from xbench.records import Plan
from xbench.schedules.base import AttachConfig
from xbench.schedules.ddp import Ddp
from xbench.schedules.engine import trainable


def supported() -> bool:
    """True if this torch's DDP takes a size for each bucket."""
    return "bucket_cap_mb_list" in inspect.signature(DistributedDataParallel.__init__).parameters


class DdpTuned(Ddp):
    """DistributedDataParallel(model, bucket_cap_mb_list=...)."""

    needs_plan = True

    def options(self, setup: AttachConfig) -> dict[str, Any]:
        """The caps that reproduce the plan's buckets. Raises UsageError where this torch does not take them."""
        if not supported():
            raise UsageError(
                "this torch's DDP has no bucket_cap_mb_list, which ddp-tuned needs", hint="it came after torch 2.11"
            )
        if setup.buckets is None:
            raise UsageError("ddp-tuned needs a plan", hint="xbench compare --modes ddp-tuned makes one")
        parameters = trainable(setup.model)
        plan = Plan(
            mode="ddp-tuned",
            buckets=[list(names) for names in setup.buckets],
            bucket_bytes=[
                sum(parameters[n].numel() * parameters[n].element_size() for n in names) for names in setup.buckets
            ],
            predicted_step_s=0.0,
            predicted_exposed_s=0.0,
        )
        caps = bucket_caps_mib(plan, {name: str(parameter.dtype) for name, parameter in parameters.items()})
        return {"bucket_cap_mb_list": caps}
