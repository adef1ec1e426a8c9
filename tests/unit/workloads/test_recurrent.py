"""The recurrent networks: published sizes, losses, and which frames an output depends on."""

import pytest
import torch
from torch.nn import functional as F

from xbench.workloads import parse_workload, resolve
from xbench.workloads.build import build
from xbench.workloads.catalog import RECURRENT
from xbench.workloads.text import CHARACTERS, SpeechModel

CPU, META = torch.device("cpu"), torch.device("meta")


@pytest.mark.parametrize(("name", "tensors"), [("lstm-lm", 11), ("deepspeech2", 40)])
def test_sizes(name, tensors):
    """Zaremba's large model is known as the one of 66 million parameters."""
    workload = build(resolve(parse_workload(name), "cpu"), META)
    assert workload.parameters_count == RECURRENT[name].parameters
    assert len(workload.trainable) == tensors
    assert workload.forward_loss().shape == ()


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
