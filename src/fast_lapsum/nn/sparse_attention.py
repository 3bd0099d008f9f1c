"""Attention to k keys or blocks of keys: a bias of the attention, from scores that learn."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from .._arguments import check_flag, check_mask, check_scores
from ..functional import log_soft_topk
from ..selection import hard_topk_mask
from .budgeted import Budgeted, checked_count, shown, whole_budget

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

#: What flex_attention calls for every pair: score, batch, head, query and key.
ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


class SparseAttentionBias(Budgeted):
    r"""The bias log p that limits attention to k keys, or blocks of keys, for each query.

    .. math:: \mathrm{softmax}(q k^\top + \log p) \propto p \, e^{q k^\top}

    p is the soft mask of an indexer's scores, with mass k in every row. So the indexer, whose
    selection would otherwise pass no gradient on, learns from the attention's own output. In
    ``eval()`` keys that are not among the k best have a bias of minus infinity and the others none:
    the sparse attention that a kernel would compute.

    A causal row that sees fewer than k keys takes all of them, with a bias of zero.

    Args:
        k: keys per query, or blocks of keys, at least 1. It can be annealed; a fractional one is
            rounded down in ``eval()``.
        temperature: of the soft mask, in units of the indexer's scores. It can be annealed.
        block_size: how many keys one score of the indexer stands for.
        is_causal: a query sees keys up to its own position. The last query stands at the last key,
            so that a few new queries may follow cached keys.

    Shape:
        scores: ``(..., queries, blocks)``, with ``blocks = ceil(keys / block_size)``.
        bias: ``(..., queries, keys)``.

    Example:
        >>> bias = SparseAttentionBias(k=2, temperature=0.1)
        >>> index_scores = torch.tensor([[0.0, 9.0, 9.0], [1.0, 0.0, 9.0], [3.0, 1.0, 2.0]])
        >>> bias(index_scores).exp().round(decimals=2)
        tensor([[1., 0., 0.],
                [1., 1., 0.],
                [1., 0., 1.]])
        >>> query, key, value = torch.randn(3, 1, 3, 8).unbind()
        >>> attend = torch.nn.functional.scaled_dot_product_attention
        >>> attend(query, key, value, attn_mask=bias(index_scores)).shape
        torch.Size([1, 3, 8])
    """

    #: A query without a key has no attention.
    _least_k = 1

    def __init__(
        self,
        k: float | Tensor,
        temperature: float | Tensor = 1.0,
        *,
        block_size: int = 1,
        is_causal: bool = True,
    ) -> None:
        super().__init__(k, temperature)
        self.block_size = checked_count("block_size", block_size)
        self.is_causal = check_flag("is_causal", is_causal)

    def forward(
        self, scores: Tensor, num_keys: int | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """The bias for ``scaled_dot_product_attention``, in the dtype of the scores.

        Args:
            scores: the indexer's, one per query and block.
            num_keys: where the last block is not full; else all blocks are.
            mask: boolean, broadcasts to ``scores``; False leaves a block out.
        """
        selected = self.selection(scores, num_keys, mask)
        if self.block_size == 1:
            return selected
        num_keys = self._num_keys(scores, num_keys)
        of_keys = selected.repeat_interleave(self.block_size, -1)[..., :num_keys]
        if not self.is_causal:
            return of_keys
        return of_keys.masked_fill(~self._seen(scores, num_keys, 1), -math.inf)

    def selection(
        self, scores: Tensor, num_keys: int | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """log p of the blocks, ``(..., queries, blocks)``; arguments are those of a call."""
        mask = self._valid(scores, num_keys, mask)
        k, temperature = self._of_call()
        if self.training:
            return log_soft_topk(scores, k, temperature, mask=mask, clamp=True)
        # log of ones and zeros, and of NaN, which is NaN
        return self._chosen(scores, k, mask).log()

    def score_mod(
        self, scores: Tensor, num_keys: int | None = None, mask: Tensor | None = None
    ) -> ScoreMod:
        """The same bias for ``flex_attention``, without a bias for every pair in memory.

        ``scores`` is ``(batch, heads, queries, blocks)``; batch and heads may be 1, which all of
        the attention's then share.
        """
        _check_four(scores)
        selected = self.selection(scores, num_keys, mask)
        batches, heads, queries, _ = scores.shape
        first = self._num_keys(scores, num_keys) - queries
        block_size, is_causal = self.block_size, self.is_causal

        def add_bias(
            score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor
        ) -> Tensor:
            bias = selected[batch % batches, head % heads, query, key // block_size]
            biased = score + bias.to(score.dtype)
            if not is_causal or block_size == 1:
                return biased
            return torch.where(key <= query + first, biased, -math.inf)

        return add_bias

    def block_mask(
        self,
        scores: Tensor,
        num_keys: int | None = None,
        mask: Tensor | None = None,
        query_block_size: int = 128,
    ) -> BlockMask:
        """What ``flex_attention`` need not compute at inference, so that sparse is cheaper, too.

        The blocks that no query of a tile of ``query_block_size`` has chosen are not read. Queries
        of a tile attend to the blocks that each has chosen itself: the attention of ``eval()``. The
        choice is hard, without a gradient, in ``train()``, too. A row with a NaN reads all that it
        sees; with :meth:`score_mod` beside the mask it is NaN.

        ``block_size`` is the size of blocks of keys there, for which the kernels of a GPU want a
        multiple of their own, mostly 128. Arguments are those of :meth:`score_mod`; ``scores`` that
        heads share make a mask that they share.
        """
        from torch.nn.attention.flex_attention import BlockMask

        _check_four(scores)
        tile = checked_count("query_block_size", query_block_size)
        valid = self._valid(scores, num_keys, mask)
        chosen = self._chosen(scores.detach(), self._value("given_k"), valid) != 0
        batches, heads, queries, _ = scores.shape
        num_keys = self._num_keys(scores, num_keys)
        first, block_size, is_causal = num_keys - queries, self.block_size, self.is_causal

        def is_read(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            found = chosen[batch % batches, head % heads, query, key // block_size]
            return found & (key <= query + first) if is_causal else found

        padded = F.pad(chosen, (0, 0, 0, -queries % tile))
        of_tile = padded.reshape(batches, heads, -1, tile, scores.shape[-1]).any(3)
        order = of_tile.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
        return BlockMask.from_kv_blocks(
            of_tile.sum(-1, dtype=torch.int32),
            order.to(torch.int32),
            BLOCK_SIZE=(tile, block_size),
            mask_mod=is_read,
            seq_lengths=(queries, num_keys),
        )

    def _valid(self, scores: Tensor, num_keys: int | None, mask: Tensor | None) -> Tensor | None:
        """Which blocks a query may choose from."""
        check_scores(scores, -1)
        if scores.dim() < 2:
            raise ValueError(
                "scores must have a dimension of queries and one of blocks, "
                f"got shape {tuple(scores.shape)}"
            )
        mask = None if mask is None else check_mask(mask, scores)
        if not self.is_causal:
            return mask
        seen = self._seen(scores, self._num_keys(scores, num_keys), self.block_size)
        return seen.expand(scores.shape) if mask is None else mask & seen

    def _chosen(self, scores: Tensor, k: float | Tensor, mask: Tensor | None) -> Tensor:
        return hard_topk_mask(scores, whole_budget(k, 1), mask=mask, clamp=True)

    def _num_keys(self, scores: Tensor, num_keys: int | None) -> int:
        blocks = scores.shape[-1]
        if num_keys is None:
            return blocks * self.block_size
        if not (blocks - 1) * self.block_size < num_keys <= blocks * self.block_size:
            raise ValueError(
                f"num_keys must fill {blocks} blocks of block_size={self.block_size}, the last "
                f"one in part, got num_keys={num_keys}"
            )
        return num_keys

    def _seen(self, scores: Tensor, num_keys: int, block_size: int) -> Tensor:
        """Which keys, or blocks by their first key, a query sees."""
        queries = scores.shape[-2]
        positions = torch.arange(num_keys - queries, num_keys, device=scores.device)
        starts = torch.arange(0, num_keys, block_size, device=scores.device)
        return starts <= positions.unsqueeze(-1)

    def extra_repr(self) -> str:
        """What ``print`` shows of the layer."""
        return (
            f"k={shown(self.k)}, temperature={shown(self.temperature)}, "
            f"block_size={self.block_size}, is_causal={self.is_causal}"
        )


def _check_four(scores: Tensor) -> None:
    check_scores(scores, -1)
    if scores.dim() != 4:
        raise ValueError(
            "scores must be (batch, heads, queries, blocks) for flex_attention, "
            f"got shape {tuple(scores.shape)}"
        )
