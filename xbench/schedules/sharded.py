"""Torch's FSDP2 (`fully_shard`) and the DDP that torch builds on it, as their users run them, and with planned units.

Zhao et al., PyTorch FSDP (VLDB 2023, arXiv 2304.11277); Rajbhandari et al., ZeRO (SC 2020, arXiv 1910.02054), stage 3.
docs/schedules.md says what each mode sends. A unit's parameters are all-gathered before its forward pass, freed after
it, and gathered again before its backward pass. Those of the root stay between the two passes. `fully_shard` takes the
blocks of a planned unit (`planning.unit_plan`) as a list.

**Steps.** The optimizer is the user's own object, with the sharded parameters in its groups, as if it had been made
after `fully_shard`. While the schedule is attached, the user's model has no values (`schedules.shard_pair`).
`Handle.finish` puts the whole parameters, gradients and state back into it, and the next forward pass takes them from
there. Detaching does the same.

**Gloo.** Some versions of torch sum where ReduceOp.AVG is asked for (pytorch issue 162338), and others divide the whole
buffer after it, not this rank's part. So torch sums and divides in every unit, over any backend but NCCL.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import Module
from torch.optim import Optimizer

from xbench.errors import AlikeError, UsageError
from xbench.model_blocks import blocks_of
from xbench.planning.sharded_step import shard_ranks
from xbench.planning.unit_plan import merged
from xbench.schedules import shard_pair
from xbench.schedules.base import AttachConfig, Handle, Schedule, guard_copies
from xbench.schedules.checks import _REGISTRATIONS as REGISTRATIONS
from xbench.schedules.checks import refuse_joint_updates, refuse_wrapped
from xbench.schedules.early_update import group_of
from xbench.schedules.engine import Watch
from xbench.schedules.groups import backend_of, is_emulated
from xbench.schedules.hooks import has_step_hooks
from xbench.schedules.served_parameters import refuse_ignored
from xbench.schedules.torch_calls import SHARDED, watch_calls
from xbench.schedules.twin import follow, replaced, twin_of, units_of
from xbench.torch_compile import plain_name

_MESHES: dict[tuple[str, int], tuple[dist.ProcessGroup, DeviceMesh]] = {}
"""Meshes of two dimensions by device type and size of a group, each with the default group at its creation."""

Wrap = Callable[[Any], object]


def shard_ranks_here(text: str, options: Mapping[str, str]) -> int:
    """The ranks of a group of the mode `text` among the ranks of this job (`shard_ranks`)."""
    size = dist.get_world_size()
    return shard_ranks(text, options, size, int(os.environ.get("LOCAL_WORLD_SIZE", size)))


def mesh_of_groups(device: str, ranks: int) -> DeviceMesh:
    """All ranks: copies ('replicate') by ranks of a copy ('shard'). Made once, because its process groups stay."""
    world = dist.group.WORLD
    assert world is not None
    known = _MESHES.get((device, ranks))
    if known is None or known[0] is not world:
        shape = (dist.get_world_size() // ranks, ranks)
        known = world, init_device_mesh(device, shape, mesh_dim_names=("replicate", "shard"))
        _MESHES[device, ranks] = known
    return known[1]


def groups_here(device: str, ranks: int) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """This rank's group of so many ranks, which have a copy together, and the ranks that have its part of each copy."""
    mesh = mesh_of_groups(device, ranks)
    return mesh.get_group("shard"), mesh.get_group("replicate")


class ShardedHandle(Handle):
    """A twin of the model whose parameters are DTensors, and the optimizer that updates them."""

    meets_at_detach = True
    waits_in_backward = True

    def __init__(self, setup: AttachConfig, twin: Module, units: Mapping[str, list[str]]) -> None:
        super().__init__(twin)
        self._plain = setup.model
        self._units = dict(units)
        assert setup.optimizer is not None
        self._optimizer = setup.optimizer
        self._pairs = shard_pair.pairs_of(setup.model, twin)
        self._wrapped = [module for module in twin.modules() if isinstance(module, FSDPModule)]
        self._registered = REGISTRATIONS.counted()
        self._in_shards = False
        self._to_shards()
        self._follow(twin)

    def _follow(self, twin: Module) -> None:
        """Take over before the twin computes, and refuse uses of the form that has no values."""
        before_forward, to_shards = map(torch.compiler.disable, (self._before_forward, self._to_shards))
        twin.register_forward_pre_hook(before_forward, prepend=True)
        for module in twin.modules():
            module.register_load_state_dict_pre_hook(self._refuse_whole)  # type: ignore[no-untyped-call]
            if isinstance(module, FSDPModule) and module is not twin and module._compiled_call_impl is None:
                # A loop may call a part of the model alone.
                module.register_forward_pre_hook(to_shards, prepend=True)
        self.at_detach(self._optimizer.register_step_pre_hook(self._reshard).remove)
        self.at_detach(follow(self._plain, twin, lambda: self._in_shards, self._clear_gradients))
        for pair in self._pairs:
            if pair.shard.requires_grad:
                self.at_detach(pair.refuse_passes().remove)
        self.at_detach(guard_copies(self._optimizer, self._refuse_in_shards))
        self.at_detach(self._optimizer.register_state_dict_post_hook(self._mark_shards).remove)
        self.at_detach(self._optimizer.register_load_state_dict_pre_hook(self._check_form).remove)

        def zero_grad(optimizer: Optimizer, set_to_none: bool = True) -> None:
            type(optimizer).zero_grad(optimizer, set_to_none)
            self._clear_gradients((p for group in optimizer.param_groups for p in group["params"]), set_to_none)

        self.at_detach(replaced(self._optimizer, "zero_grad", MethodType(zero_grad, self._optimizer)))

    @property
    def units(self) -> dict[str, list[str]]:
        """See `Handle.units`."""
        return dict(self._units)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """See `Handle.no_sync`."""
        twin: Any = self.model
        twin.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            twin.set_requires_gradient_sync(True)

    def watch(self, watch: Watch) -> bool:
        """See `Handle.watch`. Only the host's waits are seen, so nothing is watched on a GPU, whose streams wait."""
        if next(self._plain.parameters()).device.type != "cpu":
            return False
        self.at_detach(watch_calls(watch, SHARDED))
        return True

    def finish(self) -> None:
        """See `Handle.finish`: parameters, gradients and optimizer state are whole again. Collective."""
        if not self._in_shards:
            return
        self._reshard()
        with torch.inference_mode(False), torch.no_grad():
            for pair in self._pairs:
                pair.to_whole()
            self._hand_over(
                {pair.shard: pair.whole for pair in self._pairs}, lambda value, _: shard_pair.whole_of(value)
            )
        self._in_shards = False

    def _reshard(self, *_: Any) -> None:
        """Free gathered parameters: a forward pass without a backward pass leaves some, which miss the next update."""
        for module in self._wrapped:
            module.reshard()

    def _before_forward(self, *_: Any) -> None:
        """Take over what was changed on the plain model. Raises AlikeError for changes that only one tree has."""
        if self._registered != REGISTRATIONS.number:
            self._check_trees()
        for pair in self._pairs:
            pair.check()
        self._to_shards()
        if torch.is_inference_mode_enabled() and self._pairs[0].forms[2] is None:
            with torch.inference_mode(False):  # where torch makes its tensors, which training uses, too
                for module in self._wrapped:
                    module.unshard()
                    module.reshard()

    def _check_trees(self) -> None:
        """Raise AlikeError if the model or its twin has other parameters than when the schedule was attached."""
        forms = {id(form) for pair in self._pairs for form in pair.forms}
        for model in (self._plain, self.model):
            here = dict(model.named_parameters())
            strange = [name for name, parameter in here.items() if id(parameter) not in forms]
            if strange or len(here) != len(self._pairs):
                what = (
                    f"parameter {plain_name(strange[0])!r} was added or replaced"
                    if strange
                    else "a parameter was removed"
                )
                raise AlikeError(
                    f"{what} after the schedule was attached, and only one of model and handle.model has the change",
                    hint="detach the schedule, change the model on all ranks, and attach it again",
                )
        self._registered = REGISTRATIONS.number

    def _to_shards(self, *_: Any) -> None:
        """Move the whole parameters' values, gradients and state into this rank's shards. No rank waits.

        Raises AlikeError if gradients would be lost, and for changes of the plain model that the twin does not have.
        Raises UsageError after `detach`.
        """
        if self._in_shards:
            return
        if self.model is self._plain:
            raise UsageError(
                "the model that a schedule trained is used after the schedule was detached", hint="use the plain model"
            )
        self._check_trees()
        for pair in self._pairs:
            pair.check()
            pair.refuse_lost_gradient()
        with torch.inference_mode(False), torch.no_grad():
            for pair in self._pairs:
                pair.to_shard()
            self._hand_over({pair.whole: pair.shard for pair in self._pairs}, shard_pair.part_of)
            for pair in self._pairs:
                pair.free()
            for pair in self._pairs:
                pair.spoil_views()
        self._in_shards = True

    def _hand_over(self, to: Mapping[Any, Any], change: Callable[[Tensor, Any], Tensor]) -> None:
        """Replace the optimizer's parameters, and move their state; `change(tensor, parameter)` converts a tensor."""
        for group in self._optimizer.param_groups:
            group["params"] = [to.get(parameter, parameter) for parameter in group["params"]]
        state = self._optimizer.state
        for old, new in to.items():
            if old in state:
                state[new] = {
                    key: change(value, new) if torch.is_tensor(value) and value.shape == old.shape else value
                    for key, value in state.pop(old).items()
                }

    def _clear_gradients(self, parameters: Iterable[Any], set_to_none: bool) -> None:
        """Clear the gradients of these parameters in every form."""
        ids = set(map(id, parameters))
        for pair in self._pairs:
            if not ids.isdisjoint(map(id, pair.forms)):
                pair.zero_grad(set_to_none)

    def _refuse_in_shards(self) -> None:
        if self._in_shards:
            shard_pair.ShardOfState.refuse()

    def _mark_shards(self, _: Optimizer, saved: dict[str, Any]) -> None:
        """Let shards in a state dict of the optimizer refuse to be pickled."""
        for key, state in saved["state"].items() if self._in_shards else ():
            saved["state"][key] = {
                name: shard_pair.ShardOfState.of(value) if isinstance(value, DTensor) else value
                for name, value in state.items()
            }

    def _check_form(self, _: Optimizer, saved: dict[str, Any]) -> None:
        """Refuse whole state for parameters in shards, and shards of state for whole parameters."""
        values = (value for state in saved["state"].values() for value in state.values())
        if any(torch.is_tensor(one) and one.dim() and isinstance(one, DTensor) != self._in_shards for one in values):
            raise UsageError(
                "the optimizer's state is loaded whole, and its parameters are in shards"
                if self._in_shards
                else "shards of the optimizer's state are loaded, and its parameters are whole",
                hint="load whole state after handle.finish() on all ranks, and shards through set_state_dict of "
                "torch.distributed.checkpoint with handle.model",
            )

    def _refuse_whole(self, *_: Any) -> None:
        if not self._in_shards:
            shard_pair.ShardOfWhole.refuse()

    def detach(self) -> None:
        """See `Handle.detach`. The twin is dropped."""
        if self.model is self._plain:
            return
        try:
            super().detach()
        finally:
            self.model, self._pairs = self._plain, []


class Fsdp(Schedule):
    """fully_shard on each block, and then on the root."""

    name = "fsdp"

    def wrapper(self, setup: AttachConfig, device: str) -> Wrap:
        """The function that wraps one unit: a module, or a list of modules."""
        mesh = self.mesh(setup, device)
        return lambda module: fully_shard(module, mesh=mesh)

    def divided(self, setup: AttachConfig, blocks: Iterable[str]) -> list[list[str]]:
        """The paths of the blocks of each unit; blocks that are not planned are units by themselves."""
        planned = [list(unit) for unit in setup.units or ()]
        return [*planned, *([path] for path in blocks if not any(path in unit for unit in planned))]

    def prepared(self, block: Module) -> None:
        """Called with each block before it is wrapped."""

    def mesh(self, setup: AttachConfig, device: str) -> DeviceMesh:
        """The ranks, in one dimension.

        It has the group's name. torch takes meshes of the same ranks and names for the same one, and would send over
        the group of the first that it has seen.
        """
        group: Any = setup.group if setup.group is not None else dist.group.WORLD
        return DeviceMesh.from_group(group, device, mesh_dim_names=(group.group_name,))

    def attach(self, setup: AttachConfig) -> Handle:
        """See `Schedule.attach`; every rank must call it together. Forward must go through `handle.model`."""
        device = self.check(setup)
        units = units_of(setup.model)
        divided = self.divided(setup, blocks_of(setup.model))
        wrap = self.wrapper(setup, device)
        twin = twin_of(setup.model)
        blocks = blocks_of(twin)
        try:
            for paths in divided:
                unit = [blocks[path] for path in paths]
                for block in unit:
                    self.prepared(block)
                wrap(unit[0] if len(unit) == 1 else unit)
            wrap(twin)
        except (AssertionError, NotImplementedError, ValueError) as error:  # torch refuses the model so
            said = " ".join(str(error).split())[:300]
            raise UsageError(f"fully_shard refuses this model: {said}") from None
        if "nccl" not in backend_of(setup.group, torch.device(device)):
            for module in twin.modules():
                if isinstance(module, FSDPModule):
                    module.set_force_sum_reduction_for_comms(True)  # of this unit alone
        return ShardedHandle(setup, twin, merged(units, divided))

    def check(self, setup: AttachConfig) -> str:
        """The type of the model's device. Raises UsageError, on every rank alike, for what `fully_shard` cannot do."""
        if not dist.is_initialized():
            raise UsageError(f"{self.name} needs an initialised process group", hint="start the script with torchrun")
        if is_emulated(setup.group):
            raise UsageError(f"{self.name} sends over real links, and these are emulated")
        if setup.compress is not None:
            raise UsageError(f"{self.name} sends parameters and gradients as they are, and not as {setup.compress}")
        if setup.unused_parameters:
            raise UsageError(
                f"{self.name} waits for ever if ranks use different parameters, and some parameters got no gradient"
            )
        refuse_wrapped(setup.model)
        refuse_ignored(setup.model, self.name)
        if setup.optimizer is None:
            raise UsageError(f"{self.name} hands its shards to the optimizer, and none was given")
        if not isinstance(setup.optimizer, Optimizer) or not has_step_hooks(setup.optimizer):
            raise UsageError(f"{self.name} gives its shards to a torch optimizer, and this one is of another kind")
        refuse_joint_updates(setup.optimizer, self.name)
        held = group_of(setup.optimizer)
        for name, parameter in setup.model.named_parameters():
            if shard_pair.has_hooks(parameter):
                raise UsageError(
                    f"parameter {plain_name(name)!r} has a hook on its gradient, which {self.name} does not call: it "
                    "computes gradients of parameters of its own",
                    hint="change gradients after loss.backward(), on the parameters of handle.model",
                )
            if parameter.requires_grad and id(parameter) not in held:
                raise UsageError(
                    f"{self.name} hands its shards to the optimizer, which does not have {plain_name(name)!r}",
                    hint="give it one optimizer with all trainable parameters",
                )
        device = next(setup.model.parameters()).device
        if device.type == "cuda" and device.index != torch.cuda.current_device():
            raise UsageError(
                f"{self.name} puts shards on the current GPU, which is another than the model's {device}",
                hint=f"torch.cuda.set_device({device.index}) before attach",
            )
        return device.type


class PlannedUnits(Fsdp):
    """The same, with the units of a plan."""

    name = "auto:shard"

    def divided(self, setup: AttachConfig, blocks: Iterable[str]) -> list[list[str]]:
        """See `Fsdp.divided`. Raises UsageError without a plan."""
        if setup.units is None:
            raise UsageError(
                f"{self.name} wraps units that a comparison plans from its profile, and here are none",
                hint="xbench compare WORKLOAD --modes ddp,fsdp,auto:shard shows the lines that wrap them",
            )
        return super().divided(setup, blocks)


class Hsdp(Fsdp):
    """The same on a mesh of two dimensions: copies of the parameters, and ranks that divide one copy."""

    name = "hsdp"

    def mesh(self, setup: AttachConfig, device: str) -> DeviceMesh:
        """See `mesh_of_groups`. Raises UsageError for a process group of the user's."""
        if setup.group not in (None, dist.group.WORLD):
            raise UsageError(f"{self.name} makes groups of its own among all ranks, and takes no process_group")
        return mesh_of_groups(device, shard_ranks_here(self.name, setup.options))


class Replicate(Fsdp):
    """The DDP on FSDP2: every rank keeps everything."""

    name = "replicate"

    def wrapper(self, setup: AttachConfig, device: str) -> Wrap:
        """See `Fsdp.wrapper`. Raises UsageError where this torch has no such function."""
        try:
            from torch.distributed._composable.replicate_with_fsdp import replicate
        except ImportError:
            raise UsageError("this torch has no torch.distributed._composable.replicate_with_fsdp") from None
        mesh = self.mesh(setup, device)
        wrap: Any = replicate
        return lambda module: wrap(module, mesh=mesh)
