import json

import pytest
import torch
from profiler_fakes import FakeClock, Layer, Pause, Workload
from torch import nn
from torch.utils.checkpoint import checkpoint

from xbench.errors import WorkloadError
from xbench.profilers.layers import ROOT_NAME, LayerProfiler, profile_step


@pytest.fixture
def clock():
    return FakeClock()


def one_step(model, clock, **costs):
    """The only step of a profile without warm-up: layer name → forward_s, tensor name → ready_s, and the profile."""
    profile = profile_step(Workload(model, clock, **costs), clock, steps=1, warmup=0)
    times = profile.layer_times[0]
    forward_s = {layer.name: times.forward_s[index] for index, layer in enumerate(profile.layers)}
    ready_s = {tensor.name: times.ready_s[index] for index, tensor in enumerate(profile.tensors)}
    return forward_s, ready_s, profile


def test_every_moment_of_a_step_belongs_to_one_layer(clock):
    model = nn.Sequential(Pause(clock, 0.5), Layer(clock, 1, 16), Pause(clock, 2), Layer(clock, 4, 32), Pause(clock, 8))
    forward_s, ready_s, profile = one_step(model, clock, loss_s=0.25, zero_s=0.125, step_s=64)
    assert forward_s == {"1": 0.5 + 1 + 2, "3": 4 + 8 + 0.25}
    assert ready_s == {"3.weight": 32, "1.weight": 48}
    assert profile.forward_s == [sum(forward_s.values())]
    assert profile.input_s == [0.5]
    assert profile.backward_s == [48]
    assert profile.optimizer_s == [64.125]
    assert profile.step_s == [15.75 + 48 + 64.125]
    assert profile.uninstrumented_step_s == profile.step_s


def test_of_several_micro_steps_the_last_one_is_timed_layer_by_layer(clock):
    model = nn.Sequential(Layer(clock, 1, 16), Layer(clock, 4, 32))
    workload = Workload(model, clock, loss_s=2, zero_s=0.5, step_s=64, load_s=8)
    workload.micro_steps = 3
    profile = profile_step(workload, clock, steps=1, warmup=0)
    times = profile.layer_times[0]
    assert times.forward_s == [1, 4 + 2]
    assert times.ready_s == [48, 32]
    assert (profile.load_s, profile.accumulate_s) == ([3 * 8], [2 * (7 + 48)])  # each waits for a batch
    assert (profile.forward_s, profile.backward_s, profile.optimizer_s) == ([7], [48], [64.5])
    assert profile.step_s == profile.uninstrumented_step_s == [3 * (8 + 7 + 48) + 64.5]


def test_the_wait_for_a_batch_is_a_part_of_its_own(clock):
    model = nn.Sequential(Pause(clock, 0.5), Layer(clock, 1, 16), Layer(clock, 4, 32))
    forward_s, _, profile = one_step(model, clock, zero_s=0.125, step_s=64, load_s=8)
    assert (forward_s, profile.input_s) == ({"1": 1.5, "2": 4}, [0.5])
    assert (profile.load_s, profile.forward_s, profile.backward_s, profile.optimizer_s) == ([8], [5.5], [48], [64.125])
    assert profile.step_s == profile.uninstrumented_step_s == [8 + 5.5 + 48 + 64.125]
    assert profile.raw()["steps"]["load_s"] == [8]


@pytest.mark.parametrize(("load_s", "ahead"), [(8, True), (0, False)])
def test_without_a_loader_or_of_one_that_works_ahead_there_are_no_waits_to_keep(clock, load_s, ahead):
    workload = Workload(nn.Sequential(Layer(clock, 1, 16)), clock, load_s=load_s)
    workload.loads_ahead = ahead
    raw = profile_step(workload, clock, steps=1, warmup=0).raw()
    assert (raw["loads_ahead"], "load_s" in raw["steps"]) == (ahead, False)


@pytest.mark.parametrize("load_s", [0, 8])
@pytest.mark.parametrize("micro_steps", [1, 3])
def test_all_marks_after_the_first_step_were_reserved(clock, micro_steps, load_s):
    workload = Workload(nn.Sequential(Layer(clock, 2, 16), Layer(clock, 5, 32)), clock, load_s=load_s)
    workload.micro_steps = micro_steps
    profile_step(workload, clock, steps=3, warmup=1)
    reserved, before = clock.reserved
    assert len(clock._times_s) - before <= reserved


def test_a_module_that_is_called_twice_sums_up(clock):
    shared = Layer(clock, 1, 4)
    forward_s, ready_s, _ = one_step(nn.Sequential(shared, Layer(clock, 2, 8), shared), clock, loss_s=0.5)
    assert forward_s == {"0": 1 + 1 + 0.5, "1": 2}
    # Ready is when the gradient of the last use in backward has been added: after all of 4, 8 and 4.
    assert ready_s == {"1.weight": 12, "0.weight": 16}


def test_a_tied_parameter_belongs_to_the_first_owner(clock):
    first = Layer(clock, 1, 4)
    tied = Layer(clock, 16, 32, weight=first.weight)
    forward_s, ready_s, profile = one_step(nn.Sequential(first, Layer(clock, 2, 8), tied), clock)
    assert [layer.name for layer in profile.layers] == ["0", "1"]
    assert forward_s == {"0": 1 + 16, "1": 2}
    assert ready_s == {"1.weight": 40, "0.weight": 44}


def test_a_layer_with_a_tied_and_an_own_parameter_keeps_its_own(clock):
    first, second = Layer(clock, 1, 4), Layer(clock, 2, 8)
    second.weight = first.weight
    second.bias = nn.Parameter(torch.zeros(1))
    profiler = LayerProfiler(nn.Sequential(first, second), clock)
    assert [layer.name for layer in profiler.layers] == ["0", "1"]
    assert [tensor.name for tensor in profiler.tensors] == ["0.weight", "1.bias"]


def test_names_and_bytes_are_those_of_named_parameters():
    model = nn.Sequential(nn.Linear(2, 2), nn.MultiheadAttention(4, 2), nn.BatchNorm1d(2).to(torch.bfloat16))
    model.register_parameter("scale", nn.Parameter(torch.ones(1)))
    profiler = LayerProfiler(model, FakeClock())
    assert [tensor.name for tensor in profiler.tensors] == [name for name, _ in model.named_parameters()]
    assert (profiler.layers[0].name, profiler.layers[0].kind) == (ROOT_NAME, "Sequential")
    last = profiler.tensors[-1]
    assert (last.dtype, last.elements, last.nbytes) == ("bfloat16", 2, 4)


def test_frozen_layers_are_named_and_their_forward_goes_to_the_layer_before(clock):
    model = nn.Sequential(Layer(clock, 1, 16), Layer(clock, 2, 32), Layer(clock, 4, 64))
    model[1].weight.requires_grad_(False)
    forward_s, ready_s, profile = one_step(model, clock)
    assert profile.frozen == ["1.weight"]
    assert forward_s == {"0": 3, "2": 4}
    assert ready_s == {"2.weight": 64, "0.weight": 64 + 32 + 16}


class Around(nn.Module):
    """A module whose forward is `run` of a layer and the input."""

    def __init__(self, inner, run):
        super().__init__()
        self.inner, self.run = inner, run

    def forward(self, x):
        return self.run(self.inner, x)


def test_unused_layers_have_no_gradient_and_their_forward_goes_to_the_layer_before(clock):
    model = nn.Sequential(
        Layer(clock, 1, 8), Around(Layer(clock, 2, 16), lambda inner, x: (inner(x), x)[1]), Layer(clock, 4, 32)
    )
    model[0].never = nn.Linear(1, 1)
    forward_s, ready_s, profile = one_step(model, clock)
    assert ready_s == {
        "0.weight": 40,
        "0.never.weight": None,
        "0.never.bias": None,
        "1.inner.weight": None,
        "2.weight": 32,
    }
    assert forward_s == {"0": 3, "0.never": 0, "1.inner": 0, "2": 4}
    assert sum(forward_s.values()) == profile.forward_s[0]


def test_a_function_that_returns_none_gives_no_gradient():
    class Ignore(torch.autograd.Function):
        @staticmethod
        def forward(context, x, ignored):
            return x * 1

        @staticmethod
        def backward(context, gradient):
            return gradient, None

    clock = FakeClock()

    layer = Layer(clock, 1, 8)
    layer.ignored = nn.Parameter(torch.ones(1))
    _, ready_s, _ = one_step(Around(layer, lambda inner, x: Ignore.apply(inner(x), inner.ignored)), clock)
    assert ready_s["inner.ignored"] is None
    assert ready_s["inner.weight"] is not None


def test_parameters_of_the_model_itself_start_with_it(clock):

    class Root(Layer):
        def __init__(self):
            super().__init__(clock, 1, 8)
            self.inner = Layer(clock, 2, 16)

        def forward(self, x):
            return self.inner(super().forward(x))

    forward_s, ready_s, _ = one_step(Root(), clock)
    assert forward_s == {ROOT_NAME: 1, "inner": 2}
    assert ready_s == {"inner.weight": 16, "weight": 24}


def attend(attention, x):
    """Self-attention reads the weight of `out_proj` and never calls it."""
    x = x.expand(3, 4)
    return attention(x, x, x)[0]


def test_a_layer_that_is_used_without_being_called_has_a_gradient_and_no_forward(clock):
    forward_s, ready_s, _ = one_step(Around(nn.MultiheadAttention(4, 2), attend), clock, loss_s=2)
    assert forward_s == {"inner": 2, "inner.out_proj": 0}
    assert None not in ready_s.values()


def checkpointed(inner, x):
    """Runs the inner module's forward once more during backward."""
    return checkpoint(inner, x.requires_grad_(), use_reentrant=False)


def test_forward_calls_during_backward_belong_to_backward(clock):
    model = nn.Sequential(Around(Layer(clock, 1, 8), checkpointed), Layer(clock, 2, 16))
    forward_s, ready_s, profile = one_step(model, clock)
    assert forward_s == {"0.inner": 1, "1": 2}
    assert ready_s == {"1.weight": 16, "0.inner.weight": 16 + 1 + 8}
    assert profile.forward_s == [3]


def test_a_model_without_trainable_parameters_is_refused():
    with pytest.raises(WorkloadError, match="no trainable parameter"):
        LayerProfiler(nn.ReLU(), FakeClock())


def test_hooks_are_gone_afterwards_even_when_the_step_raises(clock):
    model = nn.Sequential(Layer(clock, 1, 1))
    profiler = LayerProfiler(model, clock)
    with profiler:
        assert model[0]._forward_pre_hooks
        assert model[0].weight._post_accumulate_grad_hooks
    workload = Workload(model, clock)
    workload.forward_loss = lambda: model(torch.ones(2))  # not a scalar: backward raises
    with pytest.raises(RuntimeError), profiler:
        profiler.run_step(workload)
    assert not model[0]._forward_pre_hooks
    assert not model[0].weight._post_accumulate_grad_hooks


class Recorder(Workload):
    """Writes down, a step, whether hooks were there."""

    def __init__(self, model, clock):
        super().__init__(model, clock)
        self.order = ""

    def forward_loss(self):
        hooks = bool(self.model[0]._forward_pre_hooks), bool(self.model[0].weight._post_accumulate_grad_hooks)
        assert hooks in ((True, True), (False, False))
        self.order += "A" if hooks[0] else "B"
        return super().forward_loss()


def test_instrumented_and_bare_steps_alternate_in_balanced_order(clock):
    workload = Recorder(nn.Sequential(Layer(clock, 1, 1)), clock)
    notes = []
    profile = profile_step(workload, clock, steps=3, warmup=1, note=notes.append)
    assert workload.order == "ABBAABBA"
    assert notes == [f"profile step {i} of 4" for i in (1, 2, 3, 4)]
    assert profile.warmup == 1
    assert len(profile.step_s) == len(profile.uninstrumented_step_s) == 4
    assert (clock.flushes, clock.resets) == (1, 1)


def test_drift_slants_neighbouring_pairs_in_alternating_directions(clock):
    workload = Workload(nn.Sequential(Layer(clock, 1, 0)), clock)
    forward_loss = workload.forward_loss

    def slower_and_slower():
        clock.advance(workload.steps)
        return forward_loss()

    workload.forward_loss = slower_and_slower
    profile = profile_step(workload, clock, steps=4, warmup=0)
    differences = [a - b for a, b in zip(profile.step_s, profile.uninstrumented_step_s, strict=True)]
    assert differences == [-1, 1, -1, 1]


def test_what_the_marks_cost_shows_in_the_instrumented_step_alone():
    clock = FakeClock(mark_s=0.5)
    workload = Workload(nn.Sequential(Layer(clock, 1, 2), Layer(clock, 4, 8)), clock)
    profile = profile_step(workload, clock, steps=1, warmup=0)
    # The bare step holds its last mark; the instrumented one three more of its own and four of hooks.
    assert profile.uninstrumented_step_s == [15.5]
    assert profile.step_s == [15.5 + 7 * 0.5]


def test_raw_is_json_and_keeps_every_step(clock):
    model = nn.Sequential(Layer(clock, 1, 8), Layer(clock, 2, 16))
    raw = profile_step(Workload(model, clock, step_s=4), clock, steps=2, warmup=1).raw()
    assert json.loads(json.dumps(raw)) == raw
    assert raw["warmup"] == 1
    assert raw["steps"] == {
        "input_s": [0, 0, 0],
        "forward_s": [3, 3, 3],
        "backward_s": [24, 24, 24],
        "optimizer_s": [4, 4, 4],
        "step_s": [31, 31, 31],
        "uninstrumented_step_s": [31, 31, 31],
    }
    assert raw["layers"][0] == {
        "name": "0",
        "kind": "Layer",
        "forward_s": [1, 1, 1],
        "tensors": [{"name": "0.weight", "elements": 1, "bytes": 4, "dtype": "float32", "ready_s": [24, 24, 24]}],
    }


@pytest.mark.parametrize(("steps", "warmup"), [(0, 2), (1, -1)])
def test_no_steps_are_refused(clock, steps, warmup):
    with pytest.raises(ValueError, match="cannot be profiled"):
        profile_step(Workload(nn.Sequential(Layer(clock, 1, 1)), clock), clock, steps=steps, warmup=warmup)
