"""Hooks of a schedule on a module, which copies and files of the module leave out.

`copy.deepcopy(model)` and `torch.save(model)` take a module's tables of hooks along. A hook of a schedule belongs to
one attachment, and may hold process groups, which no file takes. Both ask the table for `__reduce_ex__`, and find
`_Others` there. A shallow copy shares the table, and so the hooks, as it shares the parameters.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from torch.utils.hooks import RemovableHandle


def uncopied(handle: RemovableHandle) -> RemovableHandle:
    """Leave this hook of a module out of the module's copies and files; return its handle."""
    for reference in (handle.hooks_dict_ref, *handle.extra_dict_ref):
        table: Any = reference()
        others = vars(table).get("__reduce_ex__")
        if others is None:
            others = table.__reduce_ex__ = _Others(table)
        others.left_out.add(handle.id)
    return handle


class _Others:
    """`__reduce_ex__` of a table of hooks, without those in `left_out`."""

    def __init__(self, table: OrderedDict[int, Any]) -> None:
        self._table = table
        self.left_out: set[int] = set()

    def __call__(self, protocol: int) -> tuple[Any, ...]:
        kept = [(number, hook) for number, hook in self._table.items() if number not in self.left_out]
        return OrderedDict, (kept,)
