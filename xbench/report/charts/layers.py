"""Charts of layers and of the link: backward passes, gradient sizes, and the cost function of one all-reduce."""

from __future__ import annotations

import math
from collections.abc import Sequence

from xbench.planning.cost import CostCurve
from xbench.records import CostModel, Label, Layer
from xbench.report import sentences
from xbench.report.answer import layer_figures
from xbench.report.charts import axes
from xbench.report.page.model import Cell, Figure, Table, Trace, columns
from xbench.text import capitalized
from xbench.units import format_bytes, format_seconds, format_signed_percent

NAMED = 45
"""Most layers for which the axis shows all names; with more, it shows those of the largest gradients."""

MIN_PX, MAX_PX, LAYER_PX = 260, 1100, 15
MARGIN_PX = 130


def waterfall(
    layers: Sequence[Layer], cost: CostModel | None, label: Label, of: str = "", number: int = 1
) -> Figure | None:
    """Draw backward passes in gradient-ready order, each with its gradient's transfer alone and its bytes.

    `of` and `number` distinguish several workloads on one page.
    """
    if not layers:
        return None
    curve = _curve(cost)
    sends_s = [curve(float(layer.grad_bytes)) if curve is not None else 0.0 for layer in layers]
    longest_s = max(layer.ready_s + send_s for layer, send_s in zip(layers, sends_s, strict=True))
    unit = axes.time_unit(longest_s)
    labels: list[Label] = [label] if curve is None else [label, "simulated"]
    traces = _waterfall_traces(layers, sends_s if curve is not None else None, unit, label)
    ticks, sizes = _ticks(layers), axes.byte_ticks(max(layer.grad_bytes for layer in layers), 3)
    return Figure(
        key=f"waterfall-{number}",
        title=f"Layers{of} in the order in which their gradients become ready",
        labels=labels,
        told=_told(curve is not None),
        traces=traces,
        layout={
            "barmode": "overlay",
            "bargap": 0.15,
            "xaxis": axes.time_axis("time since backward began", unit, domain=[0, 0.76]),
            "xaxis2": {"title": {"text": "gradients"}, "domain": [0.81, 1], "anchor": "y",
                       **sizes},
            "yaxis": {"tickvals": ticks, "ticktext": [axes.shortened(layers[tick - 1].name) for tick in ticks],
                      "range": [len(layers) + 0.6, 0.4], "showgrid": False, "tickfont": {"size": 10}},
            "legend": axes.BELOW,
            "margin": {"t": 8, "r": 16},
        },
        narrow={"xaxis.domain": [0, 0.7], "xaxis2.domain": [0.78, 1],
                "xaxis.title.text": f"time [{unit.name}]", "xaxis2.title.text": "bytes", "xaxis2.tickangle": 0,
                "xaxis2.tickvals": sizes["tickvals"][-1:], "xaxis2.ticktext": sizes["ticktext"][-1:],
                "yaxis.ticktext": [axes.shortened(layers[tick - 1].name, 14) for tick in ticks]},
        height=MARGIN_PX + max(MIN_PX, min(MAX_PX, LAYER_PX * len(layers))),
        table=_table(layers, sends_s, curve is not None),
    )  # fmt: skip


def _waterfall_traces(
    layers: Sequence[Layer], sends_s: Sequence[float] | None, unit: axes.Unit, label: Label
) -> list[Trace]:
    """Return the backward passes, the transfer time of each gradient alone if it is known, and the bytes."""
    told = [
        f"<b>{axes.plain(layer.name)}</b> ({axes.plain(layer.kind)})<br>backward {format_seconds(layer.backward_s)}, "
        f"ready after {format_seconds(layer.ready_s)} ({label})<br>{format_bytes(layer.grad_bytes)} of gradients"
        + (f", {format_seconds(send_s)} by itself on the link (simulated)" if sends_s is not None else "")
        for layer, send_s in zip(layers, sends_s or [0.0] * len(layers), strict=True)
    ]
    common: Trace = {"type": "bar", "orientation": "h", "y": list(range(1, len(layers) + 1)), "customdata": told,
                     "hovertemplate": axes.HOVER}  # fmt: skip
    traces: list[Trace] = [
        {**common, "name": f"backward pass ({label})",
         "base": [unit.of(max(0.0, layer.ready_s - layer.backward_s)) for layer in layers],
         "x": [unit.of(min(layer.backward_s, layer.ready_s)) for layer in layers], "marker": {"color": "--c1"}},
    ]  # fmt: skip
    if sends_s is not None:
        traces.append(
            {**common, "name": "its gradients travel, alone on the link (simulated)",
             "base": [unit.of(layer.ready_s) for layer in layers], "x": unit.all(sends_s),
             "marker": {"color": "--c5", "pattern": {"shape": "/", "fgcolor": "--pattern", "fillmode": "overlay",
                                                     "size": 6, "solidity": 0.2}}}
        )  # fmt: skip
    traces.append(
        {**common, "name": "bytes of its gradients", "x": [layer.grad_bytes for layer in layers], "xaxis": "x2",
         "marker": {"color": "--c3"}}
    )  # fmt: skip
    return traces


def _told(travels: bool) -> str:
    left = "Top to bottom, from the loss towards the input. Left: the backward pass"
    if not travels:
        return f"{left}. Right: the gradients' bytes."
    return (
        f"{left}, and from the moment its gradients are ready how long an all-reduce of them alone would take. A long "
        "one beside a short backward pass cannot be hidden; many short ones cost more than their sum in one bucket. "
        "Right: the gradients' bytes."
    )


def _curve(cost: CostModel | None) -> CostCurve | None:
    """Return T(bytes), if the record holds enough to make it."""
    try:
        return CostCurve.of(cost) if cost is not None else None
    except ValueError:
        return None


def _ticks(layers: Sequence[Layer]) -> list[int]:
    """Return the rows named on the axis: all, or those of the largest gradients with enough room between them."""
    if len(layers) <= NAMED:
        return list(range(1, len(layers) + 1))
    apart = math.ceil(len(layers) / NAMED)
    chosen: list[int] = []
    for place in sorted(range(1, len(layers) + 1), key=lambda place: -layers[place - 1].grad_bytes):
        if all(abs(place - other) >= apart for other in chosen):
            chosen.append(place)
    return sorted(chosen)


def _table(layers: Sequence[Layer], sends_s: Sequence[float], sent: bool) -> Table:
    rows: list[list[Cell]] = []
    for place, (layer, send_s) in enumerate(zip(layers, sends_s, strict=True), start=1):
        *figures, share = layer_figures(layer)
        rows.append([
            layer.name, str(place), layer.kind, *figures, *([format_seconds(send_s)] if sent else []), share,
        ])  # fmt: skip
    times = ("forward", "backward", "ready", *(["alone on the link (simulated)"] if sent else []))
    headings = columns(("layer", "#", "kind", "parameters", "gradient", *times, "share of step"), ("layer", "kind"))
    return Table("Every layer in figures", headings, rows, bulk=True)


def link_cost(cost: CostModel | None, label: Label) -> Figure | None:
    """Draw T(bytes) as measured, with the fitted line, on logarithmic axes. None if no size was measured."""
    found = [point for point in cost.points if point.transfer_s > 0 and point.nbytes > 0] if cost is not None else []
    if cost is None or not found:
        return None
    unit = axes.time_unit(max(point.transfer_s for point in found))
    sizes = [point.nbytes for point in found]
    measured = axes.points(
        sizes,
        unit.all(point.transfer_s for point in found),
        [f"{format_bytes(p.nbytes)}: {format_seconds(p.transfer_s)} ({label}), {p.repetitions} times" for p in found],
        name=f"measured, 95 % CI ({label})",
        error_y=axes.whiskers(((p.transfer_s, p.ci95) for p in found), unit.per_s, thickness=1.2, width=3),
        marker={"color": "--c1", "size": 8},
    )
    line: Trace = {
        "type": "scatter", "mode": "lines", "name": "fitted line a + b·bytes", "x": sizes,
        "y": [unit.of(cost.alpha_s + cost.beta_s_per_byte * size) for size in sizes],
        "line": {"color": "--c2", "dash": "dash", "width": 2}, "hoverinfo": "skip",
    }  # fmt: skip
    curve = _curve(cost)
    planned: Trace = {
        "type": "scatter", "mode": "lines", "name": "what plans are made with", "x": sizes,
        "y": [unit.of(curve(float(size))) for size in sizes] if curve is not None else [],
        "line": {"color": "--c5", "dash": "solid", "width": 2}, "hoverinfo": "skip",
    }  # fmt: skip
    note = f"{capitalized(sentences.COST_COLUMNS)} {sentences.waits_line(cost)}"
    return Figure(
        key="link-cost",
        title=f"What one {cost.collective} costs",
        labels=[label],
        told=sentences.cost_line(cost) + ".",
        traces=[line, planned, measured],
        layout={
            "xaxis": {"type": "log", "title": {"text": "bytes"}, **axes.byte_decades(sizes)},
            "yaxis": {"type": "log", "title": {"text": f"time [{unit.name}]"}, "dtick": 1, "tickformat": "~r"},
            "legend": axes.BELOW,
            "margin": {"t": 8},
        },
        height=380,
        table=Table("Every size in figures", columns(COST_HEADINGS), cost_rows(cost), note),
    )


COST_HEADINGS = ("size", "transfer", "95 % CI", "wait", "fit", "times")


def cost_rows(cost: CostModel) -> list[list[str]]:
    """Return the measured points of the cost model. The wait for late ranks is not part of the transfer."""
    rows = []
    for point in cost.points:
        fitted_s = cost.alpha_s + cost.beta_s_per_byte * point.nbytes
        rows.append([
            format_bytes(point.nbytes),
            format_seconds(point.transfer_s),
            f"{format_seconds(point.ci95[0])} – {format_seconds(point.ci95[1])}",
            format_seconds(point.wait_s),
            format_signed_percent(fitted_s / point.transfer_s - 1 if point.transfer_s > 0 else None),
            str(point.repetitions),
        ])  # fmt: skip
    return rows
