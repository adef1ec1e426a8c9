"""Check that all ranks have built the same network. Ranks train one network only if they start from one."""

from __future__ import annotations

from xbench.equal_ranks import apart
from xbench.errors import WorkloadError
from xbench.workloads.workload import Workload


def check_alike(workload: Workload) -> None:
    """Raise WorkloadError, on every rank, if the ranks' parameters differ in a bit.

    Collective: every rank of the default process group must call it.
    """
    names = apart(workload.model.named_parameters())
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise WorkloadError(
            f"{workload.spec.title}: the ranks' models start apart, in {names[0]!r}{more}",
            hint="the same seed is set on all ranks before the factory is called, so it must not set one of its own",
        )
