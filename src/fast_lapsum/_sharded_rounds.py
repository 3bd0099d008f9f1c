"""The search for the thresholds of rows that are spread over ranks, as messages to and from them.

A search is a generator: it yields what this rank has to say, as bytes, and is sent what all ranks
have said, in their order. Whoever drives it brings the collectives. The first message is a sample;
each of the others measures a band of every row. All ranks make the same of the same numbers, so
they are done at the same time, and their thresholds have the same bits.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import torch
from torch import Tensor

from ._sharded_header import check_headers, header
from .backends.shards import Rows, Sizes, Solved
from .backends.torch import shard_entry as plain

#: What this rank says, what all say, and what it comes to.
Search = Generator[Tensor, Tensor, Solved]


def search(
    shard: Any, budget: Tensor, temperature: Tensor, rows: Rows, steps: Any = plain.Steps
) -> Search:
    """The thresholds at budgets and temperatures [rows], from this rank's part of the rows.

    ``steps`` is the class that makes the next question of what all ranks have answered.
    """
    sizes = Sizes.of(rows.number, rows.ranks)
    step = steps(budget, temperature, rows, sizes)
    sample = shard.sample(sizes.sample)
    message = sample.message
    if message is None or rows.looks:
        message = pack(header(sample, budget, temperature, rows), sample.nodes)
    gathered = yield message
    if rows.looks:
        check_headers(gathered)
    step.begin(gathered)
    for _ in range(sizes.most_rounds(rows.dtype, rows.looks)):
        measured = shard.measure(step.low, step.high, step.pivots, sizes.nodes, step.is_open)
        message = measured.message
        if step.advance((yield pack(*measured[:2]) if message is None else message)):
            break
    return step.solved  # type: ignore[no-any-return]


def together(searches: Sequence[Search]) -> Generator[Tensor, Tensor, list[Solved]]:
    """Several searches that share their messages."""
    if len(searches) == 1:
        return [(yield from searches[0])]
    found: dict[int, Solved] = {}
    said = {number: next(one) for number, one in enumerate(searches)}
    while said:
        every = list(said.values())
        gathered = yield torch.cat(every) if len(every) > 1 else every[0]
        parts = torch.split(gathered, [one.numel() for one in said.values()], -1)
        said_next = {}
        for number, part in zip(said, parts, strict=True):
            try:
                said_next[number] = searches[number].send(part)
            except StopIteration as stop:
                found[number] = stop.value
        said = said_next
    return [found[number] for number in range(len(searches))]


def pack(numbers: Tensor, nodes: Tensor) -> Tensor:
    """Numbers of the widest dtype and scores of their own as one vector of bytes."""
    return torch.cat([x.contiguous().view(-1).view(torch.uint8) for x in (numbers, nodes)])
