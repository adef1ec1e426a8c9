"""Description of an error in a rank: the line of the user's code that raised it, and its message.

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
"""Maximum length of an error's text [characters]: DDP's longest message, with the indices of a hundred parameters."""

_STACK = re.compile(
    r"\s*(?:Exception raised from|C\+\+ CapturedTraceback|frame #\d+:|To execute this test|"
    r"CUDA kernel errors might be asynchronously).*",
    re.DOTALL,
)


def message_of(error: BaseException) -> str:
    """Return 'ValueError: shapes differ', in one line without torch's C++ frames.

    If the error has no text, return its type alone.
    """
    kind = type(error).__name__
    text = " ".join(_STACK.sub("", str(error)).split())
    return f"{kind}: {shortened(text)}" if text else kind


def shortened(text: str, most: int = MOST) -> str:
    """Return the text, or as many whole words of it as fit, and an ellipsis."""
    if len(text) <= most:
        return text
    return text[:most].rpartition(" ")[0] + " …"


def place_of(error: BaseException) -> str | None:
    """Return 'train.py:12', the innermost line of the user's code that an error passed through; None if there is none.

    Code is the user's if it is neither ours nor torch's. Files outside the standard library and installed packages are
    preferred.
    """
    import torch

    ours = (str(Path(__file__).parents[1]) + os.sep, str(Path(torch.__file__).parent) + os.sep, "<")
    installed = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(ours)]
    own = [frame for frame in frames if not frame.filename.startswith(installed)] or frames
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else None


def shortage_of(run: RunSpec, job: int, error: BaseException) -> str | None:
    """Return 'ran out of memory with …' for an error of that kind; None for any other."""
    said = explain(type(error).__name__, str(error), run.workloads[job])
    return said.what if said is not None and said.out_of_memory else None
