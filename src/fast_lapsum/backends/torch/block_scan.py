"""Sums that decay from node to node, by blocks: few operations, for lists of some thousand nodes.

`sort_scan.scan` gives the same by pairs, with an eighth of the exponentials and three times the
operations, each of which costs a launch.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: Nodes whose sums are taken from each other directly: of few nodes in all, and of many, whose
#: exponentials count for more than operations do.
_BLOCKS = 16, 4
_FEW = 65_536


def scan(ordered: Tensor, weights: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """Prefix and suffix sums at every node, [rows, m] each; see sort_scan.py."""
    nodes = torch.cat((ordered, ordered.flip(-1)))
    both = torch.cat((weights, weights.flip(-1)))
    sums = _prefix_sums(nodes, both, torch.cat((temperature, temperature))[:, None, None])
    upper, lower = sums.chunk(2)
    return upper, lower.flip(-1)


def _prefix_sums(nodes: Tensor, weights: Tensor, temperature: Tensor) -> Tensor:
    """sum_{j <= i} weight_j e^{-|r_j - r_i|/t}, in blocks, the blocks recursively."""
    rows, count = nodes.shape
    size = _BLOCKS[nodes.numel() > _FEW]
    blocks = -(-count // size)
    padding = blocks * size - count
    if padding:  # weightless copies of the last node
        nodes = torch.cat((nodes, nodes[:, -1:].expand(rows, padding)), -1)
        weights = torch.nn.functional.pad(weights, (0, padding))
    nodes, weights = nodes.view(rows, blocks, size), weights.view(rows, blocks, size)
    apart = (nodes[..., :, None] - nodes[..., None, :]).abs() / temperature[..., None]
    sums = (torch.exp(-apart).tril() * weights[..., None, :]).sum(-1)
    if blocks > 1:
        ends = nodes[..., -1]
        carried = _prefix_sums(ends, sums[..., -1], temperature)[:, :-1, None]
        decay = torch.exp(-(ends[:, :-1, None] - nodes[:, 1:]).abs() / temperature)
        sums[:, 1:] += carried * decay
    return sums.view(rows, -1)[:, :count]
