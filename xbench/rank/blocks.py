"""Timed blocks in the journal of a rank: the stamps of one job's steps, and the loss at the end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from xbench.rank.events import BlockTimed, Warned
from xbench.rank.session import Session
from xbench.spec import ModeSpec


def tell_block(
    session: Session,
    mode: ModeSpec,
    place: tuple[int, int],
    warmup: int,
    origin: tuple[float, Any],
    stamps: Sequence[Any],
    pattern: tuple[int, ...] | None = None,
) -> None:
    """Write a block to the rank's journal, and free its stamps.

    `place` is round and position. `origin` is one instant, on the machine's clock [s] and as a stamp. The first of
    `stamps` is the start of the block, each other one the end of a step. The first `warmup` steps do not count.
    """
    session.clock.flush()
    elapsed_s = session.clock.elapsed_s
    origin_s, began = origin
    stamps_s = [round(origin_s + elapsed_s(began, stamp), 7) for stamp in stamps]
    turn, position = place
    session.journal.write(
        BlockTimed(mode=mode.text, round=turn, position=position, warmup=warmup, stamps=stamps_s, pattern=pattern)
    )
    session.clock.reset()
    session.gpu.report(stamps_s[warmup], stamps_s[-1], mode=mode.text, round=turn)


def tell_loss(session: Session, mode: ModeSpec, what: str) -> None:
    """Write a warning if the block's last loss is infinite or NaN on this rank, once per mode."""
    loss = float(session.loss.sum()) if session.loss is not None else 0.0
    if not math.isfinite(loss) and mode.text not in session.told_lost:
        session.told_lost.add(mode.text)
        told = f"{what}: the loss of rank {session.rank} is {loss} at the end of the block"
        session.journal.write(Warned(message=told))
