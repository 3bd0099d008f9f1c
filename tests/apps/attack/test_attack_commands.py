"""``fast-lapsum attack`` and ``attack-bench``: their files, and that the saved picture fools."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from PIL import Image
from torch import Tensor
from typer.testing import CliRunner

from attack_models import SHAPES, confident_pictures, trained_classifier
from attack_runs import app, photo, run, said, small_model
from fast_lapsum.apps.attack import figures, picture_run, pictures
from fast_lapsum.apps.attack.protocol import Progress
from fast_lapsum.bench import options, sources

__all__ = ["photo", "small_model"]  # fixtures


def test_writes_all_files_and_they_hold(tmp_path: Path, photo: Path) -> None:
    out = tmp_path / "out"
    result = run(photo, "--out", out, "--method", "sigma-zero", "--calls", 60)
    assert result.exit_code == 0, said(result)
    names = ["photo-attacked.png", "photo-change.png", "photo-figure.png", "photo-zoom.png"]
    assert sorted(path.name for path in out.iterdir()) == [*names, "photo.json"]
    record = json.loads((out / "photo.json").read_text())
    attacked = pictures.read(out / "photo-attacked.png")
    image = pictures.read(photo)
    predicted = int(trained_classifier().predict(attacked[None])[0].argmax())
    found = record["measures"]
    assert predicted == found["predicted"] == record["verified"]["predicted"]
    assert predicted != record["label"]
    assert record["verified"]["same_pixels"]
    assert found["success"]
    assert found["B"] == pytest.approx(float((attacked - image).abs().mean(0).sum()), rel=1e-5)
    assert found["L0"] == int(((attacked - image).abs().amax(0) > 0).sum())
    assert found["calls"] <= 60
    assert record["limits"] == {"calls": 60, "seconds": None, "steps": None}
    assert record["environment"]["torch"] == torch.__version__
    assert record["sources"] == sources.describe("attack", "cpu")
    assert record["measures"]["extra"]["settings"]["step"] == 1.0
    with Image.open(out / "photo-change.png") as change:
        assert change.size == (32, 32)
    assert f"{SHAPES[predicted]}" in said(result)
    assert "B = " in said(result)


def test_ours_with_its_hard_support_and_profile(tmp_path: Path, photo: Path) -> None:
    result = run(photo, "--out", tmp_path / "out", "--calls", 60, "--profile")
    assert result.exit_code == 0, said(result)
    record = json.loads((tmp_path / "out" / "photo.json").read_text())
    assert record["method"] == "ours"
    assert record["measures"]["L_star"] > 0
    assert record["measures"]["L_star_calls"] > 0
    assert record["measures"]["calls"] <= 60
    assert re.search(r"profile: a step takes \d+\.\d\d ms, the operator \d+\.\d\d ms", said(result))
    timed = record["profile"]
    assert timed["share"] == pytest.approx(timed["operator_seconds"] / timed["step_seconds"])
    assert f"a step takes {1e3 * timed['step_seconds']:.2f} ms" in said(result)


def test_two_runs_write_the_same_pictures(tmp_path: Path, photo: Path) -> None:
    for name in ("one", "two"):
        run(photo, "--out", tmp_path / name, "--method", "sparse-pgd", "--calls", 40, "--seed", 5)
    for name in ("photo-attacked.png", "photo-figure.png"):
        first, second = ((tmp_path / out / name).read_bytes() for out in ("one", "two"))
        assert first == second


def test_target_label_and_region(tmp_path: Path, photo: Path) -> None:
    label = int(confident_pictures(1)[1][0])
    Image.new("L", (32, 32), 255).save(tmp_path / "region.png")
    out = tmp_path / "out"
    target = SHAPES[(label + 1) % 4]
    arguments = ("--out", out, "--method", "sigma-zero", "--calls", 150, "--label", label)
    result = run(photo, *arguments, "--target", target, "--region", tmp_path / "region.png")
    assert result.exit_code == 0, said(result)
    record = json.loads((out / "photo.json").read_text())
    assert record["target_name"] == record["measures"]["predicted_name"] == target
    assert record["region"] == "region.png"


def test_not_fooled_is_said_and_only_recorded(tmp_path: Path, photo: Path) -> None:
    out = tmp_path / "out"
    result = run(photo, "--out", out, "--method", "sigma-zero", "--calls", 1)
    assert result.exit_code == 1
    assert "Not fooled: " in said(result)
    assert [path.name for path in out.iterdir()] == ["photo.json"]
    assert not json.loads((out / "photo.json").read_text())["measures"]["success"]


@pytest.mark.parametrize("fools", [False, True])
def test_a_saved_file_that_is_not_what_was_found_is_no_success(
    tmp_path: Path, photo: Path, monkeypatch: pytest.MonkeyPatch, fools: bool
) -> None:
    real = pictures.write

    def other(path: Path, image: Tensor) -> None:
        changed = image.clone()
        changed[0, 0, 0] = (changed[0, 0, 0] + 0.5) % 1
        real(path, changed if fools else pictures.read(photo))

    monkeypatch.setattr(pictures, "write", other)
    out = tmp_path / "out"
    result = run(photo, "--out", out, "--method", "sigma-zero", "--calls", 60)
    assert result.exit_code == 1
    assert "the picture does not fool once it is saved and read back" in said(result)
    assert "Not fooled: " in said(result)
    assert [path.name for path in out.iterdir()] == ["photo.json"]
    record = json.loads((out / "photo.json").read_text())
    assert not record["measures"]["success"]
    assert record["files"] == {}
    assert not record["verified"]["same_pixels"]


def test_pictures_of_an_earlier_run_do_not_stay_beside_another_record(
    tmp_path: Path, photo: Path
) -> None:
    out = tmp_path / "out"
    run(photo, "--out", out, "--method", "sigma-zero", "--calls", 60)
    assert len(list(out.iterdir())) == 5
    (out / "photo-of-mine.png").write_text("not of this command")
    result = run(photo, "--out", out, "--method", "sigma-zero", "--calls", 1)
    assert result.exit_code == 1
    assert sorted(path.name for path in out.iterdir()) == ["photo-of-mine.png", "photo.json"]


def test_the_size_of_the_configuration(tmp_path: Path, photo: Path) -> None:
    out = tmp_path / "out"
    run(photo, "--model", "sized", "--out", out, "--resize", "config", "--calls", 4)
    assert json.loads((out / "photo.json").read_text())["resize"] == 32
    words = ["attack-bench", photo.parent, "--model", "sized", "--out", tmp_path / "bench"]
    words += ["--methods", "sigma-zero", "--calls", "4", "--settings", "config,32", "--seconds", 60]
    result = CliRunner().invoke(app, [*map(str, words), "--device", "cpu"])
    assert result.exit_code == 0, said(result)
    record = json.loads((tmp_path / "bench" / "results.json").read_text())
    assert record["settings"]["settings"] == [32]
    assert {row["key"]["setting"] for row in record["rows"]} == {"short side 32"}


def test_progress_names_everything() -> None:
    step = Progress(12, 13, 2, 0.9312, False, 53.21, None, k=120.0, temperature=0.31)
    assert picture_run.progress_text(step, trained_classifier()) == (
        "step 12, horizontal bars 0.931, k 120, t 0.31, B 53.2, not fooled yet"
    )
    step = step._replace(k=None, temperature=None, best_budget=50.0)
    assert picture_run.progress_text(step, trained_classifier()).endswith("B 53.2, best 50.0")


def test_the_densest_square_is_found() -> None:
    changes = torch.zeros(200, 300)
    changes[100:110, 250:260] = 0.5
    changes[3, 3] = 1.0
    region = figures.densest(changes)
    assert region.side == 25
    assert float(region.of(changes).sum()) == 50


def test_the_scale_of_changes_is_absolute() -> None:
    changes = torch.tensor([[0.0, 1 / 765], [0.1, 1.0]])
    alone = figures.heat(changes[1:, :1])
    together = figures.heat(changes)
    assert (together[1, 0] == alone[0, 0]).all()
    assert together[0, 0].tolist() == [0, 0, 0]
    brightness = together.astype(int).sum(-1)
    assert brightness[0, 1] < brightness[1, 0] < brightness[1, 1]


def test_bench_from_the_command_line(tmp_path: Path, photo: Path) -> None:
    words: list[Any] = ["attack-bench", photo.parent, "--model", "small", "--out", tmp_path / "out"]
    words += ["--methods", "sigma-zero,pgd-l0", "--calls", "6,12", "--settings", "native"]
    result = CliRunner().invoke(app, [*map(str, words), "--device", "cpu"])
    assert result.exit_code == 0, said(result)
    assert (tmp_path / "out" / "tables.md").read_text().startswith("# Sparse attack")
    record = json.loads((tmp_path / "out" / "results.json").read_text())
    assert record["settings"]["calls"] == [6, 12]
    assert record["settings"]["settings"] == [None]
    again = CliRunner().invoke(app, [*map(str, words), "--device", "cpu", "--seed", "1"])
    assert again.exit_code == 2
    assert "seed was 0, is 1" in said(again)


def test_bench_goes_on_with_the_memory_it_began_with(
    tmp_path: Path, photo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words: list[Any] = ["attack-bench", photo.parent, "--model", "small", "--out", tmp_path / "out"]
    words += ["--methods", "sigma-zero", "--calls", "4", "--settings", "native", "--device", "cpu"]

    def bench(free: float, *more: str) -> tuple[Result, Any]:
        monkeypatch.setattr(options, "half_of_memory", lambda device: free)
        result = CliRunner().invoke(app, [*map(str, words), *more])
        record = json.loads((tmp_path / "out" / "results.json").read_text())
        return result, record["settings"]["gibibytes"]

    assert bench(3.0)[1] == 3
    result, kept = bench(2.5)
    assert (result.exit_code, kept) == (0, 3), said(result)
    result, kept = bench(2.5, "--gibibytes", "2")
    assert (result.exit_code, kept) == (2, 3)
    assert "gibibytes was 3.0, is 2.0" in said(result)
    result, kept = bench(2.5, "--fresh")
    assert (result.exit_code, kept) == (0, 2.5)
