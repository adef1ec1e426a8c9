"""Recurrent networks, which the program of the MG-WFBP paper trains beside its image models.

- `lstm-lm`: the large model of Zaremba et al. (arXiv 1409.2329): two LSTM layers of 1500 units, a vocabulary of 10 000
  words, dropout 0.65. Every position predicts the next token.
- `deepspeech2`: Deep Speech 2 (Amodei et al., arXiv 1512.02595) with five LSTM layers of 800 units in one direction, a
  lookahead convolution over 20 later frames, and CTC over 28 characters and the blank.

A spectrogram has 161 frequencies (windows of 20 ms at 16 kHz) and one frame every 10 ms. The convolutions halve the
frames. A text has one character to four of the remaining frames, so that CTC always has a path.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from xbench.spec import WorkloadSpec
from xbench.workloads.nested import Inputs
from xbench.workloads.text import TokenRecipe
from xbench.workloads.workload import Recipe

WORDS, UNITS, DROPOUT = 10_000, 1500, 0.65
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
        self.layers = nn.LSTM(UNITS, UNITS, num_layers=2, dropout=DROPOUT, batch_first=True)
        self.dropout = nn.Dropout(DROPOUT)
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
