"""Models of other libraries by name: `timm/NAME` of timm, and `hf/NAME` of Hugging Face transformers.

Both libraries are optional, and importing either imports torch, which nothing here does. So the names of timm's models
are read from its source text. Those of transformers are a table: most of its configurations have defaults of billions
of parameters. `settings` differ from the library's defaults where `like` names a smaller published model.

The defaults for a CPU are sized as in `catalog`. A model of timm gets its sizes from `vision`, which imports timm.
"""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from xbench.distribution import install_extra
from xbench.errors import SpecError, nearest

LIBRARIES = {"timm": "timm", "hf": "transformers"}
"""Module to import for each prefix. The prefix is also the name of the extra that installs it."""


class HfFacts(NamedTuple):
    """One model of transformers: the class `AutoModelFor<head>`, published size, and default sizes for each device.

    `largest` is the longest sequence [tokens], or the image size of the published weights [px]. `cpu` and `cuda` are
    the batch size, and the sequence length or image size. `smallest` is the smallest image, `multiple` the step between
    image sizes [px].
    """

    head: str
    like: str
    parameters: int
    largest: int
    cpu: tuple[int, int]
    cuda: tuple[int, int]
    smallest: int = 1
    multiple: int = 1
    settings: dict[str, Any] = {}  # noqa: RUF012

    @property
    def images(self) -> bool:
        """True for an image model, False for one of text."""
        return self.head == "ImageClassification"


# fmt: off
HF_MODELS: dict[str, HfFacts] = {
    "albert": HfFacts("MaskedLM", "ALBERT base", 11_221_680, 512, (2, 32), (32, 128),
                      settings={"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}),
    "bert": HfFacts("MaskedLM", "BERT base", 109_514_298, 512, (2, 32), (32, 128)),
    "convnext": HfFacts("ImageClassification", "ConvNeXt tiny", 28_589_128, 224, (4, 96), (64, 224), 32),
    "distilbert": HfFacts("MaskedLM", "DistilBERT base", 66_985_530, 512, (4, 32), (64, 128)),
    "electra": HfFacts("MaskedLM", "ELECTRA small", 13_546_682, 512, (4, 64), (64, 128)),
    "gpt2": HfFacts("CausalLM", "GPT-2 small", 124_439_808, 1024, (2, 32), (8, 512)),
    "gpt_neo": HfFacts("CausalLM", "GPT-Neo 125M", 125_198_592, 2048, (2, 32), (8, 512),
                       settings={"hidden_size": 768, "num_layers": 12, "num_heads": 12,
                                 "attention_types": [[["global", "local"], 6]]}),
    "llama": HfFacts("CausalLM", "SmolLM 135M, an architecture of Llama", 134_515_008, 2048, (2, 16), (8, 512),
                     settings={"vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536,
                               "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
                               "tie_word_embeddings": True}),
    "opt": HfFacts("CausalLM", "OPT 125M", 125_239_296, 2048, (2, 32), (8, 512)),
    "qwen2": HfFacts("CausalLM", "Qwen2 0.5B", 494_032_768, 32768, (1, 16), (4, 512),
                     settings={"vocab_size": 151_936, "hidden_size": 896, "intermediate_size": 4864,
                               "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
                               "tie_word_embeddings": True}),
    "resnet": HfFacts("ImageClassification", "ResNet-50", 25_557_032, 224, (4, 96), (64, 224)),
    "roberta": HfFacts("MaskedLM", "RoBERTa base", 124_697_433, 512, (2, 32), (32, 128),
                       settings={"max_position_embeddings": 514, "type_vocab_size": 1}),
    "swin": HfFacts("ImageClassification", "Swin tiny", 28_288_354, 224, (1, 224), (64, 224), 224),
    "t5": HfFacts("Seq2SeqLM", "T5 small", 60_506_624, 512, (2, 32), (32, 128)),
    "vit": HfFacts("ImageClassification", "ViT base, patches of 16 px", 86_567_656, 224, (2, 64), (32, 224), 16, 16),
}
# fmt: on


def split_library(name: str) -> tuple[str, str] | None:
    """('timm', 'inception_v4') of 'timm/inception_v4', or None if the name begins with no library's prefix."""
    prefix, slash, model = name.partition("/")
    return (prefix, model) if slash and prefix in LIBRARIES else None


def hf_facts(name: str) -> HfFacts | None:
    """The table's row of 'hf/bert', or None for another sort of name."""
    prefix, _, model = name.partition("/")
    return HF_MODELS.get(model) if prefix == "hf" else None


def library_models(prefix: str) -> list[str]:
    """Names of a library's models with the prefix, sorted; none if the library is not installed."""
    if not _is_installed(prefix):
        return []
    return [f"{prefix}/{model}" for model in (sorted(HF_MODELS) if prefix == "hf" else registered("timm"))]


def library_summary(name: str) -> str:
    """What a library's model is: "timm's inception_v4", 'BERT base'."""
    facts = hf_facts(name)
    return facts.like if facts is not None else f"timm's {name.partition('/')[2]}"


def check_installed(prefix: str) -> None:
    """Raise SpecError if the library is not installed."""
    module = LIBRARIES[prefix]
    if not _is_installed(prefix):
        raise SpecError(f"{prefix}/ names models of {module}, which is not installed", hint=install_extra(prefix))


def check_known(name: str) -> None:
    """Raise SpecError, with the nearest name, if the library is missing or has no such model."""
    prefix, _, model = name.partition("/")
    check_installed(prefix)
    known = [one.partition("/")[2] for one in library_models(prefix)]
    if model in known:
        return
    close = nearest(model, known)
    suggestion = f"did you mean {f'{prefix}/{close}'!r}? " if close else ""
    listing = f"xbench list workloads {prefix}/ has them all"
    raise SpecError(f"unknown workload {name!r}", hint=f"{suggestion}({listing})" if close else listing)


def _is_installed(prefix: str) -> bool:
    return importlib.util.find_spec(LIBRARIES[prefix]) is not None


@cache
def registered(library: str) -> tuple[str, ...]:
    """Names of the functions directly in `LIBRARY/models/` that register a model of timm or torchvision, sorted.

    All of them carry the decorator `@register_model`, which torchvision calls. Empty if the library is missing.
    """
    spec = importlib.util.find_spec(library)
    names: set[str] = set()
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for file in Path(folder, "models").glob("*.py"):
            text = file.read_text(encoding="utf-8", errors="replace")
            names.update(re.findall(r"^@register_model(?:\(\))?\n(?:@.*\n)*def (\w+)\(", text, flags=re.MULTILINE))
    return tuple(sorted(names))
