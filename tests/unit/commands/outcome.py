"""Outcomes of commands, and the fixtures that run one."""

from __future__ import annotations

from collections.abc import Callable

Outcome = tuple[int, str, str]
"""Exit code, stdout, stderr."""
Run = Callable[..., Outcome]
Refused = Callable[..., str]
