"""Calls on DTensors beside the same calls on whole tensors: what each of several processes runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)

from cases import normal
from fast_lapsum import (
    hard_topk_mask,
    log_soft_topk,
    sample_topk,
    select_topk,
    soft_topk,
    soft_topk_list,
    threshold,
)
from fast_lapsum.nn import SoftTopK

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "mask": soft_topk,
    "log": log_soft_topk,
    "threshold": threshold,
    "hard": lambda *given, **options: soft_topk(*given, hard=True, **options),
}
R = Replicate()
S0, S1, S2 = Shard(0), Shard(1), Shard(2)


class Case(NamedTuple):
    """Scores of a shape on a mesh, and what is selected along which dimensions."""

    mesh: tuple[int, ...]
    placements: tuple[Placement, ...]
    shape: tuple[int, ...]
    dim: Any = -1
    k: str = "number"

    @property
    def name(self) -> str:
        kinds = ", ".join(str(one) for one in self.placements)
        return f"{self.shape} along {self.dim}, {kinds} of {self.mesh}, k a {self.k}"


#: For four ranks. Parts are uneven, and some of them empty.
CASES = (
    Case((4,), (S1,), (6, 11)),
    Case((4,), (S1,), (6, 3), k="tensor"),
    Case((4,), (S1,), (6, 11), k="tensor per row"),
    Case((4,), (S0,), (11, 5), dim=0, k="DTensor"),
    Case((4,), (S0,), (6, 11), k="tensor per row"),
    Case((4,), (S0,), (3, 11), k="DTensor like the rows"),
    Case((4,), (S0,), (6, 11), k="tensor"),
    Case((4,), (S0,), (6, 11), k="DTensor"),
    Case((4,), (R,), (6, 11), k="tensor per row"),
    Case((4,), (S0,), (7, 9), dim=None, k="tensor"),
    Case((4,), (S1,), (4, 7, 6), dim=(0, 2), k="DTensor like the rows"),
    Case((4,), (S2,), (4, 7, 6), dim=(0, 2), k="tensor of shape (1,)"),
    Case((4,), (S2,), (4, 7, 6), dim=1, k="DTensor like the rows"),
    Case((2, 2), (S0, S1), (6, 11), k="tensor per row"),
    Case((2, 2), (S0, S1), (5, 11), k="DTensor like the rows"),
    Case((2, 2), (S0, S1), (6, 11), k="tensor"),
    Case((2, 2), (S1, S0), (5, 3), k="DTensor like the rows"),
    Case((2, 2), (S1, S1), (6, 11), k="DTensor"),
    Case((2, 2), (S0, S0), (7, 11), k="DTensor like the rows"),
    Case((2, 2), (R, S1), (6, 11), k="tensor"),
    Case((2, 2), (S1, R), (6, 11), k="DTensor like the rows"),
    Case((2, 2), (R, S0), (6, 11), k="tensor per row"),
    Case((2, 2), (S0, S1), (7, 9), dim=None, k="tensor"),
    Case((2, 2), (R, R), (6, 11)),
    Case((4, 1), (S0, S1), (6, 11), k="tensor"),
)


def _budget(case: Case, mesh: DeviceMesh, hard: bool) -> tuple[Any, Any, Tensor | None]:
    """k for the whole call, for that on parts, and a leaf of the latter."""
    dims = range(len(case.shape)) if case.dim is None else case.dim
    dims = (dims,) if isinstance(dims, int) else dims
    dims = [i % len(case.shape) for i in dims]
    left = [n for i, n in enumerate(case.shape) if i not in dims]
    if case.k == "number":
        return 2, 2, None
    shape = left if "row" in case.k else [1] if "(1,)" in case.k else []
    start = torch.linspace(1, 3, max(torch.Size(shape).numel(), 1), dtype=torch.float64)
    start = (start.round() if hard else start)[: torch.Size(shape).numel()].reshape(shape)
    whole = start.clone().requires_grad_()
    if "DTensor" not in case.k:
        part = start.clone().requires_grad_()
        return whole, part, part
    placed: list[Placement] = [R] * mesh.ndim
    if "rows" in case.k:
        for i, one in enumerate(case.placements):
            if isinstance(one, Shard) and one.dim not in dims:
                placed[i] = Shard(one.dim - sum(d < one.dim for d in dims))
    part = distribute_tensor(start, mesh, placed).requires_grad_()
    return whole, part, part


def _full(value: Tensor) -> Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def _difference(found: Tensor | None, wanted: Tensor | None) -> float:
    """The largest, relative to what is larger than 1."""
    assert (found is None) == (wanted is None)
    if found is None or wanted is None:
        return 0.0
    found, wanted = _full(found).detach(), wanted.detach()
    assert found.shape == wanted.shape, (found.shape, wanted.shape)
    same = (found == wanted) | (found.isnan() & wanted.isnan())
    off = (found - wanted).abs() / (1 + wanted.abs())
    return float(off.masked_fill(same, 0.0).max()) if found.numel() else 0.0


def compare(case: Case, function: str, **options: Any) -> dict[str, Any]:
    """The largest differences of results and gradients, and how the results are placed."""
    mesh = _mesh(case.mesh)
    scores = normal(*case.shape, seed=3, dtype=torch.float64)
    scores = scores.masked_fill(scores < -1.5, -torch.inf)
    whole = scores.clone().requires_grad_()
    parts = distribute_tensor(scores, mesh, case.placements).requires_grad_()
    k, k_parts, leaf = _budget(case, mesh, function == "hard")
    t, t_parts = (torch.tensor(0.4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    mask = options.pop("mask", None)
    mask_parts = mask
    if isinstance(mask, str):
        mask = normal(*case.shape, seed=4) > -1
        mask_parts = distribute_tensor(mask, mesh, case.placements)
    rest = {"dim": case.dim, **options}
    call = FUNCTIONS[function]
    wanted = call(whole, k, t, mask=mask, **rest)
    found = call(parts, k_parts, t_parts, mask=mask_parts, **rest)
    said: dict[str, Any] = {}
    if isinstance(wanted, tuple):
        (wanted, b), (found, own) = wanted, found
        said["threshold"] = _difference(own, b)
        said["threshold placed"] = own.placements
    grad = normal(*wanted.shape, seed=5, dtype=torch.float64)
    wanted.backward(grad)
    found.backward(distribute_tensor(grad, mesh, found.placements))
    assert isinstance(found, DTensor)
    assert isinstance(parts.grad, DTensor)
    said["placed"] = found.placements, parts.grad.placements
    said["result"] = _difference(found, wanted)
    said["scores"] = _difference(parts.grad, whole.grad)
    if leaf is not None:
        said["k"] = _difference(leaf.grad, k.grad)
        assert type(leaf.grad) is type(leaf)
        if isinstance(leaf, DTensor):
            said["k placed"] = leaf.grad.placements == leaf.placements
    said["temperature"] = _difference(t_parts.grad, t.grad)
    return said


_meshes: dict[tuple[int, ...], DeviceMesh] = {}


def _mesh(shape: tuple[int, ...]) -> DeviceMesh:
    if shape not in _meshes:
        names = ("replicas", "shards")[-len(shape) :]
        _meshes[shape] = init_device_mesh("cpu", shape, mesh_dim_names=names)
    return _meshes[shape]


def _options() -> Iterator[tuple[str, Case, str, dict[str, Any]]]:
    case = Case((2, 2), (S0, S1), (6, 11), k="tensor per row")
    row_mask = torch.arange(11) % 4 != 1
    yield "smallest", case, "log", {"largest": False}
    yield "clamped", case, "mask", {"clamp": True, "return_threshold": True}
    yield "validated", case, "mask", {"validate": True}
    yield "a mask placed like the scores", case, "mask", {"mask": "DTensor"}
    yield "a mask of a row on all ranks", case, "hard", {"mask": row_mask, "clamp": True}
    yield "with a boundary", case, "hard", {"return_threshold": True}


def errors(rank: int) -> dict[str, str]:
    """What is said of DTensors that cannot be."""
    mesh, other = _mesh((4,)), _mesh((2, 2))
    x = distribute_tensor(normal(6, 11), mesh, [S1])
    partial = DTensor.from_local(normal(6, 11), mesh, [Partial()], run_check=False)
    k = distribute_tensor(torch.ones(6), other, [R, R])
    made: dict[str, Callable[[], Any]] = {
        "partial": lambda: soft_topk(partial, 2),
        "mesh": lambda: soft_topk(x, k),
        "shape": lambda: soft_topk(x, torch.ones(5)),
        "mask": lambda: soft_topk(x, 1, mask=torch.ones(5, dtype=torch.bool)),
        "group": lambda: soft_topk(x, 1, group=mesh.get_group()),
        "lengths": lambda: threshold(x, 1, lengths=torch.ones(6, dtype=torch.int64)),
        "over": lambda: soft_topk(x, 12),
        "solver": lambda: soft_topk(x, 1, solver="bisect"),
        "select": lambda: select_topk(x, 2),
        "hard mask": lambda: hard_topk_mask(x, 2),
        "sample": lambda: sample_topk(x, 2),
        "list": lambda: soft_topk_list([x, torch.ones(3)], 2),
        "list partial": lambda: soft_topk_list([x, partial], 2),
        "list meshes": lambda: soft_topk_list([x, k], 2),
        "list group": lambda: soft_topk_list([x], 2, group=mesh.get_group()),
        "list over": lambda: soft_topk_list([x], 67),
        "list k": lambda: soft_topk_list([x], torch.ones(3)),
    }
    said = {}
    for name, call in made.items():
        try:
            said[name] = repr(call())
        except (ValueError, TypeError) as error:
            said[name] = str(error)
    return said


def others(rank: int) -> dict[str, Any]:
    """What else a DTensor may meet: a loss of its own, a layer, a mesh without this rank."""
    mesh = _mesh((4,))
    start = normal(6, 11, seed=3, dtype=torch.float64)
    scores = distribute_tensor(start, mesh, [S1]).requires_grad_()
    found: dict[str, Any] = {}
    weights = distribute_tensor(normal(6, 11, seed=6, dtype=torch.float64), mesh, [R])
    b = threshold(scores, 2, 0.3)
    loss = (soft_topk(scores, 2, 0.3) * weights).sum() + (b * b).sum()
    loss.backward()
    whole = start.clone().requires_grad_()
    b = threshold(whole, 2, 0.3)
    ((soft_topk(whole, 2, 0.3) * _full(weights)).sum() + (b * b).sum()).backward()
    found["loss"] = _difference(scores.grad, whole.grad)
    layer = SoftTopK(2, 0.3, num_scores=11)
    found["layer"] = _difference(layer(scores.detach()), layer(start))
    tied = torch.tensor([[1.0, 3, 3, 3, 2, 3, 3]])
    hard = soft_topk(distribute_tensor(tied, mesh, [S1]), 3, hard=True)
    found["ties"] = _difference(hard, soft_topk(tied, 3, hard=True))
    late = scores.detach().redistribute(mesh, [R], async_op=True)
    found["on its way"] = _difference(soft_topk(late, 2), soft_topk(start, 2))
    return found


#: Shapes and placements of lists, each on a mesh; some parts are empty.
LISTS: dict[str, tuple[tuple[int, ...], list[tuple[tuple[int, ...], list[Placement]]]]] = {
    "sharded": ((4,), [((5, 3), [S0]), ((2,), [S0]), ((3, 9), [S1])]),
    "some of them on all ranks": ((4,), [((5, 3), [S0]), ((6,), [R]), ((), [R]), ((2,), [R])]),
    "all of them on all ranks": ((4,), [((5, 3), [R]), ((6,), [R])]),
    "replicas of shards": ((2, 2), [((5, 3), [R, S0]), ((1,), [R, S0])]),
    "sharded both ways": ((2, 2), [((5, 3), [S0, S1]), ((7,), [S0, R]), ((), [R, R])]),
}


def compare_list(name: str, hard: bool) -> dict[str, Any]:
    """A list of DTensors beside whole tensors."""
    shape, kinds = LISTS[name]
    mesh = _mesh(shape)
    starts = [normal(*size, seed=i, dtype=torch.float64) for i, (size, _) in enumerate(kinds)]
    wholes = [one.clone().requires_grad_() for one in starts]
    parts = [
        distribute_tensor(one, mesh, placed).requires_grad_()
        for one, (_, placed) in zip(starts, kinds, strict=True)
    ]
    k, own_k, t, own_t = (
        torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (6, 6, 0.5, 0.5)
    )
    wanted, b = soft_topk_list(wholes, k, t, hard=hard, return_threshold=True)
    found, own_b = soft_topk_list(parts, own_k, own_t, hard=hard, return_threshold=True)
    said: dict[str, Any] = {"threshold": _difference(own_b, b)}
    for i, (mask, other) in enumerate(zip(found, wanted, strict=True)):
        said[f"mask {i}"] = _difference(mask, other)
        assert isinstance(mask, DTensor)
        assert mask.placements == parts[i].placements
        grad = normal(*other.shape, seed=i + 50, dtype=torch.float64)
        other.backward(grad, retain_graph=True)
        mask.backward(distribute_tensor(grad, mesh, mask.placements), retain_graph=True)
    for i, (one, other) in enumerate(zip(parts, wholes, strict=True)):
        said[f"gradient {i}"] = _difference(one.grad, other.grad)
    said["k"], said["t"] = _difference(own_k.grad, k.grad), _difference(own_t.grad, t.grad)
    return said


def _model() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(7, 3), torch.nn.ReLU(), torch.nn.Linear(3, 9)]
    return torch.nn.Sequential(*layers).double()


def under_fsdp(mesh: DeviceMesh) -> dict[str, Any]:
    """Parameters under FSDP2 that are pruned where they lie; a weight of 3 rows has empty parts."""
    whole, model = _model(), _model()
    for layer in (model[0], model[2], model):  # type: ignore[index]
        fully_shard(layer, mesh=mesh)
    pairs = [list(one.parameters()) for one in (whole, model)]
    soft = [soft_topk_list([p.abs() for p in one], 20, 0.1) for one in pairs]
    for parameters, masks in zip(pairs, soft, strict=True):
        losses = [(p * m).square().sum() for p, m in zip(parameters, masks, strict=True)]
        torch.autograd.backward(losses)
    said: dict[str, Any] = {
        f"gradient {i}": _difference(b.grad, a.grad)
        for i, (a, b) in enumerate(zip(*pairs, strict=True))
    }
    hard = [soft_topk_list([p.abs() for p in one], 20, hard=True) for one in pairs]
    for parameters, masks in zip(pairs, hard, strict=True):
        with torch.no_grad():
            for p, mask in zip(parameters, masks, strict=True):
                p.mul_(mask)
    said |= {f"weight {i}": _difference(b, a) for i, (a, b) in enumerate(zip(*pairs, strict=True))}
    left = sum(int(torch.count_nonzero(p.full_tensor())) for p in pairs[1])
    said["kept"] = left == 20
    said["empty"] = min(p.to_local().numel() for p in pairs[1]) == 0
    data = normal(4, 7, dtype=torch.float64)
    said["output"] = _difference(model(data), whole(data))
    return said


def compiled(rank: int, ranks: int) -> float:
    """The largest difference of whole graphs from eager calls, gradients included."""
    mesh = _mesh((ranks,))
    start = normal(4, 11, seed=3, dtype=torch.float64)

    def values(x: DTensor) -> list[Tensor]:
        soft, log = soft_topk(x, 2, 0.3), log_soft_topk(x, 2, 0.3)
        return [soft, log, threshold(x, 2, 0.3), *soft_topk_list([x, 2 * x], 9, 0.3)]

    graph = torch.compile(values, backend="aot_eager", fullgraph=True)
    worst = 0.0
    for placed in (S1, S0):
        ours, theirs = (distribute_tensor(start, mesh, [placed]).requires_grad_() for _ in range(2))
        found, wanted = graph(ours), values(theirs)
        for one in (found, wanted):
            torch.autograd.backward([value.square().sum() for value in one])
        for a, b in zip((*found, ours.grad), (*wanted, theirs.grad), strict=True):
            worst = max(worst, _difference(a, _full(b)))
    return worst


def main(rank: int, ranks: int) -> dict[str, Any]:
    """All of it; how many of several gathers torch makes of one is not of interest here."""
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    found: dict[str, Any] = {"cases": {}, "options": {}}
    for number, case in enumerate(CASES):
        names = FUNCTIONS if number % 4 == 0 else ["mask", list(FUNCTIONS)[number % 4]]
        for function in names:
            found["cases"][f"{function} of {case.name}"] = (case, function, compare(case, function))
    for name, case, function, options in _options():
        found["options"][name] = compare(case, function, **options)
    found["errors"] = errors(rank)
    found["others"] = others(rank)
    found["lists"] = {
        f"{name}, hard: {hard}": compare_list(name, hard)
        for name in LISTS
        for hard in (False, True)
    }
    found["fsdp"] = [under_fsdp(_mesh((4,))), under_fsdp(_mesh((2, 2)))]
    return found
