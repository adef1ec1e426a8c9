"""timm's models, `timm/NAME`, trained as torchvision's are: random weights, synthetic images, cross-entropy.

A model gets 1000 classes, whatever its published weights have. Nothing is downloaded. Models that are built for one
image size (vision transformers among them) are built for the size of the batch.
"""

from __future__ import annotations

import timm
from timm.models import get_pretrained_cfg
from torch import nn

from xbench.errors import WorkloadError
from xbench.spec import DeviceType
from xbench.workloads.vision import CLASSES, VisionRecipe

CPU_PX = 128
LARGE_PX = 256
"""Default image size on a CPU for models that take several, and the largest one for which a GPU gets a full batch."""


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
    facts = get_pretrained_cfg(name.partition("/")[2])
    return min(facts.input_size[1:]), bool(facts.fixed_input_size)
