"""How long ranks that have their cores for themselves poll, and what a record says of it."""

from __future__ import annotations

POLL_S = 5e-3
"""Past that, what it costs to be woken is little beside the wait."""

NOTE = f"ranks have cores of their own: who waits for gradients polls for {POLL_S * 1e3:g} ms before it sleeps"
