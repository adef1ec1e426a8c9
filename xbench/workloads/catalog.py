"""The workloads by name, with the facts for listing and defaults. Nothing here imports torch.

An entry's target is a `workload.Recipe` class. Names that other packages register through the entry-point group
`xbench.workloads` are an exception. They name a factory: a function without arguments that returns `(model, batch,
loss)`, as the user's own `path/to/file.py:factory` does.
"""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple

from xbench.registry import Registry
from xbench.workloads.torchvision_models import TORCHVISION_MODELS, installed_models

Family = Literal["vision", "text", "synthetic", "factory"]

WORKLOADS: Registry[Any] = Registry("workload", listing="xbench workloads", group="xbench.workloads")


class TextFacts(NamedTuple):
    """A transformer's published size, and (batch size, sequence length) for each device."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    positions: int
    causal: bool
    parameters: int
    cpu: tuple[int, int]
    cuda: tuple[int, int]


TRANSFORMERS = {
    "bert-base": TextFacts(12, 768, 12, 30522, 512, False, 109_514_298, (2, 32), (32, 128)),
    "bert-large": TextFacts(24, 1024, 16, 30522, 512, False, 335_174_458, (1, 32), (16, 128)),
    "gpt2-small": TextFacts(12, 768, 12, 50257, 1024, True, 124_439_808, (2, 32), (8, 512)),
    "transformer-tiny": TextFacts(2, 64, 2, 1000, 128, True, 172_288, (4, 32), (8, 64)),
}

SYNTHETIC_BATCH = 8

for _name in TORCHVISION_MODELS:
    WORKLOADS.add(_name, "xbench.workloads.vision:VisionRecipe", f"torchvision's {_name}", family="vision")
for _name, _summary in (
    ("bert-base", "BERT base, masked-language-model head"),
    ("bert-large", "BERT large, masked-language-model head"),
    ("gpt2-small", "GPT-2 small, next-token head"),
    ("transformer-tiny", "two small causal layers, for tests"),
):
    WORKLOADS.add(_name, "xbench.workloads.text:TextRecipe", _summary, family="text")
WORKLOADS.add(
    "synthetic",
    "xbench.workloads.synthetic:SyntheticRecipe",
    "a chain of equal layers: synthetic:layers=200,bytes=64k[,width=64][,compute=0]",
    family="synthetic",
)

_FACTORY = re.compile(r"(?P<path>.+\.py):(?P<factory>[A-Za-z_]\w*)")


def split_factory(text: str) -> tuple[str, str] | None:
    """('path/to/file.py', 'factory'), or None when the text has another form."""
    match = _FACTORY.fullmatch(text)
    return (match["path"], match["factory"]) if match else None


def family_of(name: str) -> Family:
    """Family of a `WorkloadSpec.name`. Raises SpecError with the nearest name."""
    if split_factory(name):
        return "factory"
    plain = name.partition(":")[0]
    if plain not in WORKLOADS and plain in installed_models():
        return "vision"
    family: Family = WORKLOADS.entry(plain).facts.get("family", "factory")
    return family
