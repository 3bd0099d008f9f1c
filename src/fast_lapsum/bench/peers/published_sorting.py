"""Published packages for soft sorting, which lead to a mask by one step more, where installed.

- torchsort 0.1 (T. Koker; M. Blondel, O. Teboul, Q. Berthet, J. Djolonga, "Fast Differentiable
  Sorting and Ranking", ICML 2020) has soft ranks and soft sorted values and no mask. The isotonic
  solver behind them (``torchsort.ops.isotonic_l2``, pool adjacent violators, one thread per row)
  projects onto any permutahedron; onto that of k ones it is the peer "Sparse top-k (PAV)", in the
  dtype of the scores, with torchsort's own backward.
- softtorch 0.1 (Python >= 3.12): ``topk(x, k, method="softsort")`` returns k soft indices [B, k, n]
  beside the values; the mask is their sum, as in the peer "SoftSort". Its other methods are peers
  here as well.
- softjax 0.1: the same in JAX, compiled; tensors change hands by DLPack, which copies nothing.
  torch's allocator does not see JAX's memory.
"""

from __future__ import annotations

import importlib
import os
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.dlpack import from_dlpack

from .protocol import Peer, whole_budget
from .published import _needs


class _Isotonic(torch.autograd.Function):
    """Scores in units of t [B, n] -> their projection onto the permutahedron of k ones."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, k: int) -> Tensor:
        ops = importlib.import_module("torchsort.ops")
        ordered, order = z.sort(-1, descending=True)
        corner = torch.zeros_like(ordered)
        corner[:, :k] = 1
        dual = ops.isotonic_l2[z.device.type](ordered - corner)
        ctx.save_for_backward(ordered, dual, order)
        return torch.empty_like(z).scatter_(-1, order, ordered - dual)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        ordered, dual, order = ctx.saved_tensors
        ops = importlib.import_module("torchsort.ops")
        in_order = grad.gather(-1, order)
        pooled = ops.isotonic_l2_backward[grad.device.type](ordered, dual, in_order)
        return torch.empty_like(grad).scatter_(-1, order, in_order - pooled), None


def isotonic_topk(scores: Tensor, k: float, temperature: float) -> Tensor:
    """The mask of every row of scores [B, n], by torchsort's isotonic solver."""
    budget = whole_budget(k, scores.shape[-1])
    mask: Tensor = _Isotonic.apply(scores / temperature, budget)  # type: ignore[no-untyped-call]
    return mask


def softtorch_topk(scores: Tensor, k: float, temperature: float) -> Tensor:
    """The mask of every row of scores [B, n], by softtorch."""
    budget = whole_budget(k, scores.shape[-1], least=1)
    soft = importlib.import_module("softtorch").topk(
        scores, budget, dim=-1, softness=temperature, method="softsort", standardize=False
    )
    mask: Tensor = soft.indices.sum(-2)
    return mask


class _SoftJAX(torch.autograd.Function):
    """Scores [B, n] -> the mask, computed and differentiated by JAX."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, k: int, temperature: float) -> Tensor:
        jax = _jax()
        mask_only, with_pullback, _ = _compiled(k, temperature)
        x = jax.dlpack.from_dlpack(scores.detach().contiguous())
        if ctx.needs_input_grad[0]:
            mask, ctx.pullback = with_pullback(x)
        else:
            mask = mask_only(x)
        ctx.rule = k, temperature
        result: Tensor = from_dlpack(mask)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        jax = _jax()
        _, _, pull = _compiled(*ctx.rule)
        (d_scores,) = pull(ctx.pullback, jax.dlpack.from_dlpack(grad.contiguous()))
        return from_dlpack(d_scores), None, None


def softjax_topk(scores: Tensor, k: float, temperature: float) -> Tensor:
    """The mask of every row of scores [B, n], by softjax."""
    budget = whole_budget(k, scores.shape[-1], least=1)
    mask: Tensor = _SoftJAX.apply(scores.float(), budget, temperature)  # type: ignore[no-untyped-call]
    return mask.to(scores.dtype)


def _jax() -> Any:
    # JAX would take three quarters of a GPU's memory on its first call.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    return importlib.import_module("jax")


@lru_cache(maxsize=8)
def _compiled(k: int, temperature: float) -> tuple[Any, Any, Any]:
    """The mask, the mask with its pullback (a value that JAX can return), and applying one."""
    jax = _jax()
    softjax = importlib.import_module("softjax")

    def mask(x: Any) -> Any:
        _, indices = softjax.top_k(x, k, softness=temperature, method="softsort", standardize=False)
        return indices.sum(-2)

    return (
        jax.jit(mask),
        jax.jit(lambda x: jax.vjp(mask, x)),
        jax.jit(lambda pullback, grad: pullback(grad)),
    )


PEERS = (
    Peer(
        name="torchsort (isotonic solver)",
        paper="Blondel, Teboul, Berthet, Djolonga 2020, Fast Differentiable Sorting and Ranking, "
        "ICML; the package torchsort",
        function=isotonic_topk,
        exact_budget=True,
        memory="O(n)",
        temperature="t is the strength of the regulariser: the ramp from 0 to 1 is t wide.",
        available=_needs("torchsort", "soft_rank"),
    ),
    Peer(
        name="softtorch (softsort)",
        paper="Prillo, Eisenschlos 2020, SoftSort: A Continuous Relaxation for the argsort "
        "Operator, ICML; the package softtorch",
        function=softtorch_topk,
        exact_budget=True,
        memory="O(n k)",
        temperature="The softness is t, which divides gaps between scores.",
        available=_needs("softtorch", "topk"),
    ),
    Peer(
        name="softjax (softsort)",
        paper="Prillo, Eisenschlos 2020, SoftSort: A Continuous Relaxation for the argsort "
        "Operator, ICML; the package softjax",
        function=softjax_topk,
        exact_budget=True,
        memory="O(n k)",
        temperature="The softness is t, which divides gaps between scores.",
        compiles=True,
        available=_needs("softjax", "top_k"),
    ),
)
