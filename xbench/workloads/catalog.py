"""The workloads by name, with the facts for listing and defaults. Nothing here imports torch.

An entry's target is a `workload.Recipe` class. Only names that other packages register through the entry-point group
`xbench.workloads` name a factory, as the user's own `path/to/file.py:factory` is.

The facts of torchvision's models are properties of the model except for the two defaults. `parameters` counts the
trained ones: without the auxiliary classifiers of googlenet and inception_v3. `minimum` is the smallest image that the
network accepts in training mode with a batch of two. `multiple` is the step between image sizes.

`cpu` is sized for a step of 0.1 to 1.7 s on one core: the batch (at most 8) and the image are the largest that stay
near 20 GFLOP a step, at about 6 FLOP per multiply-add. `cuda` is a usual training input, with the batch halved from 64
until a forward pass stays under 600 giga-multiply-adds.

A model of the installed torchvision that this table lacks still works (`facts_of`), as do those of `libraries`.
"""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple

from xbench.errors import SpecError, unknown
from xbench.registry import Registry
from xbench.workloads.libraries import LIBRARIES, check_known, hf_facts, library_models, registered, split_library

Family = Literal["vision", "text", "speech", "synthetic", "factory"]

WORKLOADS: Registry[Any] = Registry("workload", listing="xbench list workloads", group="xbench.workloads")


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


class SequenceFacts(NamedTuple):
    """A model of sequences: published size, longest sequence, and (batch size, length) for each device."""

    parameters: int
    positions: int | None
    cpu: tuple[int, int]
    cuda: tuple[int, int]
    unit: str = "tokens"


RECURRENT = {
    "lstm-lm": SequenceFacts(66_034_000, None, (2, 32), (20, 35)),
    "deepspeech2": SequenceFacts(27_569_568, None, (2, 96), (8, 320), "frames"),
}

SYNTHETIC_BATCH = 8


class VisionFacts(NamedTuple):
    """One model: image sizes in pixels (height = width), and (batch size, image size) for each device."""

    native: int
    minimum: int
    multiple: int
    parameters: int | None
    cpu: tuple[int, int]
    cuda: tuple[int, int]


UNLISTED = VisionFacts(224, 1, 1, None, (2, 96), (16, 224))

# fmt: off
TORCHVISION_MODELS: dict[str, VisionFacts] = {
    "alexnet": VisionFacts(224, 63, 1, 61_100_840, (8, 96), (64, 224)),
    "convnext_base": VisionFacts(224, 32, 1, 88_591_464, (2, 64), (32, 224)),
    "convnext_large": VisionFacts(224, 32, 1, 197_767_336, (4, 32), (16, 224)),
    "convnext_small": VisionFacts(224, 32, 1, 50_223_688, (2, 96), (64, 224)),
    "convnext_tiny": VisionFacts(224, 32, 1, 28_589_128, (4, 96), (64, 224)),
    "densenet121": VisionFacts(224, 29, 1, 7_978_856, (4, 96), (64, 224)),
    "densenet161": VisionFacts(224, 29, 1, 28_681_000, (2, 96), (64, 224)),
    "densenet169": VisionFacts(224, 29, 1, 14_149_480, (4, 96), (64, 224)),
    "densenet201": VisionFacts(224, 29, 1, 20_013_928, (4, 96), (64, 224)),
    "efficientnet_b0": VisionFacts(224, 1, 1, 5_288_548, (8, 96), (64, 224)),
    "efficientnet_b1": VisionFacts(240, 1, 1, 7_794_184, (8, 96), (64, 240)),
    "efficientnet_b2": VisionFacts(288, 1, 1, 9_109_994, (8, 96), (64, 288)),
    "efficientnet_b3": VisionFacts(300, 1, 1, 12_233_232, (8, 96), (64, 300)),
    "efficientnet_b4": VisionFacts(380, 1, 1, 19_341_616, (8, 96), (64, 380)),
    "efficientnet_b5": VisionFacts(456, 1, 1, 30_389_784, (4, 96), (32, 456)),
    "efficientnet_b6": VisionFacts(528, 1, 1, 43_040_704, (4, 96), (16, 528)),
    "efficientnet_b7": VisionFacts(600, 1, 1, 66_347_960, (2, 96), (8, 600)),
    "efficientnet_v2_l": VisionFacts(480, 1, 1, 118_515_272, (2, 64), (8, 480)),
    "efficientnet_v2_m": VisionFacts(480, 1, 1, 54_139_356, (2, 96), (16, 480)),
    "efficientnet_v2_s": VisionFacts(384, 1, 1, 21_458_488, (4, 96), (64, 384)),
    "googlenet": VisionFacts(224, 15, 1, 6_624_904, (8, 96), (64, 224)),
    "inception_v3": VisionFacts(299, 75, 1, 23_834_568, (4, 96), (64, 299)),
    "maxvit_t": VisionFacts(224, 224, 224, 30_919_624, (1, 224), (64, 224)),
    "mnasnet0_5": VisionFacts(224, 1, 1, 2_218_512, (8, 96), (64, 224)),
    "mnasnet0_75": VisionFacts(224, 1, 1, 3_170_208, (8, 96), (64, 224)),
    "mnasnet1_0": VisionFacts(224, 1, 1, 4_383_312, (8, 96), (64, 224)),
    "mnasnet1_3": VisionFacts(224, 1, 1, 6_282_256, (8, 96), (64, 224)),
    "mobilenet_v2": VisionFacts(224, 1, 1, 3_504_872, (8, 96), (64, 224)),
    "mobilenet_v3_large": VisionFacts(224, 1, 1, 5_483_032, (8, 96), (64, 224)),
    "mobilenet_v3_small": VisionFacts(224, 1, 1, 2_542_856, (8, 96), (64, 224)),
    "regnet_x_16gf": VisionFacts(224, 1, 1, 54_278_536, (2, 64), (32, 224)),
    "regnet_x_1_6gf": VisionFacts(224, 1, 1, 9_190_136, (8, 96), (64, 224)),
    "regnet_x_32gf": VisionFacts(224, 1, 1, 107_811_560, (4, 32), (16, 224)),
    "regnet_x_3_2gf": VisionFacts(224, 1, 1, 15_296_552, (4, 96), (64, 224)),
    "regnet_x_400mf": VisionFacts(224, 1, 1, 5_495_976, (8, 96), (64, 224)),
    "regnet_x_800mf": VisionFacts(224, 1, 1, 7_259_656, (8, 96), (64, 224)),
    "regnet_x_8gf": VisionFacts(224, 1, 1, 39_572_648, (2, 96), (64, 224)),
    "regnet_y_128gf": VisionFacts(384, 1, 1, 644_812_894, (2, 32), (8, 224)),
    "regnet_y_16gf": VisionFacts(224, 1, 1, 83_590_140, (2, 64), (32, 224)),
    "regnet_y_1_6gf": VisionFacts(224, 1, 1, 11_202_430, (8, 96), (64, 224)),
    "regnet_y_32gf": VisionFacts(224, 1, 1, 145_046_770, (4, 32), (16, 224)),
    "regnet_y_3_2gf": VisionFacts(224, 1, 1, 19_436_338, (4, 96), (64, 224)),
    "regnet_y_400mf": VisionFacts(224, 1, 1, 4_344_144, (8, 96), (64, 224)),
    "regnet_y_800mf": VisionFacts(224, 1, 1, 6_432_512, (8, 96), (64, 224)),
    "regnet_y_8gf": VisionFacts(224, 1, 1, 39_381_472, (2, 96), (64, 224)),
    "resnet101": VisionFacts(224, 1, 1, 44_549_160, (2, 96), (64, 224)),
    "resnet152": VisionFacts(224, 1, 1, 60_192_808, (2, 64), (32, 224)),
    "resnet18": VisionFacts(224, 1, 1, 11_689_512, (8, 128), (64, 224)),
    "resnet34": VisionFacts(224, 1, 1, 21_797_672, (4, 96), (64, 224)),
    "resnet50": VisionFacts(224, 1, 1, 25_557_032, (4, 96), (64, 224)),
    "resnext101_32x8d": VisionFacts(224, 1, 1, 88_791_336, (2, 64), (32, 224)),
    "resnext101_64x4d": VisionFacts(224, 1, 1, 83_455_272, (2, 64), (32, 224)),
    "resnext50_32x4d": VisionFacts(224, 1, 1, 25_028_904, (4, 96), (64, 224)),
    "shufflenet_v2_x0_5": VisionFacts(224, 1, 1, 1_366_792, (8, 96), (64, 224)),
    "shufflenet_v2_x1_0": VisionFacts(224, 1, 1, 2_278_604, (8, 96), (64, 224)),
    "shufflenet_v2_x1_5": VisionFacts(224, 1, 1, 3_503_624, (8, 96), (64, 224)),
    "shufflenet_v2_x2_0": VisionFacts(224, 1, 1, 7_393_996, (8, 96), (64, 224)),
    "squeezenet1_0": VisionFacts(224, 21, 1, 1_248_424, (8, 96), (64, 224)),
    "squeezenet1_1": VisionFacts(224, 17, 1, 1_235_496, (8, 96), (64, 224)),
    "swin_b": VisionFacts(224, 4, 1, 87_768_224, (2, 64), (32, 224)),
    "swin_s": VisionFacts(224, 4, 1, 49_606_258, (2, 96), (64, 224)),
    "swin_t": VisionFacts(224, 4, 1, 28_288_354, (4, 96), (64, 224)),
    "swin_v2_b": VisionFacts(256, 4, 1, 87_930_848, (2, 64), (16, 256)),
    "swin_v2_s": VisionFacts(256, 4, 1, 49_737_442, (2, 96), (32, 256)),
    "swin_v2_t": VisionFacts(256, 4, 1, 28_351_570, (2, 96), (64, 256)),
    "vgg11": VisionFacts(224, 32, 1, 132_863_336, (2, 96), (64, 224)),
    "vgg11_bn": VisionFacts(224, 32, 1, 132_868_840, (2, 96), (64, 224)),
    "vgg13": VisionFacts(224, 32, 1, 133_047_848, (2, 64), (32, 224)),
    "vgg13_bn": VisionFacts(224, 32, 1, 133_053_736, (2, 64), (32, 224)),
    "vgg16": VisionFacts(224, 32, 1, 138_357_544, (2, 64), (32, 224)),
    "vgg16_bn": VisionFacts(224, 32, 1, 138_365_992, (2, 64), (32, 224)),
    "vgg19": VisionFacts(224, 32, 1, 143_667_240, (2, 64), (16, 224)),
    "vgg19_bn": VisionFacts(224, 32, 1, 143_678_248, (2, 64), (16, 224)),
    "vit_b_16": VisionFacts(224, 16, 16, 86_567_656, (2, 64), (32, 224)),
    "vit_b_32": VisionFacts(224, 32, 32, 88_224_232, (4, 96), (64, 224)),
    "vit_h_14": VisionFacts(518, 14, 14, 633_470_440, (1, 28), (8, 224)),
    "vit_l_16": VisionFacts(224, 16, 16, 304_326_632, (2, 32), (8, 224)),
    "vit_l_32": VisionFacts(224, 32, 32, 306_535_400, (2, 64), (32, 224)),
    "wide_resnet101_2": VisionFacts(224, 1, 1, 126_886_696, (4, 32), (16, 224)),
    "wide_resnet50_2": VisionFacts(224, 1, 1, 68_883_240, (2, 64), (32, 224)),
}
# fmt: on

for _name in TORCHVISION_MODELS:
    WORKLOADS.add(_name, "xbench.workloads.vision:VisionRecipe", f"torchvision's {_name}", family="vision")
for _name, _summary in (
    ("bert-base", "BERT base, masked-language-model head"),
    ("bert-large", "BERT large, masked-language-model head"),
    ("gpt2-small", "GPT-2 small, next-token head"),
    ("transformer-tiny", "two small causal layers, for tests"),
):
    WORKLOADS.add(_name, "xbench.workloads.text:TextRecipe", _summary, family="text")
WORKLOADS.add("lstm-lm", "xbench.workloads.text:LstmRecipe", "LSTM language model, two layers", family="text")
WORKLOADS.add(
    "deepspeech2", "xbench.workloads.text:SpeechRecipe", "Deep Speech 2, five LSTM layers, CTC", family="speech"
)
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
    if split_library(plain):
        check_known(plain)
        hf = hf_facts(plain)
        return "text" if hf is not None and not hf.images else "vision"
    if plain not in WORKLOADS:
        if plain in installed_models():
            return "vision"
        raise unknown_workload(plain)
    family: Family = WORKLOADS.entry(plain).facts.get("family", "factory")
    return family


def unknown_workload(name: str) -> SpecError:
    """The error for an unknown name. It suggests a library's model of that name, or the nearest name here."""
    for prefix in LIBRARIES:
        if f"{prefix}/{name}" in library_models(prefix):
            return SpecError(f"unknown workload {name!r}", hint=f"did you mean {f'{prefix}/{name}'!r}?")
    return unknown("workload", name, WORKLOADS.names(), listing=WORKLOADS.listing)


def facts_of(name: str) -> VisionFacts:
    """The table's row, or cautious defaults for a model that the table lacks."""
    hf = hf_facts(name)
    if hf is not None:
        return VisionFacts(hf.largest, hf.smallest, hf.multiple, hf.parameters, hf.cpu, hf.cuda)
    return TORCHVISION_MODELS.get(name, UNLISTED)


def sequence_facts_of(name: str) -> SequenceFacts:
    """Facts of a text or speech model."""
    facts = hf_facts(name)
    if facts is not None:
        return SequenceFacts(facts.parameters, facts.largest, facts.cpu, facts.cuda)
    if name in RECURRENT:
        return RECURRENT[name]
    text = TRANSFORMERS[name]
    return SequenceFacts(text.parameters, text.positions, text.cpu, text.cuda)


def installed_models() -> frozenset[str]:
    """Names of the classification models in the installed torchvision, read from its source text.

    Importing torchvision would import torch. The builders of classification models are directly in its `models/`.
    """
    return frozenset(registered("torchvision"))
