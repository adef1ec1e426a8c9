"""GoogLeNet as the MG-WFBP paper counts it, 13 million parameters, which only its auxiliary classifiers make up.

    xbench profile docs/googlenet_with_aux.py:make --fabric local:ranks=1 --json results/study-googlenet.json

The loss adds both auxiliary ones at 0.3, as Szegedy et al. (CVPR 2015) do. Batch-norm comes with torchvision's version;
the paper's, Caffe's, has none, so docs/make_study.py counts a convolution and its batch-norm as one tensor.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torchvision.models import googlenet

BATCH = 8


class Loss(nn.Module):
    """Cross entropy of the network and, at 0.3 each, of its two auxiliary classifiers."""

    def forward(self, outputs: tuple[Tensor, Tensor, Tensor], targets: Tensor) -> Tensor:
        """The weighted sum."""
        main, second, first = outputs
        entropy = nn.functional.cross_entropy
        return entropy(main, targets) + 0.3 * (entropy(second, targets) + entropy(first, targets))


def make() -> tuple[nn.Module, tuple[Tensor, Tensor], nn.Module]:
    """Model, batch and loss, as `xbench profile` takes them."""
    model = googlenet(weights=None, aux_logits=True, init_weights=True)
    return model, (torch.randn(BATCH, 3, 224, 224), torch.randint(0, 1000, (BATCH,))), Loss()
