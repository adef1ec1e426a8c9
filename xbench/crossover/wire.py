"""What clients and the arbiter say to each other over a Unix stream socket: lines, one letter first.

| client says | with | the arbiter answers |
| --- | --- | --- |
| `h` hello | job, device | `k` |
| `b` begin a block | block, pattern | `k` with the living jobs, when all have asked |
| `a` acquire | | `g`, when it is its turn |
| `r` release | | nothing |
| `x` end the block | block | `k` |
| `m` meet at a barrier | name | `k` with the living jobs, when all have come |
| `w` why do I wait | | `w` with the end of a sentence |

An `e` with a sentence answers what cannot be. To leave is to hang up: it works for a job that was killed, too. A turn
costs three messages of two bytes; a release is not answered because the releasing job has better things to do than to
wait. Only lines with content carry JSON.
"""

from __future__ import annotations

import json
from typing import Any

HELLO, BEGIN, ACQUIRE, RELEASE, END, MEET, WHY = b"h", b"b", b"a", b"r", b"x", b"m", b"w"
OK, GRANT, ERROR = b"k", b"g", b"e"

MAX_LINE_BYTES = 65536
MAX_PATH_BYTES = 107
"""Longest path of a Unix socket: sun_path holds 108 bytes with its final zero."""


def pack(letter: bytes, content: Any = None) -> bytes:
    """One line: a letter and, unless it is None, content as JSON."""
    return letter + b"\n" if content is None else letter + json.dumps(content).encode() + b"\n"


def unpack(line: bytes) -> tuple[bytes, Any]:
    """Letter and content of a line without its end. Raises ValueError for content that is not JSON."""
    return line[:1], json.loads(line[1:]) if len(line) > 1 else None
