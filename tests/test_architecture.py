"""The way of a call points one way: who may import whom, and that all backends have one entry."""

from __future__ import annotations

import ast
import inspect
from importlib import import_module
from pathlib import Path

import pytest

import fast_lapsum
from fast_lapsum.backends import common
from fast_lapsum.backends.cpu import entry as cpu
from fast_lapsum.backends.torch import entry as plain
from fast_lapsum.backends.torch.forward import SOLVERS
from fast_lapsum.backends.triton import loader

PACKAGE = Path(fast_lapsum.__file__).parent
#: From the public functions down; a file imports what stands below it, or beside it.
LAYERS = (
    ("nn", "losses", "prune"),
    ("functional", "selection", "ranking", "many"),
    ("_dtensor", "_dtensor_list"),
    ("_traced_many", "_traced_sharded", "_ranking_traced", "_activation_traced"),
    ("_traced",),
    ("_ragged", "_list", "_sharded"),
    ("_call", "_permutation"),
    ("_ranking_call",),
    ("_ranking_autograd",),
    ("_ranking_formulas",),
    ("_ragged_values", "_list_values", "_sharded_values"),
    ("_activation_autograd",),
    (
        *("_values", "_autograd", "_selection_autograd", "_ragged_autograd", "_list_autograd"),
        "_sharded_autograd",
    ),
    ("_derivatives",),
    ("_ranking_ops", "_activation_ops"),
    ("_sharded_ops", "_sharded_sums"),
    ("_ops", "_selection_ops", "_ragged_ops", "_list_ops", "_sharded_rounds", "_collectives"),
    ("_sharded_header",),
    ("_prune_arguments",),
    ("_arguments", "_layout", "_segments"),
    ("backends",),
)
#: What stands on the public functions, each allowed to use those before it.
EXTRAS = ("bench", "apps", "cli", "__main__")
#: The rest is a backend's own business.
OPEN = (
    *("entry", "activation_entry", "ragged_entry", "ranking_entry", "shard_entry"),
    *("loader", "inspection"),
    *("common", "segments", "many", "shards", "shares"),
)
ENTRIES = ("supports", "forward", "backward", "select", "select_backward", "sample")
RAGGED_ENTRIES = ("ragged_forward", "ragged_backward", "list_forward", "list_backward")


def _imports(path: Path) -> set[tuple[str, ...]]:
    """Modules of the package that a file imports anywhere, as parts of their names."""
    here = path.relative_to(PACKAGE).with_suffix("").parts
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
            found |= {tuple(name[1:]) for name in names if name[0] == "fast_lapsum"}
        elif isinstance(node, ast.ImportFrom):
            module = (node.module or "").split(".") if node.module else []
            if node.level:
                base = [*here[: len(here) - node.level], *module]
            elif module[:1] == ["fast_lapsum"]:
                base = module[1:]
            else:
                continue
            for alias in node.names:
                whole = (*base, alias.name)
                is_module = (PACKAGE.joinpath(*whole)).is_dir() or PACKAGE.joinpath(
                    *whole
                ).with_suffix(".py").is_file()
                found.add(whole if is_module else tuple(base))
    return found - {()}


FILES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))
BACKENDS = [path for path in FILES if path.parts[0] == "backends"]


def _layer(name: str) -> int | None:
    return next((i for i, names in enumerate(LAYERS) if name in names), None)


@pytest.mark.parametrize("path", FILES, ids=str)
def test_no_arrow_points_back(path: Path) -> None:
    own = path.with_suffix("").parts
    layer = _layer(own[0])
    for target in _imports(PACKAGE / path):
        says = f"{path} imports {'.'.join(target)}"
        if layer is not None and own[0] != "backends" and target[0] == "backends":
            assert target[-1] in OPEN, f"{says}: a backend's entry is its door"
        if layer is not None:
            below = _layer(target[0])
            assert below is None or below >= layer, says
            assert target[0] not in EXTRAS, f"{says}: the core stands without it"
        elif own[0] in EXTRAS and target[0] in EXTRAS and target[0] != own[0]:
            assert EXTRAS.index(target[0]) < EXTRAS.index(own[0]), says


@pytest.mark.parametrize("path", BACKENDS, ids=str)
def test_no_backend_imports_another(path: Path) -> None:
    own = path.parts[1]
    for target in _imports(PACKAGE / path):
        is_shared = target[:2] in [
            ("backends", x) for x in ("common", "layout", "segments", "many", "shards", "shares")
        ]
        assert is_shared or target[:2] == ("backends", own), f"{path} imports {'.'.join(target)}"


@pytest.mark.parametrize("path", [p for p in FILES if p.parts[0] in EXTRAS], ids=str)
def test_nobody_reaches_into_a_kernel(path: Path) -> None:
    """But for the algorithms in plain torch, which are the paper's and are measured as such."""
    for target in _imports(PACKAGE / path):
        if target[0] == "backends" and target[1:2] != ("torch",):
            assert target[-1] in OPEN, f"{path} imports {'.'.join(target)}"
        inner = ("_ops", "_selection_ops", "_ragged_ops", "_list_ops", "_ranking_ops", "_autograd")
        assert target[0] not in inner, f"{path}: {target}"


@pytest.mark.parametrize("path", [p for p in FILES if p.parts[0] == "apps"], ids=str)
def test_no_application_imports_another(path: Path) -> None:
    for target in _imports(PACKAGE / path):
        is_other = target[0] == "apps" and PACKAGE.joinpath(*target[:2]).is_dir()
        assert not is_other or target[1] == path.parts[1], f"{path} imports {'.'.join(target)}"


@pytest.mark.parametrize("name", [*ENTRIES, *RAGGED_ENTRIES])
def test_all_backends_have_one_signature(name: str) -> None:
    triton = loader.entry()
    backends = [x for x in (plain, cpu, triton) if x is not None]
    if name in RAGGED_ENTRIES:
        backends = [import_module(".ragged_entry", x.__package__) for x in backends]
    wanted = inspect.signature(getattr(backends[0], name))
    own = {"solver", "passes", "most_passes", "clamp", "plan"}  # what only one of them has, last
    shared = [p for p in wanted.parameters.values() if p.name not in own]
    for backend in backends:
        found = inspect.signature(getattr(backend, name))
        here = list(found.parameters.values())
        assert [(p.name, p.annotation) for p in here if p.name not in own] == [
            (p.name, p.annotation) for p in shared
        ]
        assert all(p.default is not p.empty for p in here if p.name in own)
        assert found.return_annotation == wanted.return_annotation


def test_solvers_are_those_that_can_be_named() -> None:
    assert tuple(SOLVERS) == common.SOLVERS


def test_a_dtype_is_declared_once() -> None:
    """In Python: the table in common.py; other files take it from there."""
    names = {str(dtype).removeprefix("torch.") for dtype in common.DTYPES}
    core = [p for p in FILES if p.parts[0] not in EXTRAS and p.name != "common.py"]
    for path in core:
        for node in ast.walk(ast.parse((PACKAGE / path).read_text())):
            if isinstance(node, (ast.Dict, ast.Set, ast.Tuple, ast.List)):
                said = {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
                assert not names <= said, f"{path}, line {node.lineno}: a table of dtypes"
