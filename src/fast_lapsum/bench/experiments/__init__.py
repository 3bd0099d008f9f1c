"""The experiments: one module for each, which defines ``EXPERIMENT = Experiment(...)``."""

from __future__ import annotations

from importlib import import_module

from ..experiment import Experiment

#: As on the command line, in the order in which ``bench all`` runs them.
NAMES = (
    "large-n",
    "operators",
    "budget",
    "robustness",
    "forward",
    "backward",
    "ablation",
    "gradcheck",
    "dftopk",
)


def module_of(name: str) -> str:
    """The module of an experiment, which a worker process imports by this name.

    >>> module_of("large-n")
    'fast_lapsum.bench.experiments.large_n'
    """
    return f"{__name__}.{name.replace('-', '_')}"


EXPERIMENTS: dict[str, Experiment] = {
    name: import_module(module_of(name)).EXPERIMENT for name in NAMES
}
