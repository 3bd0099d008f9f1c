"""The page on many devices: its scripts run, and messages are as many and as long as it says."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.distributed as dist

import counted_calls
import ranks as processes
from fast_lapsum.backends.shards import Sizes
from places import ROOT

pytestmark = processes.NEEDS_GLOO
PAGE = ROOT / "docs" / "distributed.md"
SCRIPTS = re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", PAGE.read_text("utf-8"), re.S | re.M)


def test_scripts_run() -> None:
    """As torchrun starts them: each meets at a store that is there before its processes are."""
    assert {"batch_topk.py", "learned_budget.py"} <= {name for name, _ in SCRIPTS}
    code = [script for _, script in SCRIPTS]
    stores = [dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for _ in code]
    ports = [store.port for store in stores]
    assert processes.run(counted_calls.run_scripts, 2, code, ports, timeout=None) == [4, 4]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "code"), SCRIPTS)
def test_scripts_run_by_torchrun(name: str, code: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(code)
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", name]
    done = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "docs" / "tools")
    return importlib.import_module("rank_simulation")


def test_messages_are_those_of_the_page(simulation: ModuleType) -> None:
    """Counted in processes: as many bytes as the table's, and what options add."""
    found, other = processes.run(counted_calls.count, 2)
    assert found == other  # ranks say as much as each other
    for rows in (1, 64):
        first, each, backward = simulation.message_bytes(rows, 2, torch.float32)
        forward = {name: found[name, rows][0] for name in counted_calls.OPTIONS}
        plain = forward["mask"]
        assert 2 <= len(plain) <= 4
        assert plain == [first] + [each] * (len(plain) - 1)
        assert len(forward["validated"]) == len(plain) + 2
        assert len(forward["clamped"]) == len(plain) + 1
        assert forward["hard"][0] == 2 * first
        assert max(forward["hard"]) == max(2 * first, 2 * each)
        assert len(forward["hard with its boundary"]) == len(forward["hard"]) + 1
        assert all(found[name, rows][1] == [backward] for name in counted_calls.OPTIONS)


def test_the_simulation_is_of_these_messages(simulation: ModuleType) -> None:
    """Of other sizes of messages the tables would have to be made anew."""
    found = json.loads(simulation.RESULTS.read_text("utf-8"))
    for one in found["cases"]:
        first, each, backward = simulation.message_bytes(one["rows"], one["ranks"], torch.float32)
        most = Sizes.of(one["rows"], one["ranks"]).most_rounds(torch.float32)
        assert one["most_collectives"] == 1 + most, "run docs/tools/rank_simulation.py"
        assert one["most_bytes"] == first + most * each
        assert one["bytes"] == first + (one["collectives"] - 1) * each
        assert one["backward_bytes"] == backward
        assert one["collectives"] <= 4
        assert one["relative_error_of_mass"] < 1e-7


def test_a_call_can_be_simulated(simulation: ModuleType) -> None:
    found = simulation.simulate(3, 5, 400)
    assert 2 <= found["collectives"] <= 4
    assert found["relative_error_of_mass"] < 1e-7
