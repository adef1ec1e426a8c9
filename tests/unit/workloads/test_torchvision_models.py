"""Every torchvision classification model builds and runs, and the table says the truth about it."""

import re

import pytest
import torch
import torchvision.models

from xbench.spec import WorkloadSpec
from xbench.workloads import parse_workload, resolve
from xbench.workloads.build import build
from xbench.workloads.catalog import TORCHVISION_MODELS, installed_models

META = torch.device("meta")
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
