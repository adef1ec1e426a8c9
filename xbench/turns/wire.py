"""Message format between clients and the arbiter: lines over a Unix stream socket, each beginning with a letter.

| client sends | with | answer of the arbiter |
| --- | --- | --- |
| `h` hello | job, device | `k` |
| `b` begin a block | block, pattern | `k` with the living jobs, when all have asked |
| `a` acquire | | `g`, when it is its turn |
| `r` release | | nothing |
| `x` end the block | block | `k` |
| `m` meet at a barrier | name | `k` with the living jobs, when all have come |
| `w` reason of the wait | | `w` with the end of a sentence |

An `e` with a sentence answers an invalid message. A client leaves by closing its connection, which works for a killed
job, too. A turn costs three messages of two bytes. A release has no answer, so that the releasing job need not wait.
Only lines with content carry JSON.
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
