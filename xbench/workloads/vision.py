"""Classification networks of torchvision and timm: random weights, synthetic ImageNet-shaped batches, cross-entropy.

Pixels are standard normal, as normalised photographs roughly are. Labels are uniform over 1000 classes. googlenet and
inception_v3 train without their auxiliary classifiers, whose loss weights are arbitrary. Vision transformers and maxvit
fix the image size at construction, so the constructor gets it. A model of timm (`timm/NAME`) gets 1000 classes,
whatever its published weights have. Nothing is downloaded.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models import get_model_builder

from xbench.errors import WorkloadError
from xbench.spec import DeviceType, WorkloadSpec
from xbench.workloads.batches import Inputs
from xbench.workloads.workload import Recipe

CLASSES = 1000
CPU_PX = 128
LARGE_PX = 256
"""Default image size on a CPU for models that take several, and the largest one for which a GPU gets a full batch."""


class VisionRecipe(Recipe):
    """A torchvision model by its name, on `batch_size` images of 3 × `image_size` × `image_size`."""

    def __init__(self, spec: WorkloadSpec) -> None:
        super().__init__(spec)
        if spec.batch_size is None or spec.image_size is None:
            raise ValueError("the spec is not resolved")
        self.batch_size, self.image_size = spec.batch_size, spec.image_size

    def model(self) -> nn.Module:
        """The network with random weights. Raises WorkloadError if its constructor refuses the image size."""
        builder = get_model_builder(self.spec.name)
        module = builder.__module__.rpartition(".")[2]
        extra: dict[str, Any] = {}
        if module == "vision_transformer":
            extra = {"image_size": self.image_size}
        elif module == "maxvit":
            extra = {"input_size": (self.image_size, self.image_size)}
        elif module in ("googlenet", "inception"):
            extra = {"aux_logits": False, "init_weights": True}
        try:
            network: nn.Module = builder(weights=None, **extra)
        except (ValueError, RuntimeError, AssertionError) as error:
            raise WorkloadError(
                f"{self.spec.name} cannot be built for images of {self.image_size} px", detail=str(error)
            ) from error
        return network

    def batch(self, rank: int) -> tuple[Inputs, Any]:
        """Images (batch, 3, size, size) and labels (batch,)."""
        images = torch.randn(self.batch_size, 3, self.image_size, self.image_size)
        return images, torch.randint(CLASSES, (self.batch_size,))

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        """Mean cross-entropy over the batch."""
        return F.cross_entropy(outputs, targets)

    def input_description(self) -> str:
        """'3×128×128 images'."""
        return f"3×{self.image_size}×{self.image_size} images"


def default_sizes(name: str, device: DeviceType) -> tuple[int, int]:
    """(batch size, image size) of 'timm/inception_v4': the model's own image size, or less of it on a CPU."""
    pixels, fixed = _own_size(name)
    if device == "cpu":
        return 2, pixels if fixed else min(pixels, CPU_PX)
    return (32 if pixels <= LARGE_PX else 8), pixels


class TimmRecipe(VisionRecipe):
    """A model of timm by its name, on `batch_size` images of 3 × `image_size` × `image_size`."""

    computes_nothing = True

    def model(self) -> nn.Module:
        """The network with random weights. Raises WorkloadError if its constructor refuses the image size."""
        import timm

        pixels, fixed = _own_size(self.spec.name)
        sized = {"img_size": self.image_size} if fixed and self.image_size != pixels else {}
        try:
            network: nn.Module = timm.create_model(
                self.spec.name.partition("/")[2], pretrained=False, num_classes=CLASSES, **sized
            )
        except (TypeError, ValueError, RuntimeError, AssertionError) as error:
            raise WorkloadError(
                f"{self.spec.name} cannot be built for images of {self.image_size} px",
                hint=f"try --image-size {pixels}" if sized else None,
                detail=str(error),
            ) from error
        return network


def _own_size(name: str) -> tuple[int, bool]:
    """Image size [px] of a model's published weights, and whether the model is built for one size."""
    from timm.models import get_pretrained_cfg

    facts = get_pretrained_cfg(name.partition("/")[2])
    return min(facts.input_size[1:]), bool(facts.fixed_input_size)
