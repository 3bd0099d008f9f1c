"""Results files know their sources: what is hashed, and what is not."""

from __future__ import annotations

import ast
import functools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fast_lapsum.bench import compare, sources
from fast_lapsum.bench.experiments import NAMES
from fast_lapsum.bench.sources import (
    CURRENT,
    KINDS,
    NO_FIGURE,
    OPERATOR,
    OWN,
    PACKAGE,
    STALE,
    UNKNOWN,
)
from places import ROOT

DEVICES = ("cpu", "cuda")
RESULTS = ROOT / "results"
committed = pytest.mark.skipif(not RESULTS.is_dir(), reason="no results in this copy")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The package's sources, to be changed."""
    return Path(
        shutil.copytree(
            PACKAGE, tmp_path / "package", ignore=shutil.ignore_patterns("__pycache__", "_lapsum.*")
        )
    )


def test_the_same_tree_has_the_same_hash_wherever_it_lies(tree: Path) -> None:
    for kind in KINDS:
        for device in DEVICES:
            assert sources.describe(kind, device, tree) == sources.describe(kind, device)
    hashes = {sources.describe(kind, device)["hash"] for kind in NAMES for device in DEVICES}
    assert len(hashes) == 2 * len(NAMES)


def test_the_ends_of_lines_say_nothing(tree: Path) -> None:
    before = sources.describe("cpu", "cpu", tree)
    for name in ("functional.py", "backends/cpu/lapsum.cpp"):
        path = tree / name
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert sources.describe("cpu", "cpu", tree) == before


def test_the_second_gpu_is_a_gpu() -> None:
    assert sources.describe("operators", "cuda:1") == sources.describe("operators", "cuda")


@pytest.mark.parametrize(
    ("name", "kind", "device", "matters"),
    [
        ("functional.py", "gpu", "cuda", True),
        ("_autograd.py", "encode", "cpu", True),
        ("backends/torch/two_exponential.py", "gradcheck", "cuda", True),
        ("backends/cpu/solve.hpp", "cpu", "cpu", True),
        ("backends/cpu/lapsum.cpp", "operators", "cpu", True),
        ("backends/cpu/lapsum.cpp", "operators", "cuda", False),
        ("backends/cpu/kernel.py", "attack", "cuda", False),
        ("backends/triton/solve.py", "gpu", "cuda", True),
        ("bench/gpu_users.py", "gpu", "cuda", True),
        ("bench/score_kinds.py", "cliffs", "cuda", True),
        ("bench/cliff_timing.py", "cliffs", "cuda", True),
        ("bench/cliff_tables.py", "cliffs", "cuda", False),
        ("backends/triton/solve.py", "cliffs", "cuda", True),
        ("bench/functions.py", "functions", "cuda", True),
        ("bench/function_calls.py", "functions", "cpu", True),
        ("bench/function_commands.py", "functions", "cpu", False),
        ("bench/report/function_table.py", "functions", "cpu", False),
        ("_selection_ops.py", "functions", "cuda", True),
        ("backends/cpu/each_row.hpp", "functions", "cpu", True),
        ("backends/cpu/each_row.hpp", "functions", "cuda", False),
        ("backends/cpu/scan.hpp", "ranks", "cpu", True),
        ("backends/cpu/digit_sort.hpp", "ranks", "cpu", True),
        ("backends/cpu/digit_sort.hpp", "ranking", "cpu", True),
        ("backends/cpu/digit_sort.hpp", "functions", "cpu", False),
        ("backends/triton/selection.py", "functions", "cuda", True),
        ("many.py", "hunt-ragged", "cpu", True),
        ("_list.py", "hunt", "cpu", False),
        ("backends/triton/ragged_launch.py", "hunt-ragged", "cuda", True),
        ("backends/triton/ragged_launch.py", "gpu", "cuda", False),
        ("backends/triton/shard_search.py", "hunt-ranks", "cuda", True),
        ("backends/triton/shard_search.py", "ranks", "cpu", False),
        ("backends/triton/solve.py", "attack", "cuda", True),
        ("backends/triton/solve.py", "cpu", "cpu", False),
        ("backends/triton/loader.py", "coder-report", "cpu", False),
        ("bench/scan_kernels.py", "ablation", "cuda", True),
        ("bench/scan_kernels.py", "ablation", "cpu", False),
        ("backends/triton/inspection.py", "robustness", "cuda", True),
        ("bench/peers/lml.py", "operators", "cpu", True),
        ("bench/peers/lml.py", "gradcheck", "cpu", False),
        ("bench/experiments/operators.py", "operators", "cpu", True),
        ("bench/experiments/operators.py", "dftopk", "cpu", False),
        ("bench/experiments/rendering.py", "operators", "cpu", False),
        ("bench/report/figures.py", "operators", "cpu", False),
        ("bench/options.py", "cpu", "cpu", False),
        ("bench/tables.py", "gpu", "cuda", False),
        ("apps/coder/wavelet.py", "encode", "cuda", True),
        ("apps/coder/quality.py", "encode", "cuda", False),
        ("apps/coder/quality.py", "coder-report", "cuda", True),
        ("apps/coder/report_text.py", "coder-report", "cpu", False),
        ("apps/attack/ours.py", "attack-bench", "cpu", True),
        ("apps/attack/profile.py", "attack", "cpu", True),
        ("apps/attack/tables.py", "attack-bench", "cpu", False),
        ("apps/attack/ours.py", "encode", "cpu", False),
        ("nn/layer.py", "operators", "cpu", False),
    ],
)
def test_one_line_changes_the_hash_of_what_depends_on_it(
    name: str, kind: str, device: str, matters: bool, tree: Path
) -> None:
    before = sources.describe(kind, device, tree)
    with (tree / name).open("a") as file:
        file.write("more = 1\n" if name.endswith(".py") else "int more;\n")
    assert (sources.describe(kind, device, tree) != before) == matters


def test_what_is_there_for_readers_alone_changes_no_hash(tree: Path) -> None:
    before = sources.describe("cpu", "cpu", tree)
    for name, comment in (("functional.py", "# more"), ("backends/cpu/lapsum.cpp", "// more")):
        path = tree / name
        path.write_text(f"{comment}\n\n{path.read_text()}{comment}\n")
    path = tree / "backends/cpu/kernel.py"
    source = path.read_text()
    path.write_text(source.replace('"""Whether the kernel is there', '"""If the kernel is there'))
    assert path.read_text() != source
    assert sources.describe("cpu", "cpu", tree) == before
    path.write_text(source.replace("+ offset * tensor", "- offset * tensor"))
    assert sources.describe("cpu", "cpu", tree) != before


def without_docstrings(source: str) -> str:
    """Its syntax tree, with empty strings as docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = "" if isinstance(node.value.value, str) else node.value.value
    return ast.dump(tree)


def test_a_string_that_is_used_is_hashed() -> None:
    assert sources.code_of('"a".join(x)\n') != sources.code_of('"b".join(x)\n')
    assert sources.code_of('"a" "c"\n') != sources.code_of('"b" "c"\n')
    assert sources.code_of('"""a"""  # says what\n') == sources.code_of('"""b"""\n')


def test_what_is_hashed_is_the_same_program() -> None:
    for path in PACKAGE.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        code = sources.code_of(source)
        assert without_docstrings(code) == without_docstrings(source), path
        assert sources.code_of(code) == code


def test_a_name_is_a_part_of_the_hash(tree: Path) -> None:
    before = sources.describe("cpu", "cpu", tree)
    (tree / "backends/torch/bisect.py").rename(tree / "backends/torch/halving.py")
    assert sources.describe("cpu", "cpu", tree) != before


def globs() -> Iterator[str]:
    yield from NO_FIGURE
    for needs in (OPERATOR, *OWN.values(), *KINDS.values()):
        for part in (needs.always, needs.cpu, needs.cuda):
            yield from part


@pytest.mark.parametrize("glob", sorted(set(globs())))
def test_every_glob_finds_a_file(glob: str) -> None:
    assert [path for path in PACKAGE.glob(glob) if path.is_file()]


@functools.cache
def apart() -> set[str]:
    return {
        path.relative_to(PACKAGE).as_posix() for glob in NO_FIGURE for path in PACKAGE.glob(glob)
    }


def test_every_file_has_its_place() -> None:
    """A new file belongs into the table of ``bench/sources.py``, or among those of no figure."""
    placed = {name for kind in KINDS for device in DEVICES for name in sources.files(kind, device)}
    every = {
        path.relative_to(PACKAGE).as_posix()
        for pattern in ("*.py", "*.?pp")
        for path in PACKAGE.rglob(pattern)
    }
    assert every - placed - apart() == set()
    assert placed & apart() == set()


def test_every_experiment_is_a_kind() -> None:
    assert set(NAMES) <= set(KINDS)


@functools.cache
def imported(name: str) -> set[str]:
    """The files of the package that one of them imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse((PACKAGE / name).read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom):
            continue
        module = node.module.split(".") if node.module else []
        if node.level:
            start = PACKAGE / name
            for _ in range(node.level):
                start = start.parent
        elif module[0] == PACKAGE.name:
            start, module = PACKAGE, module[1:]
        else:
            continue
        base = start.joinpath(*module)
        for alias in node.names:
            for path in (base / f"{alias.name}.py", base / alias.name / "__init__.py"):
                if path.is_file():
                    found.add(path.relative_to(PACKAGE).as_posix())
        if base.with_suffix(".py").is_file():
            found.add(base.with_suffix(".py").relative_to(PACKAGE).as_posix())
    return found


#: What a file imports, and its figures do not depend on.
HARMLESS = {
    # The paper's numbers are shown beside ours.
    *(
        (f"bench/experiments/{name}.py", "bench/paper.py")
        for name in ("ablation", "budget", "dftopk", "large_n", "operators", "robustness")
    ),
    ("bench/experiments/robustness.py", "bench/experiments/budget.py"),
    # An exception's class, types, constants and lists of names.
    ("bench/experiments/robustness.py", "bench/experiments/selection.py"),
    ("bench/experiments/variants.py", "bench/experiments/selection.py"),
    ("bench/experiments/selection.py", "bench/peers/protocol.py"),
    ("bench/methods.py", "bench/peers/__init__.py"),
    ("bench/methods.py", "bench/peers/protocol.py"),
    ("bench/parity.py", "reference.py"),
    # Which message of a failure is about memory.
    ("apps/out_of_memory.py", "bench/worker.py"),
    # Training's own synthesis, beside the decoder's.
    ("apps/coder/dictionary.py", "apps/coder/pyramid.py"),
    # Where a group is given, or scores are a DTensor.
    *(
        ("functional.py", name)
        for name in ("_collectives.py", "_dtensor.py", "_sharded.py", "_traced_sharded.py")
    ),
    *(("many.py", name) for name in ("_collectives.py", "_dtensor_list.py")),
    # Where rows have several lengths.
    *(("functional.py", name) for name in ("_ragged.py", "_segments.py", "_traced_many.py")),
    ("selection.py", "_segments.py"),
    ("_list.py", "_sharded.py"),
    *((f"nn/{name}.py", "_collectives.py") for name in ("gate", "layer", "rank_sums")),
    ("nn/rank_sums.py", "_sharded_sums.py"),
}


@pytest.mark.parametrize("kind", list(KINDS))
def test_what_a_file_imports_is_of_its_kind(kind: str) -> None:
    """Or of the other kind of device, or of no figure, or harmless: else the table lacks it."""
    every = {name for device in DEVICES for name in sources.files(kind, device)}
    for name in every:
        if name.endswith(".py"):
            for other in imported(name) - every - apart():
                assert (name, other) in HARMLESS


def test_states() -> None:
    now = sources.describe("gradcheck", "cpu")
    assert sources.state({"sources": now}) == CURRENT
    assert sources.summary({"sources": now}) == f"{now['hash']}, current"
    assert sources.state({"sources": {**now, "hash": "0" * 16}}) == STALE
    assert sources.state({"sources": {**now, "device": "cuda"}}) == STALE
    assert sources.state({"sources": {**now, "kind": "of a later version"}}) == STALE
    for odd in ({}, {"sources": None}, {"sources": "abc"}, {"sources": {"hash": "abc"}}):
        assert sources.state(odd) == sources.mark(odd) == sources.summary(odd) == UNKNOWN


def test_a_comparison_names_the_sources_that_differ() -> None:
    old: dict[str, Any] = {"environment": {}, "settings": {}}
    new = {**old, "sources": {"kind": "cpu", "device": "cpu", "hash": "abc"}}
    assert list(compare.conditions(old, new)) == [("sources", UNKNOWN, "abc")]
    assert list(compare.conditions(old, old)) == list(compare.conditions(new, new)) == []
