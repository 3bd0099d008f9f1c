"""The examples run, go on where they were, and their committed results are theirs and whole."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from places import ROOT

pytest.importorskip("sklearn", reason="the examples need scikit-learn (pip install '.[examples]')")
pytest.importorskip("matplotlib", reason="the examples need matplotlib")
pytest.importorskip("efficientnet_lite_pytorch", reason="the examples need a network")

SCRIPTS = {
    path.stem: path.stem.replace("_", "-")
    for path in sorted((ROOT / "examples").glob("*.py"))
    if path.stem not in ("__main__", "study")
}
#: Whose budget is one of thresholds at inference.
WITH_BUDGETS = ("sparse-autoencoder", "routed-language-model", "token-selection")


def _committed(name: str) -> dict[str, Any]:
    path = ROOT / "results" / "examples" / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _imported(monkeypatch: pytest.MonkeyPatch, script: str) -> Any:
    monkeypatch.syspath_prepend(ROOT / "examples")
    return importlib.import_module(script)


def test_all_run_in_short_form(tmp_path: Path) -> None:
    options = ["--short", "--folder", tmp_path, "--figures", tmp_path]
    done = subprocess.run(
        [sys.executable, ROOT / "examples", *options],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert len(SCRIPTS) == 6
    for name in SCRIPTS.values():
        found = json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))
        assert found["short"]
        assert len(found["summary"]) == len(found["conditions"]) * len(found["grids"])
        assert (tmp_path / f"example-{name}.svg").read_text(encoding="utf-8").count("</svg>") == 1
    where, warning = done.stdout.splitlines()[-2:]
    assert where == f"Results are in {tmp_path}, pictures in {tmp_path}."
    assert "prove nothing" in warning
    left = {path.suffix for path in tmp_path.iterdir()}
    assert left == {".json", ".svg"}, "temporary files are renamed"


@pytest.mark.parametrize("script", SCRIPTS)
def test_committed_results_are_of_the_script(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same protocol, every method with every seed, and grids of one size."""
    study, found = _imported(monkeypatch, script).STUDY, _committed(SCRIPTS[script])
    assert found["protocol"] == study.protocol
    assert not found["short"]
    assert found["grids"] == {method.name: list(method.grid) for method in study.methods}
    assert len({len(grid) for grid in found["grids"].values()}) == 1
    assert set(found["ours"]) < set(found["grids"])
    for condition in study.conditions:
        for method, grid in found["grids"].items():
            runs = [
                r for r in found["runs"] if (r["condition"], r["method"]) == (condition, method)
            ]
            tuned = [run for run in runs if run["role"] == "tuning"]
            compared = [run for run in runs if run["role"] == "compared"]
            assert [run["setting"] for run in tuned] == grid
            assert sorted(run["seed"] for run in compared) == [0, 1, 2, 3, 4]
            assert found["tuning_seed"] not in [run["seed"] for run in compared]
            sign = 1 if study.smaller_is_better else -1
            best = min(tuned, key=lambda run: sign * run["values"]["validation"])["setting"]
            assert all(run["setting"] == best for run in compared)
            # Two minutes per run, on a machine that has other work as well.
            assert all(run["cpu_seconds"] < 120 for run in runs)
    assert (ROOT / "docs" / "figures" / f"example-{SCRIPTS[script]}.svg").is_file()


@pytest.mark.parametrize("name", WITH_BUDGETS)
def test_the_budget_is_kept_on_held_out_data(name: str) -> None:
    found = _committed(name)
    ours = [line for line in found["summary"] if line["method"] in found["ours"]]
    assert ours
    for line in ours:
        assert line["means"]["active"] == pytest.approx(1, abs=0.01), line["method"]


@pytest.mark.parametrize("condition", ["5 percent", "2 percent"])
def test_pruned_networks_have_as_many_weights_as_asked_for(condition: str) -> None:
    runs = [run for run in _committed("pruning")["runs"] if run["condition"] == condition]
    assert runs
    assert all(run["values"]["kept"] == 1 for run in runs)


class Counted:
    """A toy study, which knows how often it was trained."""

    def __init__(self, module: Any) -> None:
        self.calls: list[Any] = []
        methods = (
            module.Method("usual", module.grid(rate=(1.0, 2.0))),
            module.Method("ours", module.grid(rate=(3.0, 4.0)), is_ours=True),
        )
        self.study = module.Study(
            name="toy", text="A toy.", methods=methods, conditions={"a": "A"}, measure="error",
            smaller_is_better=True, protocol={"steps": 3}, short={"steps": 1}, train=self.train,
        )  # fmt: skip

    def train(self, run: Any) -> dict[str, float]:
        self.calls.append(run)
        if len(self.calls) == 6:
            raise KeyboardInterrupt
        error = run.setting["rate"] + 0.01 * run.seed
        return {"validation": error, "test": -error}


def test_an_interrupted_study_goes_on_and_another_protocol_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = _imported(monkeypatch, "study")
    toy = Counted(module)
    options = ["--folder", str(tmp_path), "--figures", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["toy.py", *options])
    with pytest.raises(KeyboardInterrupt):
        module.main(toy.study)
    assert len(json.loads((tmp_path / "toy.json").read_text())["runs"]) == 5
    module.main(toy.study)
    assert len(toy.calls) == 6 + 2 * (2 + 5) - 5  # the one that was interrupted is made again
    found = json.loads((tmp_path / "toy.json").read_text())
    (ours,) = (line for line in found["summary"] if line["method"] == "ours")
    assert ours["setting"] == {"rate": 3.0}
    assert ours["differences"]["usual"]["mean"] == pytest.approx(-2)
    assert ours["differences"]["usual"]["verdict"] == "ours"
    module.main(toy.study)
    assert len(toy.calls) == 15, "nothing is left to train"
    monkeypatch.setattr(sys, "argv", ["toy.py", "--short", *options])
    module.main(toy.study)
    assert "another protocol" in capsys.readouterr().err
    assert len(toy.calls) == 15 + 2 * (2 + 2)


def test_grids_of_several_sizes_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = _imported(monkeypatch, "study")
    toy = Counted(module)
    uneven = module.Method("more tuning", module.grid(rate=(1.0, 2.0, 3.0)))
    study = type(toy.study)(**{**vars(toy.study), "methods": (*toy.study.methods, uneven)})
    monkeypatch.setattr(sys, "argv", ["toy.py", "--folder", str(tmp_path)])
    with pytest.raises(ValueError, match=r"one size for all methods, got \[2, 3\]"):
        module.main(study)
    assert toy.calls == []
