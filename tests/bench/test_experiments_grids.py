"""The paper's grids: every stage is the operator, forward and backward, and the tables show it."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest
import torch
from rich.console import Console
from rich.table import Table

from fast_lapsum import reference
from fast_lapsum.backends.triton import loader
from fast_lapsum.bench.experiment import Experiment, Settings, Unavailable
from fast_lapsum.bench.experiments import ablation, backward, forward, variants
from fast_lapsum.bench.experiments.selection import SanityError

SETTINGS = Settings("cpu", True, 3, 10**6, 20.0, 2.0, 0)
FULL = SETTINGS._replace(quick=False, max_n=10**8)
SMALL = variants.Problem(2, 64, 4, 0.5)


def _text(tables: list[Table]) -> str:
    out = io.StringIO()
    Console(width=180, file=out).print(*tables)
    return out.getvalue()


class TestVariants:
    @pytest.mark.parametrize("variant", variants.VARIANTS)
    def test_mask_and_gradient_are_the_references(self, variant: str) -> None:
        torch.manual_seed(0)
        scores, cotangent = torch.randn(2, 64), torch.randn(2, 64)
        leaf = scores.clone().requires_grad_()
        mask = variants.variant_function(variant, "cpu")(leaf, 4, 0.5)
        (gradient,) = torch.autograd.grad(mask, leaf, cotangent)
        torch.testing.assert_close(
            mask.detach().double(), reference.soft_topk(scores, 4, 0.5), atol=1e-6, rtol=0
        )
        for row in range(2):
            found = reference.solve_row(scores[row], 4, 0.5)
            expected, _, _ = reference.vjp_row(cotangent[row], scores[row], found, 0.5)
            torch.testing.assert_close(gradient[row].double(), expected, atol=1e-5, rtol=0)

    def test_a_wrong_mask_gets_no_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        wrong = {"scan": lambda scores, k, t: scores.sigmoid()}
        monkeypatch.setattr(variants, "_torch_stages", lambda: wrong)
        with pytest.raises(SanityError, match="scan: its mask"):
            variants.forward_values("scan", SMALL, SETTINGS)
        with pytest.raises(SanityError, match="scan: its gradient"):
            variants.backward_values("scan", SMALL, SETTINGS)

    def test_a_gpu_without_triton_lacks_the_kernels(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(loader, "entry", lambda: None)
        with pytest.raises(Unavailable, match="needs Triton"):
            variants.variant_function("fused", "cuda")
        assert variants.variant_function("bisection", "cuda") is not None


class TestCases:
    @pytest.mark.parametrize("experiment", [forward.EXPERIMENT, backward.EXPERIMENT])
    def test_the_grid_is_the_papers(self, experiment: Experiment) -> None:
        cases = experiment.cases(FULL)
        assert len(cases) == 18 * len(variants.VARIANTS)
        sweep = [c.key["n"] for c in cases if c.key["sweep"] == "n"][:: len(variants.VARIANTS)]
        assert sweep == [256, 512, 1024, 2048, 4096, 8192, 16384]
        assert all(case.size == case.key["B"] * case.key["n"] for case in cases)

    @pytest.mark.parametrize("module", [forward, backward, ablation])
    def test_quick_is_less_and_a_ceiling_holds(self, module: object) -> None:
        experiment: Experiment = module.EXPERIMENT  # type: ignore[attr-defined]
        quick = experiment.cases(SETTINGS)
        assert 0 < len(quick) < len(experiment.cases(FULL))
        assert max(c.size for c in experiment.cases(FULL._replace(max_n=20_000))) <= 20_000

    def test_ablation_has_every_stage_in_order(self) -> None:
        rows = [c.key for c in ablation.cases(FULL) if c.key["table"] == "tab:ablation-main"]
        assert [key["variant"] for key in rows] == list(variants.VARIANTS)
        assert {(key["B"], key["n"]) for key in rows} == {(16, 4096)}


class TestMeasure:
    @pytest.mark.parametrize("module", [forward, backward])
    def test_values_and_tables(self, module: object) -> None:
        experiment: Experiment = module.EXPERIMENT  # type: ignore[attr-defined]
        rows = []
        for case in experiment.cases(SETTINGS)[: len(variants.VARIANTS)]:
            values = experiment.measure(case, SETTINGS)
            assert values["seconds"]["p20"] <= values["seconds"]["p50"] <= values["seconds"]["p80"]
            assert 0 <= values["error"] < 1e-4
            rows.append({"key": case.key, "status": "ok", "values": values})
        rows.append(
            {"key": {**rows[0]["key"], "n": 512, "k": 32}, "status": "timeout", "reason": ""}
        )
        text = _text(experiment.tables({"rows": rows, "settings": SETTINGS._asdict()}))
        assert "over n (B = 8" in text
        assert "> 20 s" in text
        assert ("7.5e-07" if module is forward else "4.2e-07") in text  # the paper's own

    def test_ablation(self) -> None:
        cases = [c for c in ablation.cases(SETTINGS) if c.key["n"] == 1024]
        rows = [
            {"key": c.key, "status": "ok", "values": ablation.measure(c, SETTINGS)} for c in cases
        ]
        late = {"table": "tab:ablation-main", "B": 16, "n": 4096, "variant": "scan"}
        rows.append({"key": late, "status": "oom", "reason": ""})
        text = _text(ablation.tables({"rows": rows, "settings": SETTINGS._asdict()}))
        assert "sort-free" in text
        assert "16.5x" in text
        assert "oom" in text


INTERPRETED = """
import torch
from fast_lapsum import reference
from fast_lapsum.bench import scan_kernels

torch.manual_seed(0)
problems = [
    (3, 37, 5, 1.0), (2, 64, 1, 0.01), (2, 40, 39.5, 0.3), (1, 2, 1, 1.0), (1, 2, 1, 0.001),
    (1, 5, 0.2, 1.0), (1, 5, 4.9, 1.0), (1, 1, 0.5, 1.0),
]
for batch, n, k, t in problems:
    for tied in (False, True):
        scores, cotangent = torch.randn(batch, n), torch.randn(batch, n)
        scores = scores.round() if tied else scores
        expected = reference.soft_topk(scores, k, t)
        for stage in ("scan", "block scan", "fused"):
            leaf = scores.clone().requires_grad_()
            mask = scan_kernels.soft_topk(leaf, k, t, stage)
            error = float((mask - expected).abs().max())
            assert error < 1e-6, (batch, n, k, t, tied, stage, error)
            (gradient,) = torch.autograd.grad(mask, leaf, cotangent)
            for row in range(batch):
                found = reference.solve_row(scores[row], k, t)
                wanted, _, _ = reference.vjp_row(cotangent[row], scores[row], found, t)
                error = float((gradient[row] - wanted).abs().max()) * t
                assert error < 1e-5, (batch, n, k, t, tied, stage, error)
for bad, k in ((torch.zeros(1, 4).double(), 2), (torch.zeros(1, 4), 4)):
    try:
        scan_kernels.soft_topk(bad, k, 1.0, "scan")
    except ValueError as error:
        assert "float32 rows" in str(error)
    else:
        raise AssertionError("taken")
"""


def test_the_scan_kernels_are_the_operator() -> None:
    """In a process of its own: Triton decides on import whether it interprets."""
    pytest.importorskip("triton", reason="Triton is not installed")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", INTERPRETED],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
