"""What several tests of the core share."""

from __future__ import annotations

import pytest

from fast_lapsum.backends.cpu import ranking_entry


@pytest.fixture(params=["kernel", "torch"])
def ranking_backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The C++ kernel where it is there, and plain torch."""
    if request.param == "torch":
        monkeypatch.setattr(ranking_entry, "supports", lambda tensor: False)
    return str(request.param)
