"""`build` makes workloads: shapes, sizes, seeds, dtypes, on CPU and meta; recurrent networks; checkpointed blocks."""

import copy
import random
from collections import UserDict, namedtuple
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from xbench.errors import WorkloadError
from xbench.spec import WorkloadSpec
from xbench.workloads import parse_workload, resolve
from xbench.workloads.batches import tensors_in
from xbench.workloads.build import build, checkpoint_blocks, place
from xbench.workloads.catalog import RECURRENT, TRANSFORMERS
from xbench.workloads.text import CHARACTERS, IGNORED, Block, SpeechModel, Transformer
from xbench.workloads.workload import make_optimizer

CPU, META = torch.device("cpu"), torch.device("meta")
Point = namedtuple("Point", "x y")
SMALL = ["resnet18:batch-size=2,image-size=32", "transformer-tiny", "synthetic:layers=3,bytes=256,compute=2"]


def make(text, *, device=CPU, rank=0, **options):
    return build(resolve(parse_workload(text, **options), "cpu"), device, rank=rank)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("text", SMALL)
def test_a_step_changes_every_trainable_parameter(text, dtype, optimizer):
    workload = make(text, dtype=dtype, optimizer=optimizer)
    before = [parameter.detach().clone() for parameter in workload.trainable]
    loss = workload.forward_loss()
    loss.backward()
    wanted = torch.bfloat16 if dtype == "bf16" else torch.float32
    assert all(parameter.grad is not None and parameter.grad.dtype == wanted for parameter in workload.trainable)
    workload.optimizer.step()
    if dtype == "fp32":  # a weight in bf16 may be too coarse for one step
        moved = [not torch.equal(old, new) for old, new in zip(before, workload.trainable, strict=True)]
        assert all(moved)
    assert workload.model.training
    assert torch.isfinite(loss)


@pytest.mark.parametrize("text", SMALL)
def test_ranks_share_the_model_and_not_the_batch(text):
    first, again, other = make(text), make(text), make(text, rank=1)
    for one, two, three in zip(
        first.model.parameters(), again.model.parameters(), other.model.parameters(), strict=True
    ):
        assert torch.equal(one, two)
        assert torch.equal(one, three)
    assert torch.equal(first.inputs, again.inputs)
    assert torch.equal(first.targets, again.targets)
    assert not torch.equal(first.inputs, other.inputs)
    assert not torch.equal(first.targets, other.targets)
    assert not torch.equal(make(text, seed=1).trainable[0], first.trainable[0])


@pytest.mark.parametrize("text", SMALL)
def test_random_generators_are_left_alone(text):
    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    expected = torch.rand(2).tolist(), np.random.rand(), random.random()
    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    make(text)
    assert (torch.rand(2).tolist(), np.random.rand(), random.random()) == expected


def test_describe_counts_trainable_parameters_once():
    record = make("transformer-tiny", batch_size=3, seq_len=16).describe()
    assert (record.parameters, record.grad_bytes) == (172_288, 4 * 172_288)
    assert (record.batch_size, record.input, record.title) == (3, "16 tokens", "transformer-tiny")
    assert make("transformer-tiny", dtype="bf16").grad_bytes == 2 * 172_288
    assert make("resnet18", device=META).describe().input == "3×128×128 images"


@pytest.mark.parametrize(
    ("name", "tensors", "parameters"),
    [
        ("bert-base", 154, 109_514_298),
        ("bert-large", 298, 335_174_458),
        ("gpt2-small", 148, 124_439_808),
        ("lstm-lm", 11, RECURRENT["lstm-lm"].parameters),
        ("deepspeech2", 40, RECURRENT["deepspeech2"].parameters),
    ],
)
def test_models_of_text_and_speech_have_their_published_size(name, tensors, parameters):
    """The counts of the original checkpoints: BERT with its masked-language-model head, GPT-2 with its tied head.

    Zaremba's large model is known as the one of 66 million parameters.
    """
    workload = make(name, device=META, seq_len=8)
    assert workload.parameters_count == parameters
    assert workload.describe().tensors == tensors
    assert workload.forward_loss().shape == ()
    if name in TRANSFORMERS:
        assert TRANSFORMERS[name].parameters == parameters
        assert workload.model.head.weight is workload.model.tokens.weight


@pytest.mark.parametrize("causal", [True, False])
def test_a_block_is_torchs_encoder_layer(causal):
    facts = TRANSFORMERS["transformer-tiny"]._replace(causal=causal)
    ours = Block(facts).eval()
    theirs = nn.TransformerEncoderLayer(
        facts.width, facts.heads, 4 * facts.width, activation="gelu", batch_first=True, norm_first=causal
    ).eval()
    pairs = {
        "self_attn.in_proj_weight": ours.attention.qkv.weight,
        "self_attn.in_proj_bias": ours.attention.qkv.bias,
        "self_attn.out_proj.weight": ours.attention.project.weight,
        "self_attn.out_proj.bias": ours.attention.project.bias,
        "linear1.weight": ours.expand.weight,
        "linear1.bias": ours.expand.bias,
        "linear2.weight": ours.contract.weight,
        "linear2.bias": ours.contract.bias,
        "norm1.weight": ours.attention_norm.weight,
        "norm1.bias": ours.attention_norm.bias,
        "norm2.weight": ours.mlp_norm.weight,
        "norm2.bias": ours.mlp_norm.bias,
    }
    theirs.load_state_dict({name: tensor.detach() for name, tensor in pairs.items()})
    x = torch.randn(2, 5, facts.width, generator=torch.Generator().manual_seed(0))
    mask = nn.Transformer.generate_square_subsequent_mask(5) if causal else None
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x, src_mask=mask), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("causal", [True, False])
def test_only_a_causal_model_ignores_later_tokens(causal):
    model = Transformer(TRANSFORMERS["transformer-tiny"]._replace(causal=causal)).eval()
    tokens = torch.arange(8).unsqueeze(0)
    changed = tokens.clone()
    changed[0, -1] = 999
    with torch.no_grad():
        same = torch.allclose(model(tokens)[0, :-1], model(changed)[0, :-1], atol=1e-6)
    assert same is causal


def test_gpt_predicts_the_next_token():
    workload = make("transformer-tiny", seq_len=16)
    assert torch.equal(workload.inputs[:, 1:], workload.targets[:, :-1])


@pytest.mark.parametrize(("tokens", "masked"), [(1, 1), (20, 3)])
def test_bert_predicts_exactly_the_masked_tokens(tokens, masked, monkeypatch):
    monkeypatch.setitem(TRANSFORMERS, "bert-base", TRANSFORMERS["transformer-tiny"]._replace(causal=False))
    workload = make("bert-base", batch_size=4, seq_len=tokens)
    chosen = workload.targets != IGNORED
    assert chosen.sum(dim=1).tolist() == [masked] * 4
    assert bool((workload.inputs[chosen] == 999).all())
    assert torch.isfinite(workload.forward_loss())


@pytest.mark.parametrize(
    ("text", "layers", "nbytes"), [("synthetic", 200, 65536), ("synthetic:layers=3,bytes=4", 3, 4)]
)
def test_synthetic_layers_have_exactly_the_bytes_asked_for(text, layers, nbytes):
    workload = make(text, device=META)
    assert [p.numel() * p.element_size() for p in workload.trainable] == [nbytes] * layers


def test_synthetic_gradients_are_along_the_weight_and_depend_on_the_data():
    slopes = []
    for rank in (0, 1):
        workload = make("synthetic:layers=2,bytes=64,width=5,compute=3", rank=rank)
        workload.forward_loss().backward()
        weight = workload.trainable[0]
        slope = weight.grad / (weight.detach() / weight.detach().norm())
        torch.testing.assert_close(slope, slope[0].expand_as(slope))
        slopes.append(float(slope[0]))
    assert slopes[0] != slopes[1]


def test_synthetic_compute_adds_work_and_no_gradient():
    plain, busy = make("synthetic:layers=2,bytes=64"), make("synthetic:layers=2,bytes=64,compute=1")
    assert plain.grad_bytes == busy.grad_bytes == 128
    assert not list(busy.model.buffers())
    assert not busy.model.mixing.requires_grad


def test_a_deep_synthetic_chain_stays_finite():
    workload = make("synthetic:layers=1000,bytes=4,width=4")
    loss = workload.forward_loss()
    loss.backward()
    assert torch.isfinite(loss)
    assert all(torch.isfinite(parameter.grad).all() for parameter in workload.trainable)


def test_meta_allocates_nothing():
    workload = make("vit_h_14:batch-size=512,image-size=518", device=META)
    assert {tensor.device.type for tensor in (*workload.model.parameters(), workload.inputs)} == {"meta"}


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ((2, 3), [2, 3]),
        ([2, 3], [2, 3]),
        ({"b": 3, "a": 2}, [2, 3]),
        (UserDict(b=3, a=2), [2, 3]),
        (2, [2]),
        (Point(2, 3), [Point(2, 3)]),
    ],
)
def test_inputs_reach_the_model_as_documented(inputs, expected):
    class Echo(nn.Module):
        def forward(self, a, b=None):
            return [a] if b is None else [a, b]

    workload = make("synthetic:layers=1")
    workload.inputs = inputs
    assert workload.outputs(Echo()) == expected


def test_place_converts_floating_tensors_in_any_nest():
    nest = {"x": (torch.ones(2), [torch.ones(2, dtype=torch.int64)]), "flag": True}
    placed = place(nest, CPU, torch.bfloat16)
    assert [tensor.dtype for tensor in tensors_in(placed)] == [torch.bfloat16, torch.int64]
    assert placed["flag"] is True
    assert isinstance(placed["x"], tuple)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("kernels", ["default", "foreach", "fused"])
def test_the_optimizer_has_the_kernels_of_the_spec(optimizer, kernels):
    spec = parse_workload("resnet50", optimizer=optimizer, optimizer_impl=kernels)
    made = make_optimizer(spec, nn.Linear(2, 2)).defaults
    assert (bool(made["foreach"]), bool(made["fused"])) == (kernels == "foreach", kernels == "fused")


def test_frozen_parameters_stay_out_of_the_optimizer():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    optimizer = make_optimizer(WorkloadSpec(name="x"), model)
    assert [id(p) for p in optimizer.param_groups[0]["params"]] == [id(p) for p in model[1].parameters()]


def test_an_unresolved_spec_is_a_programming_error():
    with pytest.raises(ValueError, match="not resolved"):
        build(WorkloadSpec(name="resnet18"), CPU)


def test_an_image_that_a_constructor_refuses_is_a_workload_error():
    with pytest.raises(WorkloadError, match="vit_b_16 cannot be built for images of 100 px"):
        build(WorkloadSpec(name="vit_b_16", batch_size=1, image_size=100), META)


@pytest.mark.parametrize("text", ["lstm-lm:batch-size=2,seq-len=3", "deepspeech2:batch-size=2,seq-len=16,dtype=bf16"])
def test_every_parameter_gets_a_gradient(text):
    workload = build(resolve(parse_workload(text), "cpu"), CPU)
    loss = workload.forward_loss()
    loss.backward()
    assert torch.isfinite(loss)
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in workload.trainable)


@pytest.mark.parametrize(("frames", "characters"), [(1, 1), (2, 1), (96, 12), (101, 12)])
def test_ctc_has_a_path_through_any_number_of_frames(frames, characters):
    workload = build(resolve(parse_workload(f"deepspeech2:batch-size=2,seq-len={frames}"), "cpu"), META)
    assert workload.inputs.shape == (2, 161, frames)
    assert workload.targets.shape == (2, characters)
    assert workload.outputs().shape == (2, -(-frames // 2), CHARACTERS)
    assert workload.input_description == f"{frames} frames"
    targets = torch.ones(2, characters, dtype=torch.int64)  # repeated characters need a blank between them
    logits = torch.zeros(2, -(-frames // 2), CHARACTERS)
    assert torch.isfinite(workload.loss(logits, targets))


def test_the_loss_is_ctc():
    workload = build(resolve(parse_workload("deepspeech2:batch-size=2,seq-len=32"), "cpu"), META)
    logits = torch.randn(2, 16, CHARACTERS, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([[1, 2, 3, 4], [28, 28, 1, 1]])
    by_sample = [
        F.ctc_loss(logits[one].log_softmax(-1), targets[one], torch.tensor(16), torch.tensor(4), reduction="sum") / 4
        for one in range(2)
    ]
    torch.testing.assert_close(workload.loss(logits, targets), torch.stack(by_sample).mean())


def test_an_output_depends_on_twenty_later_frames():
    """The convolutions reach 15 input frames ahead, which are 8 of theirs, and the lookahead 20 more of theirs."""
    model = SpeechModel().eval()
    first = torch.randn(1, 161, 100, generator=torch.Generator().manual_seed(0))
    second = first.clone()
    second[:, :, -1] += 5
    with torch.no_grad():
        changed = (model(first) != model(second)).any(dim=-1)[0].tolist()
    assert changed == [False] * 22 + [True] * 28


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow, self.drop = nn.Linear(8, 64), nn.Linear(64, 8), nn.Dropout(0.5)
        self.calls = 0

    def forward(self, x: Tensor, *, times: int = 1) -> Tensor:
        self.calls += 1
        return x + times * self.drop(self.narrow(self.wide(x).relu()))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.blocks = nn.ModuleList([Residual(), Residual()])

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x, times=2)
        return x.square().mean()


def saved_bytes(run: Callable[[], Tensor]) -> tuple[Tensor, int]:
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = run()
    return result, sum(tensor.nbytes for tensor in kept)


def test_gradients_are_the_same_and_fewer_activations_are_kept() -> None:
    torch.manual_seed(0)
    plain, inputs = Network(), torch.randn(16, 8)
    checkpointed = copy.deepcopy(plain)
    checkpoint_blocks(checkpointed, "net")
    assert [type(block).__name__ for block in checkpointed.blocks] == ["Residual", "Residual"]
    assert list(checkpointed.state_dict()) == list(plain.state_dict())
    kept = []
    for model in (plain, checkpointed, copy.deepcopy(checkpointed)):
        torch.manual_seed(1)
        loss, nbytes = saved_bytes(lambda model=model: model(inputs))
        loss.backward()
        kept.append(nbytes)
        for own, other in zip(model.parameters(), plain.parameters(), strict=True):
            assert own.grad is not None
            assert torch.equal(own.grad, other.grad)
    assert kept[1] == kept[2] < kept[0] / 2
    assert [block.calls for block in checkpointed.blocks] == [2, 2]


def test_without_gradients_a_block_runs_once() -> None:
    model = Network()
    checkpoint_blocks(model, "net")
    with torch.no_grad():
        model(torch.randn(2, 8))
    assert [block.calls for block in model.blocks] == [1, 1]


def test_a_model_without_blocks_is_refused() -> None:
    with pytest.raises(WorkloadError, match="net: the model has no blocks to checkpoint"):
        checkpoint_blocks(nn.Linear(2, 2), "net")


def test_a_compiled_model_is_refused() -> None:
    model = Network()
    model.blocks[0].compile()
    with pytest.raises(WorkloadError, match=r"torch\.compile has made one of several"):
        checkpoint_blocks(model, "net")
