"""`MinibatchSource`: minibatches from deserializers, read ahead of need. (docs/timeline.md)"""

from cntkio.source.plan import ExplainedStep, Ledger, PlannedSteps, PlannedSweep, SourcePlan, sweeps_of
from cntkio.source.sequences import Sequences
from cntkio.source.source import MinibatchSource, TraceLevel

__all__ = [
    "ExplainedStep", "Ledger", "MinibatchSource", "PlannedSteps", "PlannedSweep", "Sequences", "SourcePlan",
    "TraceLevel", "sweeps_of",
]  # fmt: skip
