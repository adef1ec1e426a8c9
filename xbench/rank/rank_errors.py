"""An error in a rank, in words: the line of the user's code that raised it, and what it says.

The rank writes both to its journal, and the parent makes a sentence of them.
"""

from __future__ import annotations

import os
import re
import sysconfig
import traceback
from pathlib import Path

from xbench.gpu_errors import explain
from xbench.spec import RunSpec

MOST = 1200
"""Letters of an error's text: DDP's longest message, with the indices of a hundred parameters."""

_STACK = re.compile(
    r"\s*(?:Exception raised from|C\+\+ CapturedTraceback|frame #\d+:|To execute this test|"
    r"CUDA kernel errors might be asynchronously).*",
    re.DOTALL,
)


def message_of(error: BaseException) -> str:
    """'ValueError: shapes differ', in one line and without torch's C++ frames; the type alone where it says nothing."""
    kind = type(error).__name__
    text = " ".join(_STACK.sub("", str(error)).split())
    return f"{kind}: {shortened(text)}" if text else kind


def shortened(text: str, most: int = MOST) -> str:
    """The text, or as many whole words of it as fit, and an ellipsis."""
    if len(text) <= most:
        return text
    return text[:most].rpartition(" ")[0] + " …"


def place_of(error: BaseException) -> str | None:
    """'train.py:12', the innermost line of the user's code that an error passed through; None where there is none.

    The user's code is what is neither ours nor torch's; files beside the interpreter's and installed ones come first.
    """
    import torch

    ours = (str(Path(__file__).parents[1]) + os.sep, str(Path(torch.__file__).parent) + os.sep, "<")
    installed = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(ours)]
    own = [frame for frame in frames if not frame.filename.startswith(installed)] or frames
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else None


def shortage_of(run: RunSpec, job: int, error: BaseException) -> str | None:
    """'ran out of memory with …' for an error that says so; None for any other."""
    said = explain(type(error).__name__, str(error), run.workloads[job])
    return said.what if said is not None and said.out_of_memory else None
