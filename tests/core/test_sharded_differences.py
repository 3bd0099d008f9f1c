"""Ranks that call for different things, without `validate`: all end, and none with a mask."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

import different_calls
import ranks as processes
from fast_lapsum._sharded_header import check_headers, header
from fast_lapsum._sharded_rounds import pack
from fast_lapsum.backends.shards import Rows, Sample

pytestmark = processes.NEEDS_GLOO
RANKS, TIMEOUT = 3, 10.0
SAYS = {
    "fewer rows": "number of rows must be the same on all ranks of group, got 2 on ranks 0, 2, 1",
    "more rows": "number of rows must be the same on all ranks of group, got 1 on ranks 0, 2, 2 on",
    "half": "dtype of scores must be the same on all ranks of group, got bfloat16 on ranks 0, 2, f",
    "one k": "k must be the same on all ranks of group, got 5 on ranks 0, 2, 7 on rank 1",
    "k": "k must be the same on all ranks of group, got 5 on ranks 0, 2, 7 on rank 1",
    "a k for each row": "k must be the same on all ranks of group, got some on ranks 0, 2, othe",
    "k of some": "k must be the same on all ranks of group, got one for each row on ranks 0, 2, ",
    "temperature": "temperature must be the same on all ranks of group, got 0.3 on ranks 0, 2, 0.",
}


def _ended(name: str) -> list[processes.Ended]:
    return processes.run_to_the_end(
        different_calls.call, RANKS, name, limit=TIMEOUT + 50, timeout=TIMEOUT
    )


@pytest.mark.parametrize("name", SAYS)
def test_messages_of_one_size_say_what_differs(name: str) -> None:
    for one in _ended(name):
        assert one.result is None
        assert f"ValueError: {SAYS[name]}" in one.error


def test_messages_of_several_sizes_end_the_collective() -> None:
    """Gloo ends a process that is sent more than it expects, and the others' collective fails."""
    for one in _ended("other sizes"):
        assert one.result is None
        assert (
            one.code == -6
            or "must be the same on all ranks" in one.error
            or ("a collective of fast_lapsum" in one.error)
        )


def test_a_nan_is_no_difference() -> None:
    """It is a budget without an answer, the same on all ranks."""
    for one in _ended("NaN"):
        assert one.code == 0, one.error
        assert one.result[1].isnan().all()
        assert not one.result[0].isnan().any()


def _message(nodes: Tensor, largest: bool, temperature: float = 1.0) -> Tensor:
    k = torch.ones(len(nodes), dtype=torch.float64)
    rows = Rows(len(nodes), nodes.dtype, 1, True, largest)
    return pack(header(Sample(nodes, 3, 3), k, temperature * k, rows), nodes)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_message_of_one_rank_alone_may_have_any_length(dtype: torch.dtype) -> None:
    message = _message(torch.zeros(7, 3, dtype=dtype), True)
    assert message.numel() % 8
    check_headers(message[None])


def test_the_side_is_compared() -> None:
    messages = [_message(torch.zeros(2, 3), largest) for largest in (True, False)]
    with pytest.raises(ValueError, match="largest must be the same on all ranks"):
        check_headers(torch.stack(messages))


@pytest.mark.parametrize("other", [0.2, 0.10000000000000002, 1.0, 3.0, 1e300])
def test_temperatures_are_shown_as_they_were_written(other: float) -> None:
    """As short as tells two numbers apart."""
    messages = [_message(torch.zeros(2, 3), True, t) for t in (0.1, other)]
    shown = repr(other).removesuffix(".0")
    with pytest.raises(ValueError, match=rf"got 0\.1 on rank 0, {re.escape(shown)} on rank 1"):
        check_headers(torch.stack(messages))


def test_another_kind_of_call_is_named_as_such() -> None:
    """What its first bytes are is nobody's dtype."""
    messages = [_message(torch.zeros(2, 3), True), torch.full((72,), 77, dtype=torch.uint8)]
    with pytest.raises(ValueError, match=r"got another one from rank 1: another function, hard="):
        check_headers(torch.stack([one[:72] for one in messages]))
