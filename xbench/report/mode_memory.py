"""Memory of a rank under each mode of a comparison, as text."""

from __future__ import annotations

from xbench.records import Comparison, ModeResult
from xbench.units import format_bytes


def with_memory(record: Comparison) -> list[ModeResult]:
    """Return the timed modes whose memory is known."""
    return [result for result in record.modes.values() if result.is_trusted and result.memory is not None]


def memory_cells(result: ModeResult) -> dict[str, str]:
    """Format a rank's memory: the peak, and its four parts."""
    memory = result.memory
    assert memory is not None
    return {
        "peak": format_bytes(memory.peak_bytes) + (" (sum)" if memory.by == "counted" else ""),
        "parameters": format_bytes(memory.parameter_bytes),
        "gradients": format_bytes(memory.gradient_bytes),
        "optimizer": format_bytes(memory.optimizer_bytes),
        "activations": format_bytes(memory.activation_bytes),
    }
