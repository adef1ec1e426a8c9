"""An error of the user's code in one sentence: its line, and all that it says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from xbench.rank.rank_errors import MOST, message_of, place_of


def test_the_innermost_line_of_the_users_code(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "import torch\n\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        return helper(x)\n\n"
        "def helper(x):\n    return torch.nn.functional.linear(x, x[:, :1])\n"
    )
    spec = importlib.util.spec_from_file_location("train", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(RuntimeError) as caught:
        module.Net()(torch.ones(2, 2))
    assert place_of(caught.value) == "train.py:8"


def test_an_error_that_no_code_of_the_user_raised_has_no_place() -> None:
    assert place_of(ValueError("never raised")) is None


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (AssertionError(), "AssertionError"),
        (ValueError("shapes\n   differ"), "ValueError: shapes differ"),
        (RuntimeError("no way\nException raised from f at g.cpp:1\nframe #0: x"), "RuntimeError: no way"),
    ],
)
def test_all_lines_but_those_of_the_stack(error: Exception, said: str) -> None:
    assert message_of(error) == said


def test_a_long_text_ends_after_a_whole_word() -> None:
    said = message_of(ValueError("word " * 1000))
    assert len(said) <= MOST + 20
    assert said.endswith("word …")
