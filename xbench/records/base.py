"""Fields of every measured record."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from xbench.field_types import Text
from xbench.records.measured_parts import EmulatedLink
from xbench.records.parts import Environment, FabricRecord, Result
from xbench.spec import RunSpec

SCHEMA_VERSION = 1
GPU_MISSING = "why NVML had nothing, or nothing more, to say on a GPU"


class RecordBase(Result):
    """Base of the records of real or emulated runs."""

    schema_version: Literal[1] = 1
    created: Text = Field(description="ISO 8601, UTC")
    command: Text
    spec: RunSpec
    environment: Environment
    fabric: FabricRecord
    emulated: EmulatedLink | None = Field(default=None, description="of an emulated fabric")
    complete: bool = Field(description="false: the run ended early, and the record has what was measured by then")
    error: Text | None = Field(default=None, description="why the run ended early, one sentence")
    warnings: list[Text] = []
