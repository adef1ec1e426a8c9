"""A planner of six gradients on a link of known cost, and candidates for a trial."""

from __future__ import annotations

import numpy as np

from xbench.planning.auto import Candidate
from xbench.planning.contention import Contention
from xbench.planning.plans import Planner
from xbench.planning.step import Gradient, StepModel
from xbench.records import CostModel

COST = CostModel(
    backend="gloo", world_size=2, alpha_s=1e-3, beta_s_per_byte=1e-7, alpha_ci95=(1e-3, 1e-3), beta_ci95=(1e-7, 1e-7),
    max_relative_residual=0.0, points=[],
)  # fmt: skip
GRADIENTS = tuple(Gradient(f"g{k}", 20_000 * (k % 3 + 1), 0.01 * (k + 1)) for k in range(6))
STEP = StepModel(GRADIENTS, forward_s=0.02, backward_s=0.06, optimizer_s=0.005)
SHARED = Contention(np.zeros(1), np.full((2, 1), 1.5), np.full((2, 1), 1.5), hook_s=0.001)
PLANNER = Planner(STEP, COST, SHARED)


def candidates(*seconds: float) -> list[Candidate]:
    return [Candidate(f"c{k}", [[k]], step_s) for k, step_s in enumerate(seconds)]
