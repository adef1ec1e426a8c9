"""Models of Hugging Face transformers, `hf/NAME`, from their configuration: random weights, nothing is downloaded.

Text models get the tokens and the loss of `text`: masked, causal, or from one sequence to another. Image models get the
images of `vision`. The model is the library's own class, and returns an object with `logits`.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, nn

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when transformers is imported

import transformers

from xbench.spec import WorkloadSpec
from xbench.workloads.batches import Inputs
from xbench.workloads.libraries import HF_MODELS
from xbench.workloads.text import TokenRecipe
from xbench.workloads.vision import CLASSES, VisionRecipe
from xbench.workloads.workload import Recipe


def hf_recipe(spec: WorkloadSpec) -> Recipe:
    """The recipe of a resolved 'hf/bert'."""
    return HfImageRecipe(spec) if HF_MODELS[_model_type(spec)].images else HfTextRecipe(spec)


class HfTextRecipe(TokenRecipe):
    """A language model of transformers on `batch_size` sequences of `seq_len` random tokens."""

    computes_nothing = True

    def __init__(self, spec: WorkloadSpec) -> None:
        self.head = HF_MODELS[_model_type(spec)].head
        self.config = _config(spec)
        super().__init__(spec, vocabulary=self.config.vocab_size, causal=self.head != "MaskedLM")

    def model(self) -> nn.Module:
        """The library's model with random weights."""
        return _built(self.head, self.config)

    def batch(self, rank: int) -> tuple[Inputs, Any]:
        """As `TokenRecipe.batch`. A decoder predicts the next token of the sequence that the encoder reads."""
        inputs, targets = super().batch(rank)
        if self.head == "Seq2SeqLM":
            return {"input_ids": inputs, "decoder_input_ids": inputs}, targets
        return inputs, targets

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        """Mean cross-entropy over the tokens to predict."""
        return super().loss(outputs.logits, targets)


class HfImageRecipe(VisionRecipe):
    """A classifier of transformers on `batch_size` images of 3 × `image_size` × `image_size`."""

    computes_nothing = True

    def model(self) -> nn.Module:
        """The library's model with random weights and 1000 classes."""
        return _built("ImageClassification", _config(self.spec))

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        """Mean cross-entropy over the batch."""
        return super().loss(outputs.logits, targets)


def _model_type(spec: WorkloadSpec) -> str:
    return spec.name.partition("/")[2]


def _config(spec: WorkloadSpec) -> Any:
    """The configuration, without a cache of keys and values: training needs none."""
    facts = HF_MODELS[_model_type(spec)]
    sized = {"num_labels": CLASSES, "image_size": spec.image_size} if facts.images else {"use_cache": False}
    return transformers.AutoConfig.for_model(_model_type(spec), **sized, **facts.settings)


def _built(head: str, config: Any) -> nn.Module:
    """A model with random weights; on the meta device, one whose forward pass looks at no value."""
    model: Any = getattr(transformers, f"AutoModelFor{head}").from_config(config, dtype=torch.float32)
    if any(parameter.is_meta for parameter in model.parameters()):
        config.use_cache = head != "ImageClassification"  # without a cache, it looks for packed sequences
    built: nn.Module = model
    return built
