"""Which files of the package the figures of a results file depend on, and a hash of them.

A commit says less: it changes with every line of documentation, it is the same for all uncommitted
changes, and a package installed without its repository has none. With the hash one can tell later
whether a figure is still true of the code.
"""

from __future__ import annotations

import functools
import hashlib
import io
import tokenize
from pathlib import Path
from typing import Any, NamedTuple

PACKAGE = Path(__file__).resolve().parents[1]

CURRENT = "current"
STALE = "stale"
#: Of files from before they had a hash.
UNKNOWN = "sources unknown"

#: Files by their paths below the package; * and ? stand for parts of a name.
Globs = tuple[str, ...]


class Needs(NamedTuple):
    """What figures depend on: wherever they are measured, and on one kind of device alone."""

    always: Globs
    cpu: Globs = ()
    cuda: Globs = ()
    operator: bool = True  # whether they depend on it

    def on(self, device: str) -> Globs:
        """All of it for figures measured on ``device``."""
        return (*self.always, *{"cpu": self.cpu, "cuda": self.cuda}.get(device, ()))


def _in(folder: str, *names: str) -> Globs:
    return tuple(f"{folder}/{name}.py" for name in names)


#: A part of nearly every kind. Plain torch is what a call takes where there is no kernel, and
#: what some solvers are on any device.
OPERATOR = Needs(
    (
        "functional.py",
        "selection.py",
        "_arguments.py",
        "_autograd.py",
        "_call.py",
        "_derivatives.py",
        "_layout.py",
        "_ops.py",
        "_selection_*.py",
        "_traced*.py",
        "_values.py",
        "backends/common.py",
        "backends/layout.py",
        "backends/shares.py",
        "backends/torch/*.py",
    ),
    cpu=("backends/cpu/*.py", "backends/cpu/*.?pp"),
    cuda=("backends/triton/*.py",),
)

#: Sorts by digits, and scans of what is sorted.
_SORTED = ("backends/cpu/digit_sort.hpp", "backends/cpu/scan.hpp")

#: Ranks and sorts have kernels of their own: other figures do not depend on them.
RANKING = Needs(
    (
        *("ranking.py", "_permutation.py", "_ranking_*.py"),
        *("backends/*/ranking*.py", "backends/torch/decay_scan.py"),
    ),
    cpu=("backends/cpu/ranking*.hpp", *_SORTED),
)

#: And so have activations.
ACTIVATION = Needs(("_activation*.py",), cuda=("backends/triton/activation*.py",))
#: And rows that are spread over ranks, which plain calls know nothing of.
SHARDED = Needs(
    (
        *("_collectives.py", "_dtensor*.py", "_sharded*.py", "_traced_sharded.py"),
        *("backends/shards.py", "backends/torch/shard*.py"),
    ),
    cpu=("backends/cpu/shard*", *_SORTED),
    cuda=("backends/triton/shard*.py",),
)
#: And rows of several lengths, and many tensors.
RAGGED = Needs(
    (
        *("many.py", "_list*.py", "_ragged*.py", "_segments.py", "_traced_many.py"),
        *("backends/many.py", "backends/segments.py"),
        *("backends/torch/many.py", "backends/torch/ragged*.py"),
    ),
    cpu=("backends/cpu/ragged*", "backends/cpu/list*"),
    cuda=("backends/triton/ragged*.py", "backends/triton/many*.py"),
)
#: What only one kind of figures depends on, of files that others depend on.
OWN = {"ranking": RANKING, "layers": ACTIVATION, "ranks": SHARDED, "ragged": RAGGED}

#: Which cases are tried, under which limits of time and memory.
_SUITE = _in("bench", "experiment", "process", "runner", "worker")
_CLOCK = ("bench/timing.py", "bench/experiments/clock.py")
#: One row of normal scores for every method.
_METHODS = (
    "bench/methods.py",
    "bench/peers/*.py",
    *_in("bench/experiments", "inputs", "selection"),
)
#: The stages of the ablation, the sorting ones in plain torch or as kernels of their own.
_STAGES = ("bench/experiments/variants.py", *_in("bench/peers", "bisection", "protocol"))
_TORCH_STAGES = _in("bench/peers", "implicit", "official_lapsum")
_TRITON_STAGES = ("bench/scan_kernels.py",)
#: The problems of the grids are those of the paper's tables.
_GRID = (*_SUITE, *_CLOCK, *_STAGES, "bench/paper.py", "bench/experiments/grids.py")

#: From a file to its picture: integers, and no operator.
_DECODER = _in(
    "apps/coder",
    *("averages", "bands", "bitstream", "code", "colour", "container", "contexts", "dictionary"),
    *("models", "tiles", "wavelet"),
)
_CODER = (
    *_DECODER,
    *_in(
        "apps/coder",
        *("assemble", "best", "blocks", "encode", "finish", "fit_best", "floor", "picture"),
        *("plain", "prices", "pyramid", "rate", "settings", "train"),
    ),
)
_ATTACK = (
    *_in(
        "apps/attack",
        *("classifiers", "dense", "hard_support", "measures", "memory", "methods"),
        *("order_statistic", "ours", "paper", "pictures", "protocol", "proximal", "race"),
        *("resizing", "rows"),
    ),
    "apps/attack/baselines/*.py",
    "apps/out_of_memory.py",
)

#: Every kind of results file, by the command that writes it. What only prints, draws or reads
#: options is not here: a table of another layout makes no figure stale.
KINDS: dict[str, Needs] = {
    "cpu": Needs(("reference.py", *_in("bench", "cpu", "memory", "parity", "timing"))),
    "gpu": Needs(
        (
            *_in("bench", "gpu", "gpu_bars", "gpu_budget", "gpu_case", "gpu_overhead"),
            *_in("bench", "gpu_parity", "gpu_timing", "gpu_users", "parity", "timing"),
            *_in("bench/peers", "dftopk", "protocol"),
        )
    ),
    "cliffs": Needs(_in("bench", "cliff_timing", "cliffs", "gpu_timing", "score_kinds", "timing")),
    "functions": Needs(
        (
            *_in("bench", "function_calls", "functions", "gpu_bars", "gpu_case", "gpu_parity"),
            *_in("bench", "gpu_timing", "parity", "timing"),
        )
    ),
    "ragged": Needs(
        (
            *_in("bench", "function_calls", "functions", "gpu_bars", "gpu_case", "gpu_parity"),
            *_in("bench", "gpu_timing", "parity", "ragged", "timing"),
        )
    ),
    "layers": Needs(
        (
            "nn/*.py",
            *_in("bench", "function_calls", "functions", "gpu_bars", "gpu_case", "gpu_parity"),
            *_in("bench", "gpu_timing", "layer_calls", "layers", "parity", "timing"),
        )
    ),
    "ranks": Needs(
        (
            *_in("bench", "function_calls", "functions", "gpu_bars", "gpu_case", "gpu_parity"),
            *_in("bench", "gpu_timing", "parity", "rank_local", "rank_process", "ranks", "timing"),
        )
    ),
    "compiled": Needs(
        (
            *_in("bench", "compiled", "gpu_bars", "gpu_case", "gpu_parity"),
            *_in("bench", "gpu_timing", "parity", "timing"),
        )
    ),
    "ranking": Needs(
        (
            *_in("bench", "function_calls", "functions", "gpu_bars", "gpu_case", "gpu_parity"),
            *_in("bench", "gpu_timing", "parity", "ranking", "ranking_methods", "timing"),
            *("reference.py", "bench/peers/*.py"),
        )
    ),
    # Rows are put together and judged outside of the package.
    "hunt": Needs(()),
    "hunt-ragged": RAGGED,
    "hunt-ranks": SHARDED,
    "large-n": Needs(
        (
            *_SUITE,
            *_CLOCK,
            "bench/methods.py",
            *_in("bench/experiments", "large_n", "inputs", "selection"),
        )
    ),
    "operators": Needs((*_SUITE, *_CLOCK, *_METHODS, "bench/experiments/operators.py")),
    "budget": Needs((*_SUITE, *_METHODS, "bench/experiments/budget.py")),
    "robustness": Needs(
        (*_SUITE, *_in("bench/experiments", "robustness", "distributions", "samplers")),
    ),
    "forward": Needs((*_GRID, "bench/experiments/forward.py"), _TORCH_STAGES, _TRITON_STAGES),
    "backward": Needs((*_GRID, "bench/experiments/backward.py"), _TORCH_STAGES, _TRITON_STAGES),
    "ablation": Needs(
        (*_SUITE, *_CLOCK, *_STAGES, "bench/experiments/ablation.py"),
        _TORCH_STAGES,
        _TRITON_STAGES,
    ),
    "gradcheck": Needs((*_SUITE, "bench/paper.py", "bench/experiments/gradcheck.py")),
    "dftopk": Needs((*_SUITE, *_CLOCK, *_METHODS, "bench/experiments/dftopk.py")),
    "encode": Needs((*_CODER, *_in("apps/coder", "run", "record"))),
    "coder-report": Needs(
        (*_CODER, *_in("apps/coder", "codecs", "quality", "report", "untrained"))
    ),
    "coder-drawn": Needs((*_CODER, *_in("apps/coder", "codecs", "drawn", "drawn_report"))),
    "coder-threads": Needs((*_CODER, *_in("apps/coder", "run", "record"))),
    "coder-hostile": Needs((*_DECODER, "apps/coder/limits.py"), operator=False),
    "attack": Needs((*_ATTACK, *_in("apps/attack", "picture_run", "profile"))),
    "attack-bench": Needs((*_ATTACK, *_in("apps/attack", "compare", "workers"))),
}

#: All other files. A test asks that every file is here or in a kind, so that a new one is placed.
NO_FIGURE: Globs = (
    "__init__.py",
    "__main__.py",
    "backends/__init__.py",
    "cli.py",
    "losses.py",
    "_prune_arguments.py",
    "prune.py",
    "reference_ranking.py",
    *_in("bench", "__init__", "cliff_tables", "commands", "compare", "demo", "display"),
    *_in(
        "bench",
        "compiled_commands",
        "environment",
        "function_commands",
        "gpu_commands",
        "gpu_tables",
        "layer_commands",
        "measuring",
        "options",
        "plots",
        "ragged_commands",
        "rank_commands",
        "ranking_commands",
        "records",
    ),
    *_in("bench", "results", "sources", "stale", "tables"),
    *_in("bench/experiments", "__init__", "rendering"),
    "bench/report/*.py",
    *_in("apps", "__init__", "whole_png"),
    *_in("apps/coder", "commands", "drawn_command", "options", "report_command"),
    *_in("apps/coder", "__init__", "drawn_text", "figure", "report_figures", "report_text"),
    "apps/coder/study.py",
    *_in("apps/attack", "__init__", "bench_run", "commands", "comparison_file", "figures"),
    *_in("apps/attack", "tables", "tables_text"),
)


def files(kind: str, device: str, package: Path = PACKAGE) -> list[str]:
    """The files that figures of a kind, measured on a device, depend on, in order.

    >>> ["backends/cpu/lapsum.cpp" in files("gradcheck", device) for device in ("cpu", "cuda:0")]
    [True, False]
    """
    where = device.partition(":")[0]
    found = _found(OPERATOR.on(where) if KINDS[kind].operator else (), package)
    for name, needs in OWN.items():
        if name != kind:
            found -= _found(needs.on(where), package)
    own = OWN[kind].on(where) if kind in OWN else ()
    return sorted(found | _found((*KINDS[kind].on(where), *own), package))


def _found(globs: Globs, package: Path) -> set[str]:
    return {path.relative_to(package).as_posix() for glob in globs for path in package.glob(glob)}


def describe(kind: str, device: str, package: Path = PACKAGE) -> dict[str, str]:
    """What a results file says of its sources: kind, device ("cuda:0" is "cuda") and hash.

    >>> sorted(describe("gradcheck", "cpu"))
    ['device', 'hash', 'kind']
    """
    found = hashlib.sha256()
    for name in files(kind, device, package):
        code = _hash_of_code((package / name).read_bytes(), name.endswith(".py"))
        found.update(f"{name} {code}\n".encode())
    return {"kind": kind, "device": device.partition(":")[0], "hash": found.hexdigest()[:16]}


@functools.cache
def _hash_of_code(content: bytes, is_python: bool) -> str:
    # A checkout on Windows may have other ends of lines.
    source = content.decode().replace("\r\n", "\n")
    return hashlib.sha256(code_of(source, is_python).encode()).hexdigest()


def code_of(source: str, is_python: bool = True) -> str:
    """A source without what is there for readers alone, which no figure depends on.

    That is comments and docstrings of Python, lines of C++ that are comments, and empty lines.

    >>> code_of("def half(x):\\n    'Of it.'\\n\\n    return x / 2  # halves\\n").split("\\n")
    ['def half(x):', '    ""', '    return x / 2']
    """
    lines = source.split("\n")
    if is_python:
        for (first, start), (last, end), instead in reversed(_for_readers(source)):
            lines[first - 1 : last] = [lines[first - 1][:start] + instead + lines[last - 1][end:]]
    else:
        lines = [line for line in lines if not line.lstrip().startswith("//")]
    return "\n".join(line.rstrip() for line in lines if line.strip())


def _for_readers(source: str) -> list[tuple[tuple[int, int], tuple[int, int], str]]:
    """Comments, and strings that are statements: where they begin and end, and what stays there."""
    found = []
    before = tokenize.NEWLINE
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    for i, token in enumerate(tokens):
        begins = before in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
        if token.type == tokenize.COMMENT:
            found.append((token.start, token.end, ""))
        elif token.type == tokenize.STRING and begins and _ends_statement(tokens[i + 1]):
            found.append((token.start, token.end, '""'))
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            before = token.type
    return found


def _ends_statement(token: tokenize.TokenInfo) -> bool:
    return token.type in (tokenize.NEWLINE, tokenize.COMMENT, tokenize.ENDMARKER)


def known(record: dict[str, Any]) -> dict[str, str] | None:
    """What a record says of its sources; None for an old one."""
    found = record.get("sources")
    if isinstance(found, dict) and all(
        isinstance(found.get(name), str) for name in ("kind", "device", "hash")
    ):
        return found
    return None


def state(record: dict[str, Any]) -> str:
    """Whether a record's figures are those of the code that is here.

    >>> state({"sources": describe("gradcheck", "cpu")}), state({})
    ('current', 'sources unknown')
    """
    found = known(record)
    if found is None:
        return UNKNOWN
    if found["kind"] not in KINDS:  # of another version: what it depends on is not here
        return STALE
    return CURRENT if found == describe(found["kind"], found["device"]) else STALE


def mark(record: dict[str, Any]) -> str:
    """The hash of a record's sources, or that they are unknown."""
    found = known(record)
    return UNKNOWN if found is None else found["hash"]


def summary(record: dict[str, Any]) -> str:
    """Hash and state of a record's sources.

    >>> summary({})
    'sources unknown'
    """
    return UNKNOWN if known(record) is None else f"{mark(record)}, {state(record)}"
