"""The soft mask of rows by other ways: as segments, padded, and cut into lists."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fast_lapsum import soft_topk, soft_topk_list

from .rows import Batch

#: A list is called row by row: so many of a batch.
MOST_LISTS = 16


def segments(batch: Batch, solver: str) -> Tensor:
    """Each row a segment; between them others, of up to 36 scores, and empty ones.

    So segments begin anywhere, and those of one launch have several lengths.
    """
    rows, n = batch.scores.shape
    device = batch.scores.device
    between = (torch.arange(rows, device=device) * 7) % 37
    lengths = torch.stack((torch.full_like(between, n), between), -1).view(-1)
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    total = int(offsets[-1])
    places = offsets[:-1:2, None] + torch.arange(n, device=device)
    values = torch.ones(total, dtype=batch.scores.dtype, device=device)
    values[places] = batch.scores
    mask = None
    if batch.mask is not None:
        mask = torch.ones(total, dtype=torch.bool, device=device)
        mask[places] = batch.mask
    k, t = (_each(x, rows, device) for x in (batch.k, batch.temperature))
    k = torch.stack((k, between / 3), -1).view(-1)
    t = t.repeat_interleave(2)
    given = {"mask": mask, "largest": batch.largest, "solver": solver}
    p = soft_topk(values, k, t, cu_seqlens=offsets.int(), **given)  # type: ignore[arg-type]
    return p[places]


def padded(batch: Batch, solver: str) -> Tensor:
    """Rows with something behind them that must have no part."""
    rows, n = batch.scores.shape
    behind = torch.tensor([math.nan, math.inf, 0.0], device=batch.scores.device)
    wide = torch.cat((batch.scores, behind.to(batch.scores.dtype).expand(rows, 3)), -1)
    mask = None
    if batch.mask is not None:
        mask = torch.nn.functional.pad(batch.mask, (0, 3), value=True)
    lengths = torch.full((rows,), n, device=wide.device)
    given = {"mask": mask, "largest": batch.largest, "solver": solver}
    k, t = (_each(x, rows, wide.device) for x in (batch.k, batch.temperature))
    p = soft_topk(wide, k, t, lengths=lengths, **given)  # type: ignore[arg-type]
    return torch.where((p[:, n:] == 0).all(-1, keepdim=True), p[:, :n], math.nan)


def lists(batch: Batch, solver: str) -> Tensor:
    """Rows cut in four, of which one is empty; masked scores have to be left out by hand."""
    rows, n = batch.scores.shape
    scores = batch.scores
    if batch.mask is not None:
        scores = scores.masked_fill(~batch.mask, -math.inf if batch.largest else math.inf)
    p = soft_topk(
        *(batch.scores, batch.k, batch.temperature),
        mask=batch.mask,
        largest=batch.largest,
    ).clone()
    ks, ts = (_each(x, rows, scores.device) for x in (batch.k, batch.temperature))
    for row in range(min(rows, MOST_LISTS)):
        cuts = torch.tensor([n // 3, n // 3, n - n // 5])
        parts = scores[row].tensor_split(cuts)
        masks = soft_topk_list(parts, ks[row], ts[row], largest=batch.largest)
        p[row] = torch.cat(masks)
    return p


def _each(value: float | Tensor, rows: int, device: torch.device) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64, device=device).expand(rows)


MASKS: dict[str, Callable[[Batch, str], Tensor]] = {
    "segments": segments,
    "padded": padded,
    "list": lists,
}
