"""Workloads, which define a training step: a model, its batch, a loss and an optimizer.

| file | content |
| --- | --- |
| `catalog` | the registry: names, families, published sizes and defaults |
| `parse` | text to spec, spec to resolved spec |
| `probe` | checks in a separate process that workloads can be built and fit in memory |
| `batches` | nests of tensors; batches of a user's DataLoader or iterator |
| `build` | resolved spec to a live `Workload`, on a rank; activation checkpointing of its blocks |
| `libraries` | names of models of timm and transformers |
| `vision`, `text`, `synthetic`, `custom` | recipes, one for each kind of model |
| `hf_models` | recipes of transformers' models |
| `training_step` | the parts of a training step, which every measurement runs |
| `loading` | the user's file, read and imported |
| `preflight`, `memory` | code of the process that `probe` starts |

Importing this package does not import torch; only `build` and the files below it in the table do.
"""

from __future__ import annotations

from xbench.workloads.catalog import WORKLOADS, family_of
from xbench.workloads.parse import check_one_batch, check_plain_step, parse_workload, resolve

__all__ = ["WORKLOADS", "check_one_batch", "check_plain_step", "family_of", "parse_workload", "resolve"]
