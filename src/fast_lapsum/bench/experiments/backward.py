"""tab:bench-fb: the paper's grids over n, B, temperature and k, forward and backward."""

from __future__ import annotations

from functools import partial

from ..experiment import Experiment
from .grids import grid_cases, grid_measure, grid_tables
from .variants import METHOD, backward_values

LABEL = "tab:bench-fb"

EXPERIMENT = Experiment(
    name="backward",
    title="Forward and backward pass over the paper's grids of n, B, temperature and k",
    labels=(LABEL,),
    method=METHOD
    + " One vector-Jacobian product with a random cotangent; every variant's gradient is the "
    "closed form. The error is the largest difference between a gradient and that of the scan.",
    cases=partial(grid_cases, LABEL),
    measure=partial(grid_measure, backward_values),
    tables=partial(grid_tables, LABEL, "Forward + backward"),
)
