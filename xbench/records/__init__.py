"""Typed, versioned, immutable results of runs. Every output format reads a record and nothing else.

`io` holds the table of all record kinds, and reads and writes files. `load` migrates an older version; a newer,
truncated or foreign file is an error of one sentence. `save` writes atomically. `parts` holds what several
kinds share.

All times are in seconds, sizes in bytes, and rates in bits per second. This package does not import torch.
"""

from __future__ import annotations

from xbench.records.cluster import ClusterComparison as ClusterComparison
from xbench.records.cluster import ClusterCurve as ClusterCurve
from xbench.records.cluster import ClusterResult as ClusterResult
from xbench.records.cluster import ClusterRun as ClusterRun
from xbench.records.cluster import ClusterSpan as ClusterSpan
from xbench.records.cluster import LiveResult as LiveResult
from xbench.records.cluster import LiveRun as LiveRun
from xbench.records.cluster import LiveSpan as LiveSpan
from xbench.records.cluster import TraceRecord as TraceRecord
from xbench.records.comparison import BY_HAND as BY_HAND
from xbench.records.comparison import RANKS as RANKS
from xbench.records.comparison import Comparison as Comparison
from xbench.records.comparison import ErrorBand as ErrorBand
from xbench.records.comparison import Job as Job
from xbench.records.comparison import LinkTerms as LinkTerms
from xbench.records.comparison import Memory as Memory
from xbench.records.comparison import ModeResult as ModeResult
from xbench.records.comparison import Parity as Parity
from xbench.records.comparison import Profile as Profile
from xbench.records.comparison import Sample as Sample
from xbench.records.comparison import Scaling as Scaling
from xbench.records.comparison import ScalingPoint as ScalingPoint
from xbench.records.comparison import ScalingSource as ScalingSource
from xbench.records.comparison import Tuned as Tuned
from xbench.records.comparison import Unit as Unit
from xbench.records.convergence import Converged as Converged
from xbench.records.convergence import Convergence as Convergence
from xbench.records.convergence import Curve
from xbench.records.convergence import Dataset as Dataset
from xbench.records.convergence import SeedMean as SeedMean
from xbench.records.convergence import Training as Training
from xbench.records.convergence import WorkFormula as WorkFormula
from xbench.records.io import KINDS as KINDS
from xbench.records.io import REBUILDERS as REBUILDERS
from xbench.records.io import SCHEMA_VERSION as SCHEMA_VERSION
from xbench.records.io import AnyRecord as AnyRecord
from xbench.records.io import dump as dump
from xbench.records.io import json_schema as json_schema
from xbench.records.io import load as load
from xbench.records.io import load_measured as load_measured
from xbench.records.io import loads as loads
from xbench.records.io import of_kind as of_kind
from xbench.records.io import save as save
from xbench.records.parts import NOT_TRACED as NOT_TRACED
from xbench.records.parts import Bounds as Bounds
from xbench.records.parts import CalibrationPoint as CalibrationPoint
from xbench.records.parts import Contention as Contention
from xbench.records.parts import ContentionPoint as ContentionPoint
from xbench.records.parts import CostModel as CostModel
from xbench.records.parts import CostPoint as CostPoint
from xbench.records.parts import CostSegment as CostSegment
from xbench.records.parts import EmulatedLink as EmulatedLink
from xbench.records.parts import Environment as Environment
from xbench.records.parts import Estimate as Estimate
from xbench.records.parts import FabricRecord as FabricRecord
from xbench.records.parts import GpuUse as GpuUse
from xbench.records.parts import Interval as Interval
from xbench.records.parts import Label as Label
from xbench.records.parts import Layer as Layer
from xbench.records.parts import Parts as Parts
from xbench.records.parts import Plan as Plan
from xbench.records.parts import RankTimeline as RankTimeline
from xbench.records.parts import Ratio as Ratio
from xbench.records.parts import RecordBase as RecordBase
from xbench.records.parts import Slice as Slice
from xbench.records.parts import SlowLink as SlowLink
from xbench.records.parts import SlowRank as SlowRank
from xbench.records.parts import StepPart as StepPart
from xbench.records.parts import StepTimes as StepTimes
from xbench.records.parts import Stragglers as Stragglers
from xbench.records.parts import Tensor as Tensor
from xbench.records.parts import Timeline as Timeline
from xbench.records.parts import TurnTaken as TurnTaken
from xbench.records.parts import UnitCost as UnitCost
from xbench.records.parts import Verdict as Verdict
from xbench.records.parts import WorkloadRecord as WorkloadRecord
from xbench.records.regression import MAX_PAIRS as MAX_PAIRS
from xbench.records.regression import Baseline as Baseline
from xbench.records.regression import Case as Case
from xbench.records.regression import Check as Check
from xbench.records.regression import Failure as Failure
from xbench.records.regression import Found as Found
from xbench.records.regression import Judged as Judged
from xbench.records.regression import LaunchPair as LaunchPair
from xbench.records.regression import Measurement as Measurement
from xbench.records.regression import MetricName as MetricName
from xbench.records.regression import MetricUnit as MetricUnit
from xbench.records.regression import NoiseFloor as NoiseFloor
from xbench.records.regression import Regression as Regression
from xbench.records.regression import RegressionVerdict as RegressionVerdict
from xbench.records.regression import Side as Side
from xbench.records.regression import SideName as SideName
from xbench.records.regression import Suite as Suite
from xbench.records.regression import Threshold as Threshold

ConvergenceCurve = Curve
