"""Planning: from measured gradients and a measured link to the fastest schedule, with numpy only.

`step` holds the compute part of a profile. `cost` fits T(bytes), `merge` chooses buckets, and `simulate` puts them on a
timeline. `bounds` gives lower bounds of a step. `plans` makes the plan of each mode. `turns` finds the turn order of
jobs that share a device, and `spatial_turns` does so for jobs of partial backpropagation. `next_forward` models
schedules that still send gradients during the next forward pass.
"""

from xbench.planning.bounds import bounds
from xbench.planning.cost import CostCurve, fit
from xbench.planning.gradients import Gradient, from_layers
from xbench.planning.next_forward_search import NextForward, best_next_forward
from xbench.planning.plans import bucket_caps_mib, make_plan, make_plans
from xbench.planning.simulate import Buckets, Step, simulate
from xbench.planning.step import StepModel
from xbench.planning.turns import JobTimes, Throughput, TurnPlan, best_pattern, predict_concurrent, sequential_s

__all__ = [
    "Buckets",
    "CostCurve",
    "Gradient",
    "JobTimes",
    "NextForward",
    "Step",
    "StepModel",
    "Throughput",
    "TurnPlan",
    "best_next_forward",
    "best_pattern",
    "bounds",
    "bucket_caps_mib",
    "fit",
    "from_layers",
    "make_plan",
    "make_plans",
    "predict_concurrent",
    "sequential_s",
    "simulate",
]
