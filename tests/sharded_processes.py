"""One of several processes that call on rows spread over them; `test_sharded.py` starts them.

Arguments: the rank, how many there are, a file that all meet at, and the file for the results.
"""

from __future__ import annotations

import copy
import hashlib
import pickle
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from cases import DTYPES, normal
from fast_lapsum import _collectives, log_soft_topk, soft_topk, soft_topk_list, threshold
from fast_lapsum.nn import SoftTopK
from sharded_cases import Case, all_cases, cut_places

CALLS: dict[str, Callable[..., Tensor]] = {
    "mask": soft_topk,
    "log": log_soft_topk,
    "threshold": threshold,
    "hard": lambda *args, **options: soft_topk(*args, hard=True, **options),
}


class Counter:
    """Counts collectives and this rank's bytes in them."""

    def __init__(self) -> None:
        self.calls, self.bytes = 0, 0
        self._gather = _collectives.gather
        _collectives.gather = self.gather

    def gather(self, message: Tensor, name: str) -> Tensor:
        self.calls += 1
        self.bytes += message.numel() * message.element_size()
        return self._gather(message, name)

    def take(self) -> tuple[int, int]:
        """What was counted since the last time."""
        found = self.calls, self.bytes
        self.calls, self.bytes = 0, 0
        return found


def run(case: Case, rank: int, ranks: int, counter: Counter) -> dict[str, Any]:
    """This rank's part of a call and of its gradients."""
    group = dist.group.WORLD
    scores = case.part(case.scores, rank, ranks).clone().requires_grad_()
    k, t = case.k.clone().requires_grad_(), case.temperature.clone().requires_grad_()
    mask = None if case.mask is None else case.part(case.mask, rank, ranks)
    options: dict[str, Any] = {**case.options, "group": group, "mask": mask}
    grad = case.grad(ranks)
    if case.function in ("mask", "hard"):
        out, b = CALLS[case.function](scores, k, t, return_threshold=True, **options)
    else:
        out = CALLS[case.function](scores, k, t, **options)
        b = out if case.function == "threshold" else torch.zeros(())
    forward = counter.take()
    of_rank = (
        grad[rank].to(out.dtype) if case.function == "threshold" else case.part(grad, rank, ranks)
    )
    out.backward(of_rank)
    return {
        "out": out.detach(),
        "b": b.detach(),
        "d_scores": scores.grad,
        "d_k": k.grad,
        "d_t": t.grad,
        "collectives": (*forward, *counter.take()),
    }


def error_of(call: Callable[[], Any]) -> str:
    """The kind and the text of the error that a call ends with."""
    try:
        call()
    except (ValueError, TypeError, NotImplementedError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def mistakes(rank: int) -> dict[str, str]:
    """What is said of arguments that differ between ranks, or cannot be."""
    group = dist.group.WORLD
    x = normal(3, 20 + rank, dtype=torch.float32)
    odd = rank == 1
    found = {
        "k": lambda: soft_topk(x, 3 if odd else 2, group=group, validate=True),
        "t": lambda: threshold(x, 3, 0.5 if odd else 0.25, group=group, validate=True),
        "k of a row": lambda: soft_topk(
            x, torch.tensor([1.0, 2.0, 3.0 + rank]), group=group, validate=True
        ),
        "dtype": lambda: soft_topk(x.double() if odd else x, 2, group=group, validate=True),
        "rows": lambda: soft_topk(x[:2] if odd else x, 2, group=group, validate=True),
        "function": lambda: (log_soft_topk if odd else soft_topk)(x, 2, group=group, validate=True),
        "over": lambda: soft_topk(x, 1000, group=group),
        "over, validated": lambda: soft_topk(x, 1000, group=group, validate=True),
        "negative": lambda: soft_topk(x, -1, group=group),
        "not whole": lambda: soft_topk(x, 1.5, hard=True, group=group),
        "warm start": lambda: soft_topk(x, 2, warm_start=x[:, 0], group=group),
        "lengths": lambda: soft_topk(x, 2, lengths=torch.ones(3, dtype=torch.int64), group=group),
        "solver": lambda: soft_topk(x, 2, solver="bisect", group=group),
        "no group": lambda: soft_topk(x, 2, group=7),  # type: ignore[call-overload]
        "fine": lambda: soft_topk(x, 3, 0.5, group=group, validate=True),
    }
    said = {name: error_of(call) for name, call in found.items()}
    alone = dist.new_group([0])
    said["not a member"] = error_of(lambda: soft_topk(x, 2, group=alone))
    if rank == 0:
        dist.destroy_process_group(alone)
        said["destroyed"] = error_of(lambda: soft_topk(x, 2, group=alone))
    y = x.clone().requires_grad_()
    mask = soft_topk(y, 2, group=group)
    (first,) = torch.autograd.grad(mask.square().sum(), y, create_graph=True)
    said["second derivative"] = error_of(lambda: torch.autograd.grad(first.sum(), y))
    said["forward mode"] = error_of(
        lambda: torch.func.jvp(lambda z: soft_topk(z, 2, group=group), (x,), (x,))
    )
    return said


def dims(rank: int, ranks: int) -> dict[str, Tensor]:
    """Any dimension: the largest difference from the call on whole scores."""
    group, found = dist.group.WORLD, {}
    whole = normal(6, 10, 7, seed=5, dtype=torch.float64)
    for dim, along in ((0, 0), (1, 1), (-1, 2), ((0, 2), 0), ((2, 1), 1), (None, 0)):
        first, last = cut_places(whole.shape[along], ranks, "uneven")[rank : rank + 2]
        part = whole.narrow(along, first, last - first)
        for layout in (part, part.mT.contiguous().mT):
            got = soft_topk(layout, 3, 0.4, dim=dim, group=group)
            # Several dimensions: the order of scores among ties differs, and there are none.
            want = soft_topk(whole, 3, 0.4, dim=dim).narrow(along, first, last - first)
            name = f"{dim} {layout.is_contiguous()}"
            found[name] = (got - want).abs().amax() if got.numel() else torch.zeros(())
            assert got.shape == part.shape
    return found


def lists(rank: int, ranks: int) -> dict[str, Any]:
    """One budget over the lists of all ranks: masks, gradients and thresholds of this one's."""
    group, found = dist.group.WORLD, {}
    for name, dtypes in (("one dtype", (torch.float32,) * 3), ("many", DTYPES[1:])):
        for hard in (False, True):
            tensors = [one.requires_grad_() for one in list_of(rank, dtypes)]
            k = torch.tensor(11.0, dtype=torch.float64, requires_grad=True)
            masks, b = soft_topk_list(
                tensors, k, 0.3, hard=hard, return_threshold=True, group=group
            )
            torch.autograd.backward(masks, [torch.cos(x.detach()) for x in tensors])
            grads = [x.grad for x in tensors]
            found[f"{name} {hard}"] = ([x.detach() for x in masks], grads, k.grad, b)
    return found


def list_of(rank: int, dtypes: Sequence[torch.dtype]) -> list[Tensor]:
    """Tensors of a rank; the first rank has an empty one."""
    shapes = ((4, 3 + rank), (0 if rank == 0 else 2,), (5,))
    return [
        normal(*shape, seed=10 * rank + i, dtype=dtype)
        for i, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))
    ]


def layer(rank: int, ranks: int) -> dict[str, Any]:
    """A layer whose rows are spread, its copy, its pickle, and a model of it under DDP."""
    torch.manual_seed(0)
    group = dist.group.WORLD
    whole = normal(2, 30, seed=4, dtype=torch.float64)
    first, last = cut_places(30, ranks, "uneven")[rank : rank + 2]
    one = SoftTopK(
        6.5, 0.4, num_scores=30, learn_k=True, learn_temperature=True, process_group=group
    )
    alone = SoftTopK(6.5, 0.4, num_scores=30, learn_k=True, learn_temperature=True)
    found: dict[str, Any] = {"shown": repr(one)}
    for name, model in (("own", one), ("copy", copy.deepcopy(one))):
        out = model(whole[:, first:last])
        out.backward(whole[:, first:last])
        found[name] = float((out - alone(whole)[:, first:last]).abs().max()) if out.numel() else 0.0
    alone(whole).backward(whole)
    for name in ("budget_logit", "log_temperature"):
        got, want = getattr(one, name).grad, getattr(alone, name).grad
        found[f"d {name}"] = float((got - want).abs())
        found[f"bits of d {name}"] = float(got)
    again = pickle.loads(pickle.dumps(one))
    found["pickled"] = again.process_group is group
    found["kept"] = error_of(lambda: SoftTopK(2, keep_threshold=True, process_group=group))
    # DDP takes the mean over ranks of what is the whole gradient on each: it stays that.
    ddp = DistributedDataParallel(
        SoftTopK(6.5, 0.4, num_scores=30, learn_k=True, process_group=group)
    )
    ddp(whole[:, first:last]).backward(whole[:, first:last])
    averaged = ddp.module.budget_logit.grad
    fixed = SoftTopK(6.5, 0.4, num_scores=30, learn_k=True)
    fixed(whole).backward(whole)
    found["ddp"] = float((averaged - fixed.budget_logit.grad).abs())
    return found


def repeated(rank: int, ranks: int) -> list[str]:
    """Digests of ten runs of the same call."""
    case = Case(
        "repeated",
        "mask",
        normal(4, 5000, seed=9).float(),
        torch.tensor([1, 50, 2500.5, 4000]).double(),
        torch.tensor([1e-3, 0.1, 1.0, 30.0]).double(),
        "uneven",
    )
    found, counter = [], Counter()
    for _ in range(10):
        result = run(case, rank, ranks, counter)
        digest = hashlib.sha256()
        for name in ("out", "b", "d_scores", "d_k", "d_t"):
            digest.update(result[name].contiguous().numpy().tobytes())
        found.append(digest.hexdigest())
    return found


def compiled(rank: int) -> float:
    """The largest difference of a compiled call and its gradients from the eager one."""
    group = dist.group.WORLD
    x = normal(3, 40 + rank, seed=rank, dtype=torch.float64).requires_grad_()
    k = torch.tensor(7.5, dtype=torch.float64, requires_grad=True)

    def both(x: Tensor, k: Tensor, t: float) -> Tensor:
        p, b = soft_topk(x, k, t, group=group, return_threshold=True)
        logs = log_soft_topk(x, k, t, group=group, clamp=True, validate=True)
        return (p * p).sum() + b.sum() + logs.sum() + threshold(x, 3, t, group=group).sum()

    graph = torch.compile(both, backend="aot_eager", fullgraph=True)
    worst = 0.0
    for t in (0.3, 0.4, 0.5):
        for a, b in zip(
            *(torch.autograd.grad(one(x, k, t), (x, k)) for one in (both, graph)), strict=True
        ):
            worst = max(worst, float((a - b).abs().max()))
    return worst


def main(rank: int, ranks: int, adversarial_rows: int, meeting: str, results: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        *("gloo", f"file://{meeting}"),
        timeout=timedelta(seconds=60),
        rank=rank,
        world_size=ranks,
    )
    found: dict[str, Any] = {}
    counter = Counter()
    found["adversarial rows"] = adversarial_rows
    cases = all_cases(adversarial_rows)
    found["cases"] = {case.name: run(case, rank, ranks, counter) for case in cases}
    found["mistakes"] = mistakes(rank)
    found["dims"] = dims(rank, ranks)
    found["lists"] = lists(rank, ranks)
    found["layer"] = layer(rank, ranks)
    found["repeated"] = repeated(rank, ranks)
    found["compiled"] = compiled(rank) if ranks == 2 else 0.0
    torch.save(found, results)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*(int(number) for number in sys.argv[1:4]), *sys.argv[4:])
