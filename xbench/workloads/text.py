"""Models of sequences at their published sizes, written with torch.nn: random weights, synthetic data, no downloads.

- BERT (Devlin et al., arXiv 1810.04805): post-norm encoder, learned positions, and the masked-language-model head
  whose output matrix is the token embedding. 15 % of a sequence's tokens, at least one, are masked and predicted. It
  has no pooler and no next-sentence head, as in today's code.
- GPT-2 (Radford et al. 2019): pre-norm causal decoder, output matrix tied to the token embedding. Every position
  predicts the next token.
- `lstm-lm`: the large model of Zaremba et al. (arXiv 1409.2329): two LSTM layers of 1500 units, a vocabulary of 10 000
  words, dropout 0.65. Every position predicts the next token.
- `deepspeech2`: Deep Speech 2 (Amodei et al., arXiv 1512.02595) with five LSTM layers of 800 units in one direction, a
  lookahead convolution over 20 later frames, and CTC over 28 characters and the blank.

They match the publications in what decides time and traffic: shapes, tensors, tying, dropout, GELU. A tied matrix gets
its gradient from both ends of the backward pass, so it is complete only at its very end. A spectrogram has 161
frequencies (windows of 20 ms at 16 kHz) and one frame every 10 ms. The convolutions halve the frames. A text has one
character to four of the remaining frames, so that CTC always has a path.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from xbench.spec import WorkloadSpec
from xbench.workloads.batches import Inputs
from xbench.workloads.catalog import TRANSFORMERS, TextFacts
from xbench.workloads.workload import Recipe

DROPOUT = 0.1
MASKED_SHARE = 0.15
IGNORED = -100
INITIAL_STD = 0.02


class Attention(nn.Module):
    """Multi-head self-attention; (batch, tokens, width) to the same."""

    def __init__(self, facts: TextFacts) -> None:
        super().__init__()
        self.heads, self.causal = facts.heads, facts.causal
        self.qkv = nn.Linear(facts.width, 3 * facts.width)
        self.project = nn.Linear(facts.width, facts.width)

    def forward(self, x: Tensor) -> Tensor:
        """Softmax(QKᵀ/√d)V, with the heads concatenated, projected."""
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        dropout = DROPOUT if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=self.causal)
        projected: Tensor = self.project(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return projected


class Block(nn.Module):
    """Attention and a four times wider MLP, each with a residual; norm before (GPT-2) or after (BERT)."""

    def __init__(self, facts: TextFacts) -> None:
        super().__init__()
        self.pre_norm = facts.causal
        self.attention = Attention(facts)
        self.attention_norm = nn.LayerNorm(facts.width)
        self.expand = nn.Linear(facts.width, 4 * facts.width)
        self.contract = nn.Linear(4 * facts.width, facts.width)
        self.mlp_norm = nn.LayerNorm(facts.width)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, width) to the same."""
        if self.pre_norm:
            x = x + self.dropout(self.attention(self.attention_norm(x)))
            mixed: Tensor = x + self.dropout(self.mlp(self.mlp_norm(x)))
        else:
            x = self.attention_norm(x + self.dropout(self.attention(x)))
            mixed = self.mlp_norm(x + self.dropout(self.mlp(x)))
        return mixed

    def mlp(self, x: Tensor) -> Tensor:
        """Expand, GELU, contract."""
        contracted: Tensor = self.contract(F.gelu(self.expand(x)))
        return contracted


class Transformer(nn.Module):
    """Token indices (batch, tokens) to logits (batch, tokens, vocabulary)."""

    def __init__(self, facts: TextFacts) -> None:
        super().__init__()
        self.causal = facts.causal
        self.tokens = nn.Embedding(facts.vocabulary, facts.width)
        self.positions = nn.Embedding(facts.positions, facts.width)
        self.norm = nn.LayerNorm(facts.width)  # BERT's follows the embedding, GPT-2's the last block
        self.blocks = nn.ModuleList(Block(facts) for _ in range(facts.layers))
        self.dropout = nn.Dropout(DROPOUT)
        self.head = nn.Linear(facts.width, facts.vocabulary, bias=not facts.causal)
        if not facts.causal:
            self.segments = nn.Embedding(2, facts.width)
            self.transform = nn.Linear(facts.width, facts.width)
            self.transform_norm = nn.LayerNorm(facts.width)
        self.apply(_initialise)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (batch, tokens, vocabulary) of token indices (batch, tokens)."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(positions)
        if not self.causal:
            x = self.norm(x + self.segments(torch.zeros_like(positions)))
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x) if self.causal else self.transform_norm(F.gelu(self.transform(x)))
        logits: Tensor = self.head(x)
        return logits


class TokenRecipe(Recipe):
    """`batch_size` sequences of `seq_len` random tokens, for a causal or a masked language model."""

    def __init__(self, spec: WorkloadSpec, *, vocabulary: int, causal: bool) -> None:
        super().__init__(spec)
        if spec.batch_size is None or spec.seq_len is None:
            raise ValueError("the spec is not resolved")
        self.batch_size, self.seq_len = spec.batch_size, spec.seq_len
        self.vocabulary, self.causal = vocabulary, causal

    def batch(self, rank: int) -> tuple[Inputs, Any]:
        """Tokens (batch, tokens), and the token to predict at each position, or -100 for none."""
        tokens = torch.randint(self.vocabulary, (self.batch_size, self.seq_len + 1))
        if self.causal:
            return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        tokens = tokens[:, :-1].contiguous()
        count = max(1, round(MASKED_SHARE * self.seq_len))
        masked_positions = torch.rand(self.batch_size, self.seq_len).argsort(dim=1)[:, :count]
        masked = torch.zeros(self.batch_size, self.seq_len, dtype=torch.bool).scatter(1, masked_positions, True)
        return tokens.masked_fill(masked, self.vocabulary - 1), tokens.masked_fill(~masked, IGNORED)

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        """Mean cross-entropy over the tokens to predict."""
        return F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)

    def input_description(self) -> str:
        """'64 tokens'."""
        return f"{self.seq_len} tokens"


class TextRecipe(TokenRecipe):
    """A transformer of `catalog.TRANSFORMERS`."""

    def __init__(self, spec: WorkloadSpec) -> None:
        self.facts = TRANSFORMERS[spec.name]
        super().__init__(spec, vocabulary=self.facts.vocabulary, causal=self.facts.causal)

    def model(self) -> nn.Module:
        """The transformer with random weights."""
        return Transformer(self.facts)


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=INITIAL_STD)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


WORDS, UNITS, LSTM_DROPOUT = 10_000, 1500, 0.65
FREQUENCIES, CHANNELS, SPEECH_UNITS, SPEECH_LAYERS = 161, 32, 800, 5
LOOKAHEAD = 20
CHARACTERS = 29
"""Outputs of `deepspeech2`: the blank, which is 0, and 28 characters."""
FRAMES_A_CHARACTER = 4


class LanguageModel(nn.Module):
    """Token indices (batch, tokens) to logits (batch, tokens, vocabulary)."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(WORDS, UNITS)
        self.layers = nn.LSTM(UNITS, UNITS, num_layers=2, dropout=LSTM_DROPOUT, batch_first=True)
        self.dropout = nn.Dropout(LSTM_DROPOUT)
        self.head = nn.Linear(UNITS, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (batch, tokens, vocabulary) of token indices (batch, tokens)."""
        hidden, _ = self.layers(self.dropout(self.tokens(tokens)))
        logits: Tensor = self.head(self.dropout(hidden))
        return logits


class LstmRecipe(TokenRecipe):
    """The LSTM language model on `batch_size` sequences of `seq_len` random tokens."""

    def __init__(self, spec: WorkloadSpec) -> None:
        super().__init__(spec, vocabulary=WORDS, causal=True)

    def model(self) -> nn.Module:
        """The network with random weights."""
        return LanguageModel()


class SpeechModel(nn.Module):
    """Spectrograms (batch, frequencies, frames) to logits (batch, ⌈frames / 2⌉, characters)."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, CHANNELS, (41, 11), stride=(2, 2), padding=(20, 5)),
            nn.BatchNorm2d(CHANNELS),
            nn.Hardtanh(0, 20),
            nn.Conv2d(CHANNELS, CHANNELS, (21, 11), stride=(2, 1), padding=(10, 5)),
            nn.BatchNorm2d(CHANNELS),
            nn.Hardtanh(0, 20),
        )
        features = CHANNELS * -(-FREQUENCIES // 4)
        widths = [features, *[SPEECH_UNITS] * (SPEECH_LAYERS - 1)]
        self.layers = nn.ModuleList(nn.LSTM(width, SPEECH_UNITS, batch_first=True) for width in widths)
        self.norms = nn.ModuleList(nn.BatchNorm1d(SPEECH_UNITS) for _ in widths)
        self.lookahead = nn.Conv1d(SPEECH_UNITS, SPEECH_UNITS, LOOKAHEAD + 1, groups=SPEECH_UNITS, bias=False)
        self.head = nn.Linear(SPEECH_UNITS, CHARACTERS, bias=False)

    def forward(self, spectrograms: Tensor) -> Tensor:
        """Logits (batch, ⌈frames / 2⌉, characters) of spectrograms (batch, frequencies, frames)."""
        x = self.convolutions(spectrograms.unsqueeze(1)).flatten(1, 2).transpose(1, 2)
        for number, layer in enumerate(self.layers):
            x, _ = layer(x if number == 0 else self._normed(number - 1, x))
        x = F.hardtanh(self.lookahead(F.pad(x.transpose(1, 2), (0, LOOKAHEAD))), 0, 20).transpose(1, 2)
        logits: Tensor = self.head(self._normed(SPEECH_LAYERS - 1, x))
        return logits

    def _normed(self, number: int, x: Tensor) -> Tensor:
        """Batch normalisation over samples and frames; (batch, frames, units) to the same."""
        normed: Tensor = self.norms[number](x.flatten(0, 1)).view(x.shape)
        return normed


class SpeechRecipe(Recipe):
    """The speech network on `batch_size` spectrograms of `seq_len` frames."""

    def __init__(self, spec: WorkloadSpec) -> None:
        super().__init__(spec)
        if spec.batch_size is None or spec.seq_len is None:
            raise ValueError("the spec is not resolved")
        self.batch_size, self.frames = spec.batch_size, spec.seq_len

    def model(self) -> nn.Module:
        """The network with random weights."""
        return SpeechModel()

    def batch(self, rank: int) -> tuple[Inputs, Any]:
        """Spectrograms (batch, 161, frames), and the characters (batch, characters) to recognise."""
        length = max(1, -(-self.frames // 2) // FRAMES_A_CHARACTER)
        spectrograms = torch.randn(self.batch_size, FREQUENCIES, self.frames)
        return spectrograms, torch.randint(1, CHARACTERS, (self.batch_size, length))

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        """Connectionist temporal classification (CTC), in fp32, by character and averaged over the batch."""
        samples, frames = outputs.shape[:2]
        log_probabilities = outputs.float().log_softmax(-1).transpose(0, 1)
        lengths = (frames,) * samples, (targets.shape[1],) * samples
        return F.ctc_loss(log_probabilities, targets, *lengths)

    def input_description(self) -> str:
        """'96 frames'."""
        return f"{self.frames} frames"
