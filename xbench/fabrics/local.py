"""All ranks on this machine, over its loopback device, without a rate limit and without root.

On a CPU this shows how schedules behave on a link as fast as memory, which is rarely the question. With several GPUs it
is the real thing: NCCL over NVLink or PCIe. Ranks on CPUs are pinned to their own cores. With GPUs each rank takes the
GPU of its LOCAL_RANK and binds itself to the cores next to it (`rank.gpu`).
"""

from __future__ import annotations

from xbench.fabrics.fabric import MAX_RANKS, Fabric, this_machine
from xbench.spec import DeviceType, FabricSpec, known_options, parse_int


class LocalFabric(Fabric):
    """One host with `spec.ranks` ranks."""

    def __init__(self, spec: FabricSpec, run_id: str, device: DeviceType = "cpu") -> None:
        super().__init__(spec, run_id, device)
        self.hosts = [this_machine(cores) for cores in self._cores_by_host()]

    @classmethod
    def parse(cls, text: str, options: dict[str, str]) -> FabricSpec:
        """`local` (2 ranks) or `local:ranks=4`. Raises SpecError."""
        known_options(text, options, ("ranks",))
        return FabricSpec(name="local", ranks=parse_int(text, "ranks", options.get("ranks", "2"), 1, MAX_RANKS))
