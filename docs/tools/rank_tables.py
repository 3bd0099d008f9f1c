"""The tables of docs/distributed.md: what ranks say, counted, and how long that takes, by a model.

The counts are those of rank_simulation.json. The model is NCCL's own of a ring: a time to begin,
one for each of the ring's steps, and the bytes over the bandwidth, for the fastest of its
protocols.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

from result_tables import figures

COUNTS = Path(__file__).with_name("rank_simulation.json")
GPUS_PER_NODE = 8
#: Bytes per second and direction of one GPU: NVLink 4, 900 GB/s in both; InfiniBand NDR, 400 Gb/s.
NVLINK, INFINIBAND = 450e9, 50e9
#: Seconds that a step of a ring takes at least where it has to serve the network, too.
NETWORK_OVERHEAD = 1e-6


class Protocol(NamedTuple):
    """One of NCCL's: seconds to begin, per step over NVLink and over the network, and bandwidth."""

    begin: float
    nvlink: float
    network: float
    efficiency: float  # of the bandwidth
    most_on_a_node: float  # bytes per second
    most_between: float


#: LL, LL128 and Simple for a ring on Hopper, as in NCCL's tables for its choice of algorithms.
PROTOCOLS = (
    Protocol(6.6e-6, 0.6e-6, 2.7e-6, 0.5, 141e9, 35e9),
    Protocol(14.0e-6, 1.9e-6, 4.0e-6, 0.92, math.inf, math.inf),
    Protocol(8.4e-6, 3.4e-6, 14.0e-6, 1.0, math.inf, math.inf),
)


def ring_seconds(size: float, ranks: int) -> float:
    """An all-gather of ``size`` bytes from each rank, around a ring."""
    nodes = math.ceil(ranks / GPUS_PER_NODE)
    between = nodes - 1
    found = []
    for protocol in PROTOCOLS:
        inside, most = protocol.nvlink, protocol.most_on_a_node
        bandwidth = NVLINK
        if between:
            inside, most = max(inside, NETWORK_OVERHEAD), protocol.most_between
            bandwidth = min(NVLINK, GPUS_PER_NODE * INFINIBAND)
        latency = (ranks - 1 - between) * inside + between * protocol.network
        speed = min(bandwidth * protocol.efficiency, most)
        found.append(protocol.begin + latency + (ranks - 1) * size / speed)
    return min(found)


def doubling_seconds(size: float, ranks: int) -> float:
    """The same in as many steps as the number of ranks can be halved: what a ring could reach."""
    first = PROTOCOLS[0]
    steps = math.log2(min(ranks, GPUS_PER_NODE))
    between = math.log2(max(ranks / GPUS_PER_NODE, 1))
    bytes_in = (ranks - 1) * size
    slowest = INFINIBAND if between else NVLINK
    return first.begin + steps * first.nvlink + between * first.network + bytes_in / slowest


def _cases(rows: int | None = None) -> list[dict[str, Any]]:
    cases = json.loads(COUNTS.read_text(encoding="utf-8"))["cases"]
    return [one for one in cases if rows in (None, one["rows"])]


def counts() -> str:
    """Collectives and bytes of a call, forward, per rank."""
    lines = [
        "| rows | ranks | collectives on a CPU | bytes | on a GPU | bytes | backward, bytes |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    names = ("rows", "ranks", "collectives", "bytes", "most_collectives", "most_bytes")
    for one in _cases():
        cells = [f"{one[name]:,}" for name in (*names, "backward_bytes")]
        lines.append("| " + " | ".join(cells) + " |")
    worst = max(one["relative_error_of_mass"] for one in _cases())
    return (
        "\n".join(lines) + f"\n\nThe masses of these masks are off by {worst:.0e} of k at most.\n"
    )


def times() -> str:
    """Microseconds of the collectives of a call on one long row."""
    lines = [
        "| ranks | call | collectives | gathered bytes | ring | halving |",
        "|---:|---|---:|---:|---:|---:|",
    ]
    for one in _cases(rows=1):
        ranks = one["ranks"]
        for name, number, size in (
            ("forward on a GPU", one["most_collectives"], one["most_bytes"]),
            ("forward, if it could look", one["collectives"], one["bytes"]),
            ("backward", 1, one["backward_bytes"]),
        ):
            models = (ring_seconds, doubling_seconds)
            took = [figures(1e6 * number * model(size / number, ranks)) for model in models]
            cells = [f"{ranks:,}", name, str(number), f"{ranks * size:,}", *took]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
