"""Real data from a package, without a download: scikit-learn's handwritten digits.

1797 grey images of 8 × 8 pixels, values 0 to 16, ten classes: the test half of "Optical Recognition of Handwritten
Digits" (E. Alpaydin, C. Kaynak; UCI Machine Learning Repository, 1998, CC BY 4.0), written by 13 people. A fifth of
each class is kept for testing, always the same images. They are enlarged to a workload's image size, repeated over its
channels, and normalised by the mean and deviation of the training images.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from xbench.distribution import install_extra
from xbench.errors import WorkloadError

CLASSES = 10
TEST_SHARE = 0.2
SPLIT_SEED = 0


@dataclass(frozen=True)
class Digits:
    """Normalised images (n, 1, 8, 8) and labels (n,), for training and for testing."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def digits() -> Digits:
    """The images, split by class with a fixed seed. Raises WorkloadError if scikit-learn is missing."""
    try:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ModuleNotFoundError as error:
        raise WorkloadError(
            f"the digits come with scikit-learn, and {error.name!r} is not installed",
            hint=install_extra("converge"),
        ) from None
    images, labels = load_digits(return_X_y=True)
    train, test, train_labels, test_labels = train_test_split(
        images, labels, test_size=TEST_SHARE, stratify=labels, random_state=SPLIT_SEED
    )
    mean, deviation = float(train.mean()), float(train.std())

    def normal(values: object) -> Tensor:
        return ((torch.as_tensor(values, dtype=torch.float32) - mean) / deviation).view(-1, 1, 8, 8)

    return Digits(normal(train), torch.as_tensor(train_labels), normal(test), torch.as_tensor(test_labels))


def enlarged(images: Tensor, like: Tensor) -> Tensor:
    """Images (n, 1, 8, 8) in the channels, height, width, dtype and device of a batch `like` (m, c, h, w)."""
    _, channels, height, width = like.shape
    wide = F.interpolate(images, size=(height, width), mode="bilinear", align_corners=False)
    return wide.expand(-1, channels, -1, -1).to(like)
