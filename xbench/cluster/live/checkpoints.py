"""Checkpoints of a live job: files in its folder that are whole, or are passed over. No torch.

A file is one line of JSON (format, key of the job, steps, length and CRC-32 of what follows) and then the content. It
is written under another name, synchronised with the disk, and renamed, so that whoever dies in between leaves the one
before it. What a power cut or another program did to a file is found by its length and its CRC; then the one before it
counts, which is why two are kept. One with another job's key is left alone.
"""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import NamedTuple

from xbench.record_files import sync_folder

FORMAT = "xbench checkpoint 1"
KEPT = 2
HEADER_BYTES = 4096
PART = ".part"


class Checkpoint(NamedTuple):
    """A file with a valid first line and the right length; `content` compares the rest."""

    path: Path
    key: str
    steps: int
    offset: int
    length: int
    crc: int

    def content(self) -> bytes:
        """What was kept. Raises ValueError when it is not what was written, OSError when it cannot be read."""
        with open(self.path, "rb") as stream:
            stream.seek(self.offset)
            content = stream.read(self.length)
        if len(content) != self.length or zlib.crc32(content) != self.crc:
            raise ValueError("its content is not what was written")
        return content


def write(folder: Path, key: str, steps: int, content: bytes | memoryview) -> Path:
    """Keep a checkpoint, and only the one before it besides. Raises OSError, and leaves what was there."""
    view = memoryview(content).cast("B")
    header = {"format": FORMAT, "key": key, "steps": steps, "length": len(view), "crc": zlib.crc32(view)}
    path = folder / f"checkpoint-{steps:08}.xb"
    temporary = path.with_name(path.name + PART)
    try:
        with open(temporary, "wb") as stream:
            stream.write(json.dumps(header).encode() + b"\n")
            stream.write(view)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(folder)
    for old in candidates(folder, key)[0][KEPT:]:
        old.path.unlink(missing_ok=True)
    return path


def read_header(path: Path) -> Checkpoint:
    """A file's first line, and whether its length is right. Raises ValueError with the reason, or OSError."""
    with open(path, "rb") as stream:
        line = stream.readline(HEADER_BYTES)
        size = os.fstat(stream.fileno()).st_size
    try:
        header = json.loads(line)
        if header["format"] != FORMAT:
            raise ValueError
        found = Checkpoint(
            path, str(header["key"]), int(header["steps"]), len(line), int(header["length"]), int(header["crc"])
        )
    except (ValueError, KeyError, TypeError):
        raise ValueError("it is no checkpoint of xbench") from None
    if size != found.offset + found.length:
        raise ValueError(f"it has {size} bytes of {found.offset + found.length}")
    return found


def candidates(folder: Path, key: str) -> tuple[list[Checkpoint], list[str]]:
    """The job's checkpoints by their first lines, the newest first; and what was passed over, each with its reason."""
    found: list[Checkpoint] = []
    skipped: list[str] = []
    for path in sorted(folder.glob("checkpoint-*.xb")):
        try:
            one = read_header(path)
        except (ValueError, OSError) as error:
            skipped.append(f"{path.name}: {error}")
            continue
        if one.key == key:
            found.append(one)
        else:
            skipped.append(f"{path.name}: it is another job's")
    return sorted(found, key=lambda one: -one.steps), skipped


def newest(folder: Path, key: str) -> tuple[int, bytes | None, list[str]]:
    """(steps, content) of the newest whole checkpoint, or (0, None); and what was passed over, each with its reason."""
    found, skipped = candidates(folder, key)
    for one in found:
        try:
            return one.steps, one.content(), skipped
        except (ValueError, OSError) as error:
            skipped.append(f"{one.path.name}: {error}")
    return 0, None, skipped


def at(folder: Path, key: str, steps: int) -> bytes | None:
    """What was kept of that step; None for step 0. Raises ValueError and OSError."""
    if steps == 0:
        return None
    for one in candidates(folder, key)[0]:
        if one.steps == steps:
            return one.content()
    raise ValueError(f"{folder} has no checkpoint of step {steps}")


def kept_steps(folder: Path, key: str) -> int:
    """Steps of the newest checkpoint, by first lines alone; 0 without one."""
    found, _ = candidates(folder, key)
    return found[0].steps if found else 0


def clear_parts(folder: Path) -> None:
    """Remove what a process that died was writing. Only while nobody writes."""
    for path in folder.glob(f"checkpoint-*{PART}"):
        path.unlink(missing_ok=True)
