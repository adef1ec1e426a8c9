"""Your own model in xbench: `xbench compare examples/train.py:make --modes ddp,auto`."""

import torch
from torch import nn


def make():
    """A factory takes no arguments and returns (model, batch, loss); batch is (inputs, targets)."""
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 10))
    inputs, targets = torch.randn(32, 256), torch.randint(10, (32,))
    return model, (inputs, targets), nn.functional.cross_entropy
