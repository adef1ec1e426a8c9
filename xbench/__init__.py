"""xbench: measure a data-parallel training step, find the fastest gradient-communication schedule, and prove it.

The public API, and nothing else. Nothing here imports torch until it is used.

    attach(model, optimizer, schedule=..., plan=...)   put a schedule under a training loop
    tune_host()                                        make steps and small all-reduces on CPUs faster
    load_result(path)                                  a saved record, of whatever kind; record.frame(NAME) is a table
    Profile, Comparison, Plan                          what records are made of
    XbenchError                                        the root of every error
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from xbench.version import __version__

if TYPE_CHECKING:
    from xbench.errors import XbenchError
    from xbench.host_tuning import tune_host
    from xbench.records import Comparison, Plan, Profile
    from xbench.records import load as load_result
    from xbench.schedules.attach import attach

__all__ = ["Comparison", "Plan", "Profile", "XbenchError", "__version__", "attach", "load_result", "tune_host"]

_HOMES = {
    "attach": ("xbench.schedules.attach", "attach"),
    "tune_host": ("xbench.host_tuning", "tune_host"),
    "load_result": ("xbench.records", "load"),
    "Profile": ("xbench.records", "Profile"),
    "Comparison": ("xbench.records", "Comparison"),
    "Plan": ("xbench.records", "Plan"),
    "XbenchError": ("xbench.errors", "XbenchError"),
}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'xbench' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    return getattr(importlib.import_module(module), attribute)
