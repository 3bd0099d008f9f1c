"""tab:bench-fwd: the paper's grids over n, B, temperature and k, forward."""

from __future__ import annotations

from functools import partial

from ..experiment import Experiment
from .grids import grid_cases, grid_measure, grid_tables
from .variants import METHOD, forward_values

LABEL = "tab:bench-fwd"

EXPERIMENT = Experiment(
    name="forward",
    title="Forward pass over the paper's grids of n, B, temperature and k",
    labels=(LABEL,),
    method=METHOD + " The error is the largest difference between a mask and that by bisection.",
    cases=partial(grid_cases, LABEL),
    measure=partial(grid_measure, forward_values),
    tables=partial(grid_tables, LABEL, "Forward"),
)
