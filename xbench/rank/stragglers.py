"""Search of the profile for ranks and links that hold the others back. `stats.stragglers` decides.

The steps are those of the quiet step and the bare ones at the end of the profile. In these no rank waits for another.
Links are compared if there are several hosts, and once: two jobs use the same ones.
"""

from __future__ import annotations

import socket
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from xbench.planning.cost import CostCurve
from xbench.profilers.host_links import exchange_bytes, measure_exchanges
from xbench.profilers.summary import own_steps
from xbench.rank.parity_checker import gathered
from xbench.rank.session import Session
from xbench.records import CostModel, SlowLink, SlowRank
from xbench.stats.stragglers import Exchanges, OwnSteps, Pair, slow_links, slow_ranks
from xbench.units import parse_rate

CONFIRMING = 5
"""Steps with a loader that must confirm a slow rank. By chance, five are longer than five others in 1 of 252 cases."""


class Place(NamedTuple):
    """Host of a rank: its number, and the name of its machine."""

    host: int
    machine: str


def place_of(session: Session) -> Place:
    """Return the place of this rank."""
    return Place(session.host, socket.gethostname())


def host_names(places: Sequence[Place]) -> dict[int, str]:
    """Return the names of the hosts: those of their machines, or 'host 1' if hosts share a machine or its name."""
    machines = {place.host: place.machine for place in places}
    if len(set(machines.values())) == len(machines):
        return dict(sorted(machines.items()))
    return {host: f"host {host}" for host in sorted(machines)}


def ranks_behind(
    raws: Sequence[dict[str, Any]],
    again: Sequence[Sequence[float]],
    waited: Sequence[float],
    places: Sequence[Place],
    fed: Sequence[Sequence[float]] | None = None,
) -> list[SlowRank]:
    """Return the slow ranks.

    The arguments are by rank: its steps, bare steps [s] at the end of the profile, the share of the time in which it
    waited for its processor, and its place. With a loader that works ahead, `fed` has bare steps with it [s], which
    then decide: the other steps keep one batch.
    """
    names = host_names(places)
    hosts = [names[place.host] if len(names) > 1 else None for place in places]
    ranks = own_steps(raws, waited, hosts)
    if fed is None:
        return slow_ranks([replace(own, again_s=later_s) for own, later_s in zip(ranks, again, strict=True)])
    return slow_ranks([_fed(*one) for one in zip(ranks, again, fed, strict=True)])


def _fed(own: OwnSteps, without_s: Sequence[float], with_s: Sequence[float]) -> OwnSteps:
    """Return a rank's steps with its loader. They wait for batches as long as they take longer than those without.

    The last ones confirm what the others show.
    """
    waits_s = max(0.0, statistics.median(with_s) - statistics.median(without_s))
    parts_s = {**own.parts_s, "input": own.parts_s["input"] + waits_s}
    return replace(own, steps_s=with_s[:-CONFIRMING], again_s=with_s[-CONFIRMING:], parts_s=parts_s)


def links_behind(
    session: Session, places: Sequence[Place], cost: CostModel, grad_bytes: int, step_s: float
) -> list[SlowLink]:
    """Compare the links between the hosts. Collective over all ranks.

    Nothing is measured if there is one host, if links are emulated, or if two hosts have no rate to be held to.
    """
    names, rate = host_names(places), session.run.fabric.rate
    if len(names) < (3 if rate is None else 2) or session.program.emulated is not None or session.job > 0:
        return []
    order = list(names)
    leaders = [next(rank for rank, place in enumerate(places) if place.host == host) for host in order]
    nbytes = exchange_bytes(cost.beta_s_per_byte, grad_bytes)
    session.part("links between hosts")
    measured = gathered(measure_exchanges(leaders, nbytes, session.device, session.clock, session.note))
    times_s: dict[Pair, list[float]] = {}
    busy: dict[Pair, float] = {}
    for own, leader in enumerate(leaders):
        for one in measured[leader]:
            pair = (min(own, one.other), max(own, one.other))
            before_s = times_s.get(pair, [0.0] * len(one.times_s))
            times_s[pair] = [max(both) for both in zip(before_s, one.times_s, strict=True)]
            busy[pair] = max(busy.get(pair, 0.0), one.busy)
    return slow_links(
        Exchanges(
            nbytes=nbytes,
            times_s=times_s,
            hosts=list(names.values()),
            all_gradients_s=float(CostCurve.of(cost)(grad_bytes)),
            step_s=step_s,
            asked_bps=parse_rate(rate) if rate is not None else None,
            busy=busy,
        )
    )
