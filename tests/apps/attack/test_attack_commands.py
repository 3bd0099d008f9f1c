"""``fast-lapsum attack``: its files, its errors, and that the saved picture fools."""

from __future__ import annotations

import errno
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import typer
from click.testing import Result
from PIL import Image
from torch import Tensor
from typer.testing import CliRunner

from attack_models import SHAPES, SmallNet, confident_pictures, trained_classifier, trained_net
from fast_lapsum import soft_topk
from fast_lapsum.apps.attack import classifiers, commands, figures, picture_run, pictures, profile
from fast_lapsum.apps.attack.baselines import sigma_zero
from fast_lapsum.apps.attack.classifiers import Resize
from fast_lapsum.apps.attack.protocol import Classifier, Progress
from fast_lapsum.apps.attack.protocol import Result as AttackResult
from fast_lapsum.bench import options, sources

app = typer.Typer()
commands.register(app)


class ChoosyNet(SmallNet):
    """The trained network, for pictures of at least 24 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.load_state_dict(trained_net().state_dict())

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[-1] < 24:
            raise RuntimeError("Kernel size can't be greater\nthan actual input size")
        return super().forward(images)


@pytest.fixture(autouse=True)
def small_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(model: str, resize: Resize, device: torch.device) -> Classifier:
        if model == "choosy":
            return Classifier(ChoosyNet(), SHAPES, name="choosy net")
        if model == "sized":  # 32 in its configuration
            size = 32 if resize == "config" else resize
            return classifiers.from_module(trained_net(), resize=size, labels=SHAPES)
        if model != "small":
            return classifiers.load_classifier(model, resize=resize, device=device)
        return trained_classifier()

    monkeypatch.setattr(picture_run, "load", load)


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    images, _ = confident_pictures(1)
    pictures.write(tmp_path / "photo.png", images[0])
    return tmp_path / "photo.png"


def run(*arguments: object) -> Result:
    words = ["attack", *map(str, arguments), "--device", "cpu"]
    if "--model" not in words:
        words += ["--model", "small"]
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, words)


def said(result: Result) -> str:
    return " ".join((result.stdout + result.stderr).split())


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


def test_profile_says_where_there_is_nothing_to_time(tmp_path: Path, photo: Path) -> None:
    without = run(photo, "--out", tmp_path / "out", "--method", "pgd-l0", "--profile")
    assert "profile: pgd-l0 has no operator" in said(without)
    short = run(photo, "--out", tmp_path / "out", "--calls", 1, "--profile")
    assert "profile: one step is too few to be timed" in said(short)
    assert json.loads((tmp_path / "out" / "photo.json").read_text())["profile"] is None


def test_steps_are_timed_without_their_start_and_their_display(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds = [0.0]
    monkeypatch.setattr(profile, "time", SimpleNamespace(perf_counter=lambda: seconds[0]))
    told: list[Progress] = []

    def slow_display(said: Progress) -> None:
        told.append(said)
        seconds[0] += 1000

    clock = profile.StepClock(slow_display)
    reports = [Progress(step, step, 0, 0.9, False, 1.0, None) for step in range(1, 5)]
    for report, passed in zip(reports, (100.0, 1.0, 2.0, 9.0), strict=True):
        seconds[0] += passed
        clock(report)
    assert clock.seconds == [1, 2, 9]
    assert told == reports


@pytest.mark.parametrize("region", [False, True])
def test_the_operator_is_timed_as_a_step_calls_it(
    monkeypatch: pytest.MonkeyPatch, region: bool
) -> None:
    """Tensors for k and t with their gradients, the region, and no time of the first calls."""
    mask = torch.zeros(4, 5, dtype=torch.bool)
    mask[1:] = True
    seconds = [0.0]
    called: list[tuple[Any, ...]] = []

    def timed(scores: Tensor, k: Tensor, t: Tensor, mask: Tensor | None) -> Tensor:
        called.append((scores, k, t, mask))
        seconds[0] += 100.0 if len(called) <= profile._WARM_UP else 0.5
        return soft_topk(scores, k, t, mask=mask)

    monkeypatch.setattr(profile, "time", SimpleNamespace(perf_counter=lambda: seconds[0]))
    monkeypatch.setattr(profile, "soft_topk", timed)
    extra: dict[str, object] = {"scores": torch.randn(4, 5), "k": 3.0, "t": 0.1}
    result = AttackResult(torch.zeros(3, 4, 5), True, 9, 1e6, 9, extra)
    found = profile.profile(result, [1.0, 4.0, 900.0], mask if region else None)
    assert found == profile.Profile(4.0, 0.5)
    assert len(called) == profile._WARM_UP + profile._REPEATS
    scores, k, t, allowed = called[0]
    assert (k.item(), t.item()) == (3.0, pytest.approx(0.1))
    assert all(one.requires_grad for one in (scores, k, t))
    assert torch.equal(allowed, mask.flatten()) if region else allowed is None


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


def test_a_batch_goes_on_past_bad_pictures(tmp_path: Path, photo: Path) -> None:
    grey, alpha, tiny = (tmp_path / f"{name}.png" for name in ("grey", "alpha", "tiny"))
    Image.new("L", (32, 32)).save(grey)
    Image.new("RGBA", (32, 32)).save(alpha)
    Image.new("RGB", (1, 1)).save(tiny)
    text = tmp_path / "text.png"
    text.write_text("no picture")
    cut = tmp_path / "cut.png"
    cut.write_bytes(photo.read_bytes()[:400])
    end = tmp_path / "end.png"
    end.write_bytes(photo.read_bytes()[:-1])
    bad = [tmp_path / "missing.png", text, tiny, grey, alpha, cut, end]
    out = tmp_path / "out"
    result = run(*bad, photo, "--out", out, "--method", "sigma-zero", "--calls", 40)
    assert result.exit_code == 2
    words = said(result)
    for message in (
        "missing.png: there is no such file",
        "text.png: not a picture",
        "tiny.png: 1 x 1 pixels, expected at least 8 x 8",
        "grey.png: mode L, expected 8-bit RGB",
        "alpha.png: mode RGBA, expected 8-bit RGB",
        "cut.png: ",
        "end.png: cut short: the end of the PNG is missing",
    ):
        assert message in words
    assert words.count("Not attacked:") == 7
    assert {path.name.partition("-")[0].partition(".")[0] for path in out.iterdir()} == {"photo"}


def test_no_picture_at_all_is_told_before_a_model_is_loaded(tmp_path: Path) -> None:
    result = run(tmp_path / "missing.png", "--model", "somebody/no-such-model")
    assert result.exit_code == 2
    assert "missing.png" in said(result)
    assert "does not exist" in said(result)
    assert "no-such-model" not in said(result)


@pytest.fixture
def small_and_photo(tmp_path: Path, photo: Path) -> Path:
    """A folder with photo.png, and a.png that the choosy model fails on."""
    Image.new("RGB", (16, 16)).save(tmp_path / "a.png")
    return tmp_path


def test_a_batch_goes_on_where_the_model_fails(tmp_path: Path, small_and_photo: Path) -> None:
    images, out = (small_and_photo / "a.png", small_and_photo / "photo.png"), tmp_path / "out"
    result = run(*images, "--model", "choosy", "--out", out, "--method", "sigma-zero")
    assert result.exit_code == 2
    assert (
        "a.png: choosy net fails on 16 x 16 pixels (RuntimeError: Kernel size can't be greater than"
        " actual input size); --resize N may give it a size that it takes"
    ) in said(result)
    assert len(list(out.iterdir())) == 5
    assert (out / "photo-attacked.png").exists()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("mask must be None"), "sigma-zero fails on {}: ValueError: mask must be None"),
        (RuntimeError("CUDA out of memory. Tried"), "{}: more memory is needed than there is;"),
    ],
)
def test_a_batch_goes_on_where_the_method_fails(
    tmp_path: Path,
    photo: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    message: str,
) -> None:
    pictures.write(tmp_path / "second.png", pictures.read(photo))
    real, errors = sigma_zero._descend, [error]

    def broken_once(*arguments: Any) -> Any:
        if errors:
            raise errors.pop()
        return real(*arguments)

    monkeypatch.setattr(sigma_zero, "_descend", broken_once)
    out = tmp_path / "out"
    result = run(photo, tmp_path / "second.png", "--out", out, "--method", "sigma-zero")
    assert result.exit_code == 2
    assert message.format(photo) in said(result)
    names = {path.name.partition("-")[0].partition(".")[0] for path in out.iterdir()}
    assert names == {"second"}


def test_probabilities_that_are_no_numbers(
    tmp_path: Path, photo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_numbers(self: Classifier, images: Tensor) -> Tensor:
        return torch.full((len(images), len(SHAPES)), torch.nan)

    monkeypatch.setattr(Classifier, "predict", no_numbers)
    result = run(photo, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "small net gives probabilities that are no numbers" in said(result)


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


def test_what_the_model_does_not_say_is_not_attacked(tmp_path: Path, photo: Path) -> None:
    label = int(confident_pictures(1)[1][0])
    out = tmp_path / "out"
    wrong = run(photo, "--out", out, "--label", SHAPES[(label + 2) % 4], "--method", "pgd-l0")
    assert wrong.exit_code == 2
    assert "the model already says" in said(wrong)
    unsure = run(photo, "--out", out, "--least-confidence", 1, "--method", "pgd-l0")
    assert unsure.exit_code == 2
    assert "--least-confidence 0 attacks all the same" in said(unsure)
    same = run(photo, "--out", out, "--target", label, "--method", "pgd-l0")
    assert "is what the model says" in said(same)
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--label", "bars"), "'bars' is no class of small net; near: horizontal bars"),
        (("--label", "9"), "--label 9: expected 0 to 3"),
        (("--label", "²"), "--label '²' is no class of small net"),
        (("--method", "magic"), "'magic' is no method; expected"),
        (("--resize", "huge"), "'huge' is not a whole number"),
        (("--calls", "0"), "'0' is not a whole number of at least 1"),
        (("--least-confidence", "2"), "'2' is not a number from 0 to 1"),
    ],
)
def test_wrong_arguments_are_named(
    tmp_path: Path, photo: Path, arguments: tuple[str, ...], message: str
) -> None:
    result = run(photo, "--out", tmp_path / "out", *arguments)
    assert result.exit_code == 2
    plain = said(result).replace("│ ", "").replace(" │", "")
    assert message in plain
    assert not (tmp_path / "out").exists()


def test_regions_of_another_size_or_empty(tmp_path: Path, photo: Path) -> None:
    region = tmp_path / "region.png"
    Image.new("L", (16, 32), 255).save(region)
    result = run(photo, "--out", tmp_path / "out", "--region", region, "--method", "pgd-l0")
    assert result.exit_code == 2
    assert "the region is 16 x 32, the picture 32 x 32" in said(result)
    Image.new("L", (32, 32), 0).save(region)
    result = run(photo, "--out", tmp_path / "out", "--region", region, "--method", "pgd-l0")
    assert "the region is empty" in said(result)


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP"])
def test_animations_are_refused(tmp_path: Path, kind: str) -> None:
    """The first frame was attacked without a word."""
    frames = [Image.new("RGB", (16, 16), colour) for colour in ("red", "blue", "green")]
    moving = tmp_path / f"moving.{kind.lower()}"
    frames[0].save(moving, format=kind, save_all=True, append_images=frames[1:])
    result = run(moving, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert f"{moving.name}: has 3 frames, expected a single picture" in said(result)
    assert not (tmp_path / "out").exists()
    still = tmp_path / f"still.{kind.lower()}"
    frames[0].save(still, format=kind)
    assert pictures.read(still).shape == (3, 16, 16)


def test_models_that_cannot_be_had(tmp_path: Path, photo: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    result = run(photo, "--model", folder, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "Error: model" in said(result)
    assert not (tmp_path / "out").exists()


def test_two_pictures_of_one_name(tmp_path: Path, photo: Path) -> None:
    result = run(photo, tmp_path / "other" / "photo.jpg", "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "under one name" in said(result).replace("│ ", "").replace(" │", "")


def test_a_full_disk_leaves_nothing(
    tmp_path: Path, photo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(figures, "write_side_by_side", full)
    out = tmp_path / "out"
    result = run(photo, "--out", out, "--method", "sigma-zero", "--calls", 40)
    assert result.exit_code == 2
    assert "No space left on device" in said(result)
    assert list(out.iterdir()) == []


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


def test_bench_goes_on_where_the_model_fails(tmp_path: Path, small_and_photo: Path) -> None:
    words: list[Any] = ["attack-bench", small_and_photo, "--model", "choosy", "--calls", "4"]
    words += ["--out", tmp_path / "out", "--methods", "sigma-zero", "--settings", "native"]
    result = CliRunner().invoke(app, [*map(str, words), "--device", "cpu"])
    assert result.exit_code == 2
    assert "Left out: " in said(result)
    assert "a.png: choosy net fails on 16 x 16 pixels" in said(result)
    assert "--settings N may give it" in said(result)
    record = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [row["key"]["picture"] for row in record["rows"]] == ["photo.png"]
    assert record["complete"]
