"""What the kernels of a call leave behind, for tests that ask how a row was solved."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from fast_lapsum.triton import long_rows


def settled_states(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The rows' states after `settle_forward`, a tensor per call from now on.

    For calls with launch parameters of their own: others may be relaunched as a whole.
    """
    return _states_after(long_rows.settle_forward, monkeypatch)


def round_states(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The rows' states after every `round_forward`, likewise: what the next is to do."""
    return _states_after(long_rows.round_forward, monkeypatch)


def _states_after(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    states: list[Tensor] = []
    relaunched = long_rows.relaunch.launch

    def watched(key: Any, function: Any, *rest: Any, **options: Any) -> Any:
        made = relaunched(key, function, *rest, **options)
        if function is kernel:
            states.append(rest[2][function.arg_names.index("state")].clone())
        return made

    monkeypatch.setattr(long_rows.relaunch, "launch", watched)
    return states
