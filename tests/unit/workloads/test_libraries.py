"""Models of torchvision, timm and transformers: names, parameters, sizes, and that nothing is downloaded."""

import re
import socket
import subprocess
import sys

import pytest
import torch
import torchvision.models

from xbench.errors import SpecError, WorkloadError
from xbench.spec import WorkloadSpec
from xbench.workloads import libraries, parse_workload, resolve
from xbench.workloads.build import build
from xbench.workloads.catalog import TORCHVISION_MODELS, installed_models
from xbench.workloads.libraries import HF_MODELS, library_models

CPU, META = torch.device("cpu"), torch.device("meta")
TIMM = ["inception_v4", "vit_tiny_patch16_224", "efficientnet_b0", "levit_128s", "test_resnet"]
HF = ["bert", "gpt2", "resnet", "t5"]
"""One model for each head; bert's has a tied bias."""


@pytest.fixture
def timm():
    return pytest.importorskip("timm", reason="the extra timm is not installed")


@pytest.fixture
def transformers(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return pytest.importorskip("transformers", reason="the extra hf is not installed")


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*arguments):
        raise AssertionError(f"something connects to {arguments[1:]}")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def test_timm_s_names_are_those_of_its_registry(timm):
    assert library_models("timm") == [f"timm/{name}" for name in sorted(timm.list_models())]


@pytest.mark.parametrize("name", TIMM)
def test_a_model_of_timm_has_the_library_s_own_parameters(timm, no_network, name):
    workload = build(resolve(parse_workload(f"timm/{name}"), "cpu"), META)
    with META:
        own = timm.create_model(name, pretrained=False)
    shapes = {key: value.shape for key, value in own.named_parameters()}
    assert {key: value.shape for key, value in workload.model.named_parameters()} == shapes
    workload.forward_loss().backward()
    assert all(parameter.grad is not None for parameter in workload.trainable)


@pytest.mark.parametrize("name", HF_MODELS)
def test_a_model_of_transformers_has_the_library_s_own_parameters(transformers, no_network, thorough, name):
    if name not in HF and not thorough:
        pytest.skip("only in make test-all")
    facts = HF_MODELS[name]
    usual = {"image_size": facts.largest} if facts.images else {"seq_len": 8}
    workload = build(WorkloadSpec(name=f"hf/{name}", batch_size=2, **usual), META)
    settings = {"num_labels": 1000} if facts.images else {}
    with META:
        config = transformers.AutoConfig.for_model(name, **facts.settings, **settings)
        own = getattr(transformers, f"AutoModelFor{facts.head}").from_config(config)
    shapes = {key: value.shape for key, value in own.named_parameters()}
    assert {key: value.shape for key, value in workload.model.named_parameters()} == shapes
    assert facts.parameters == workload.parameters_count == own.num_parameters()
    loss = workload.forward_loss()
    loss.backward()
    assert loss.shape == ()
    assert all(parameter.grad is not None for parameter in workload.trainable)


def test_default_sizes_run(transformers, timm, thorough):
    for name in HF_MODELS if thorough else ["swin", "vit"]:
        build(resolve(parse_workload(f"hf/{name}"), "cpu"), META).forward_loss()
    for name in library_models("timm")[::40] if thorough else ["timm/inception_v4"]:
        build(resolve(parse_workload(name), "cpu"), META).forward_loss()


def test_ranks_share_a_model_and_not_the_batch(transformers, no_network):
    spec = resolve(parse_workload("hf/electra:batch-size=2,seq-len=8"), "cpu")
    first, other = build(spec, CPU), build(spec, CPU, rank=1)
    for one, two in zip(first.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(one, two)
    assert not torch.equal(first.targets, other.targets)
    assert first.parameters_count == HF_MODELS["electra"].parameters
    assert not first.model.config.use_cache
    loss = first.forward_loss()
    loss.backward()
    assert torch.isfinite(loss)


def test_sizes_come_from_the_model(timm):
    def sizes(name, device="cpu"):
        spec = resolve(parse_workload(name), device)
        return spec.batch_size, spec.image_size

    assert sizes("timm/inception_v4") == (2, 128)
    assert sizes("timm/inception_v4", "cuda") == (8, 299)
    assert sizes("timm/vit_tiny_patch16_224") == (2, 224)
    assert sizes("timm/vit_tiny_patch16_224", "cuda") == (32, 224)
    assert sizes("timm/inception_v4:batch-size=3") == (3, 128)
    assert sizes("timm/inception_v4:batch-size=3,image-size=200") == (3, 200)


def test_a_model_for_one_image_size_is_built_for_that_of_the_batch(timm):
    workload = build(WorkloadSpec(name="timm/vit_tiny_patch16_224", batch_size=2, image_size=64), META)
    assert workload.outputs().shape == (2, 1000)
    with pytest.raises(WorkloadError, match="cannot be built for images of 100 px") as caught:
        build(WorkloadSpec(name="timm/nest_tiny", batch_size=2, image_size=100), META)
    assert caught.value.hint == "try --image-size 224"


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("timm/inception_v5", "unknown workload 'timm/inception_v5'", "did you mean 'timm/inception_v4'?"),
        ("timm/", "unknown workload 'timm/'", "xbench list workloads timm/ has them all"),
        ("hf/brt", "unknown workload 'hf/brt'", "did you mean 'hf/bert'?"),
        ("inception_v4", "unknown workload 'inception_v4'", "did you mean 'timm/inception_v4'?"),
        ("hf/bert:seq-len=513", "hf/bert has 512 positions", "try --seq-len 512"),
        ("hf/bert:image-size=8", "'hf/bert' takes no --image-size", "--batch-size and --seq-len"),
        ("hf/vit:seq-len=8", "'hf/vit' takes no --seq-len", "--batch-size and --image-size"),
        ("hf/vit:image-size=100", "only multiples of 16; the smallest above it that works is 112", "112"),
        ("hf/swin:image-size=96", "hf/swin cannot take images of 96 px", "try --image-size 224"),
        ("timm/inception_v4:seq-len=8", "takes no --seq-len", "--batch-size and --image-size"),
    ],
)
def test_wrong_names_and_sizes_are_refused(monkeypatch, text, message, hint):
    monkeypatch.setattr(libraries, "_is_installed", lambda prefix: True)
    monkeypatch.setattr(libraries, "registered", lambda library: ("inception_v3", "inception_v4"))
    with pytest.raises(SpecError) as caught:
        parse_workload(text)
    assert message in str(caught.value)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("text", "prefix", "package"), [("timm/inception_v4", "timm", "timm"), ("hf/bert:seq-len=8", "hf", "transformers")]
)
def test_a_missing_library_is_one_sentence_with_its_package(monkeypatch, text, prefix, package):
    monkeypatch.setattr(libraries, "_is_installed", lambda prefix: False)
    with pytest.raises(SpecError, match=rf"^{prefix}/ names models of \w+, which is not installed\b") as caught:
        parse_workload(text)
    assert caught.value.hint.startswith(f"pip install '{package}>=")
    assert caught.value.exit_code == 2


def test_names_import_no_library():
    code = (
        "import sys, xbench.workloads as w, xbench.workloads.probe, xbench.commands.listing as c\n"
        "w.resolve(w.parse_workload('resnet50'), 'cpu'); c.workload_rows()\n"
        "from xbench.workloads import libraries\n"
        "libraries._is_installed = lambda prefix: True\n"
        "libraries.registered = lambda library: ('inception_v4',)\n"
        "w.resolve(w.parse_workload('hf/bert'), 'cpu'); c.workload_rows('hf'); c.workload_rows('timm')\n"
        "w.resolve(w.parse_workload('timm/inception_v4:batch-size=2,image-size=128'), 'cpu')\n"
        "heavy = {'torch', 'torchvision', 'timm', 'transformers'}\n"
        "sys.exit(bool(heavy & {name.partition('.')[0] for name in sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


INSTALLED = torchvision.models.list_models(module=torchvision.models)


def test_the_table_lists_what_torchvision_lists():
    assert sorted(TORCHVISION_MODELS) == sorted(INSTALLED)
    assert installed_models() == set(INSTALLED)


def family(name):
    return re.match("[a-z]+", name)[0]


def of_family(which, thorough):
    """All models of a family, or the one with the fewest parameters."""
    names = [name for name in INSTALLED if family(name) == which]
    return names if thorough else [min(names, key=lambda name: TORCHVISION_MODELS[name].parameters)]


@pytest.mark.parametrize("which", sorted({family(name) for name in INSTALLED}))
def test_every_model_runs_at_its_default_size(which, thorough):
    for name in of_family(which, thorough):
        facts = TORCHVISION_MODELS[name]
        workload = build(resolve(parse_workload(name), "cpu"), META)
        outputs = workload.outputs()
        assert outputs.shape == (workload.batch_size, 1000), name
        assert workload.loss(outputs, workload.targets).requires_grad, name
        if facts.multiple > 1:  # position embeddings grow with the image
            workload = build(WorkloadSpec(name=name, batch_size=1, image_size=facts.native), META)
        assert workload.parameters_count == facts.parameters, name


@pytest.mark.parametrize(
    "name", ["alexnet", "densenet121", "googlenet", "inception_v3", "squeezenet1_0", "vgg11", "swin_t"]
)
def test_the_minimum_image_is_the_minimum(name):
    minimum = TORCHVISION_MODELS[name].minimum
    build(WorkloadSpec(name=name, batch_size=2, image_size=minimum), META).forward_loss()
    smaller = build(WorkloadSpec(name=name, batch_size=2, image_size=minimum - 1), META)
    with pytest.raises((RuntimeError, ValueError)):
        smaller.forward_loss()


@pytest.mark.parametrize("name", ["googlenet", "inception_v3"])
def test_models_with_auxiliary_classifiers_train_without_them(name):
    workload = build(WorkloadSpec(name=name, batch_size=2, image_size=75), torch.device("cpu"))
    workload.forward_loss().backward()
    assert all(parameter.grad is not None for parameter in workload.trainable)
