"""``fast-lapsum coder-report``: the measures, the other codecs, and a run that goes on."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image, ImageFilter
from typer.testing import CliRunner

from fast_lapsum.apps.coder import codecs, container, quality, report, report_text, untrained
from fast_lapsum.apps.coder.bitstream import CoderError
from fast_lapsum.apps.coder.colour import psnr
from fast_lapsum.apps.coder.dictionary import decode_picture
from fast_lapsum.apps.coder.encode import encode
from fast_lapsum.bench import sources
from fast_lapsum.cli import app


def scene(height: int, width: int, planes: int = 3) -> np.ndarray:
    """Discs on a slope, with some texture."""
    rows, columns = np.mgrid[:height, :width] / max(height, width)
    disc = np.hypot(rows - 0.4, columns - 0.5) < 0.25
    waves = 20 * np.sin(60 * rows) * np.cos(45 * columns) * (columns > 0.6)
    found = [
        120 + 100 * rows * (0.5 + plane / 4) - 80 * disc * (plane - 1) + waves
        for plane in range(planes)
    ]
    return np.clip(np.stack(found, axis=2), 0, 255).astype(np.uint8)


def blurred(picture: np.ndarray, radius: float) -> np.ndarray:
    return np.asarray(Image.fromarray(picture).filter(ImageFilter.GaussianBlur(radius)))


class TestSimilarity:
    @pytest.mark.parametrize("size", [(200, 180, 3), (64, 64, 1), (8, 30, 3), (1, 1, 1)])
    def test_equal_pictures_have_one(self, size):
        picture = scene(*size)
        assert quality.ms_ssim(picture, picture) == pytest.approx(1, abs=1e-7)

    def test_more_blur_and_more_noise_are_less_similar(self):
        picture = scene(200, 180)
        noise = np.random.default_rng(0).normal(size=picture.shape)
        noisy = [np.clip(picture + s * noise, 0, 255).astype(np.uint8) for s in (4, 12, 36)]
        for worse in ([blurred(picture, radius) for radius in (0.7, 1.5, 4)], noisy):
            found = [1.0, *(quality.ms_ssim(picture, one) for one in worse)]
            assert found == sorted(found, reverse=True)
            assert found[1] < 0.9999
            assert found[-1] > 0

    def test_one_scale_is_the_textbook_formula(self):
        """With 11 x 11 pixels there is one window, and nothing but the formula."""
        random = np.random.default_rng(1)
        x, y = random.integers(0, 256, (2, 11, 11, 1)).astype(np.uint8)
        places = np.arange(11) - 5
        window = np.exp(-(places**2) / 4.5)
        window = np.outer(window, window) / window.sum() ** 2
        a, b = (one[:, :, 0].astype(np.float64) for one in (x, y))
        mean = [(window * one).sum() for one in (a, b)]
        variance = [(window * one**2).sum() - m**2 for one, m in zip((a, b), mean, strict=True)]
        covariance = (window * a * b).sum() - mean[0] * mean[1]
        c1, c2 = 2.55**2, 7.65**2
        expected = (2 * mean[0] * mean[1] + c1) * (2 * covariance + c2)
        expected /= (mean[0] ** 2 + mean[1] ** 2 + c1) * (sum(variance) + c2)
        assert quality.ms_ssim(x, y) == pytest.approx(max(0.0, expected), abs=1e-5)

    def test_a_shift_of_brightness_counts_less_than_lost_structure(self):
        picture = scene(180, 180)
        brighter = np.clip(picture.astype(int) + 10, 0, 255).astype(np.uint8)
        blurry = blurred(picture, 2)
        assert quality.ms_ssim(picture, brighter) > quality.ms_ssim(picture, blurry)

    def test_shapes_must_agree(self):
        with pytest.raises(ValueError, match=r"\[4, 4, 3\] and \[4, 5, 3\]"):
            quality.ms_ssim(scene(4, 4), scene(4, 5))

    @pytest.mark.parametrize(("side", "scales"), [(176, 5), (175, 4), (22, 2), (21, 1), (3, 1)])
    def test_scales_that_have_room(self, side, scales):
        assert quality.scales_of(side, 1000) == scales


@pytest.mark.parametrize("transform", untrained.TRANSFORMS)
class TestUntrained:
    def test_keeps_the_budget_and_gets_better_with_it(self, transform):
        picture = scene(96, 64)
        found = [untrained.top_k(picture, bits, transform) for bits in (500, 2000, 8000)]
        assert all(one.bits <= bits for one, bits in zip(found, (500, 2000, 8000), strict=True))
        reached = [psnr(picture, one.picture) for one in found]
        assert reached == sorted(reached)

    def test_the_best_depth_is_the_best_of_the_fixed_ones(self, transform):
        picture = scene(96, 64)
        fixed = [untrained.top_k(picture, 2000, transform, (depth,)) for depth in untrained.DEPTHS]
        assert [one.depth for one in fixed] == list(untrained.DEPTHS)
        assert all(one.bits <= 2000 for one in fixed)
        reached = [psnr(picture, one.picture) for one in fixed]
        best = untrained.top_k(picture, 2000, transform)
        assert best.depth == fixed[int(np.argmax(reached))].depth
        assert psnr(picture, best.picture) == max(reached) > min(reached)

    def test_no_budget_no_code(self, transform):
        assert untrained.top_k(scene(16, 16), 3, transform) is None

    @pytest.mark.parametrize("size", [(1, 1, 1), (7, 33, 3)])
    def test_enough_bits_bring_any_size_back(self, size, transform):
        picture = scene(*size)
        assert psnr(picture, untrained.top_k(picture, 1e6, transform).picture) > 45


class TestCodecs:
    @pytest.mark.parametrize("codec", codecs.codecs(), ids=lambda codec: codec.name)
    @pytest.mark.parametrize("planes", [1, 3])
    def test_largest_file_within_the_budget(self, codec, planes):
        if codec.missing:
            pytest.skip(codec.missing)
        picture = scene(64, 96, planes)
        found = codecs.search(codec, picture, 700)
        assert len(found.found.data) <= 700
        again = codecs.decoded(found.found.data, picture.shape)
        assert again.shape == picture.shape
        assert psnr(picture, again) == pytest.approx(max(found.reached.values()))
        larger = codecs.search(codec, picture, 1400)
        assert len(larger.found.data) > len(found.found.data)

    def test_a_codec_that_misses_the_budget_says_by_how_much(self):
        found = codecs.search(codecs.codecs()[0], scene(64, 64), 100)
        assert found.found is None
        assert all(size > 100 for size in found.missed.values())

    def test_every_variant_is_tried_at_every_scale(self, monkeypatch):
        tried = []
        real = codecs.Codec.encode

        def encode(codec, image, level, variant, divisor):
            tried.append((divisor, tuple(variant.items())))
            return real(codec, image, level, variant, divisor)

        monkeypatch.setattr(codecs.Codec, "encode", encode)
        full, slow = {"subsampling": "4:4:4"}, {"progressive": False}
        codec = replace(codecs.codecs()[0], variants=(full,), slower=slow)
        found = codecs.search(codec, scene(64, 96), 900).found
        variants = {(), tuple(full.items())}
        assert {(divisor, one) for divisor in codecs.SCALES for one in variants} <= set(tried)
        last, options = tried[-1]
        assert options[-1] == ("progressive", False)
        assert last == found.divisor
        tried.clear()
        codecs.search(codec, scene(64, 96, 1), 900)
        assert tuple(full.items()) not in {one for _, one in tried}

    def test_avif_is_tuned_for_psnr(self):
        codec = next(one for one in codecs.codecs() if one.name == "AVIF")
        if codec.missing:
            pytest.skip(codec.missing)
        assert {"subsampling": "4:4:4", "advanced": {"tune": "psnr"}} in codec.variants
        picture = scene(128, 128)
        default = codecs.search(replace(codec, variants=(), slower=None), picture, 700)
        assert max(codecs.search(codec, picture, 700).reached.values()) > max(
            default.reached.values()
        )


def row_of(folder, method, name="one"):
    rows = json.loads((folder / "results.json").read_text())["rows"]
    return next(row for row in rows if (row["method"], row["picture"]) == (method, name))


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for name, size in (("one", (64, 96, 3)), ("two", (64, 64, 1))):
        picture = scene(*size)
        Image.fromarray(picture.squeeze()).save(folder / f"{name}.png")
    (folder / "notes.txt").write_text("no picture")
    return folder


def invoke(*arguments, code=0):
    fixed = ("--steps", "3", "--device", "cpu", "--crop", "32")
    result = CliRunner().invoke(app, ["coder-report", *map(str, arguments), *fixed])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def quick(monkeypatch):
    """Two codecs, one of them not installed; the plain coder in place of the slower best one."""
    asked = []

    def encode_plain(picture, settings, limit):
        asked.append(settings.plain)
        return encode(picture, replace(settings, plain=True), limit)

    monkeypatch.setattr(report, "encode", encode_plain)
    jpeg = codecs.codecs()[0]
    gone = codecs.Codec("AVIF", "AVIF", ".avif", jpeg.options, 100, missing="pip install it")
    monkeypatch.setattr(codecs, "codecs", lambda: (jpeg, gone))
    return asked


def test_report_of_a_folder(photos, tmp_path, quick):
    out = tmp_path / "out"
    invoke(photos, "--out", out, "--bpp", "1", "--bpp", "2")
    assert quick == [False, True] * 4
    record = json.loads((out / "results.json").read_text())
    assert len(record["rows"]) == 2 * 2 * 7
    for row in record["rows"]:
        if row["status"] == "ok":
            assert row["bytes"] <= row["budget_bytes"]
            assert 0 < row["ms_ssim"] <= 1
    size = record["pictures"]["one"]
    picture = scene(64, 96)
    assert (size["width"], size["height"]) == (96, 64)
    assert row_of(out, "Haar top-k, 8 bits")["depth"] == 8
    best = row_of(out, "best")
    again = decode_picture(container.read(out / best["file"]))
    assert (out / best["file"]).stat().st_size == best["bytes"]
    assert psnr(picture, again) == pytest.approx(best["psnr"], abs=1e-3)
    text = (out / "table.md").read_text()
    assert "## 1 bits per pixel" in text
    assert "AVIF is not installed: pip install it" in text
    assert "multiples of 32" in text
    assert "plain over Haar top-k, 8 bits: " in text
    assert "plain over Haar top-k, best depth: " in text
    names = {path.name for path in (out / "figures").iterdir()}
    curves = {"rate-distortion.svg", "rate-distortion.png", "quality-1bpp.svg"}
    assert curves | {"crops-one-1bpp.png", "crops-two-2bpp.png"} <= names
    assert not list(out.rglob(".*"))


def test_a_run_that_was_ended_goes_on(photos, tmp_path, quick, monkeypatch):
    out = tmp_path / "out"
    ours = report.encode

    def ended(picture, *rest):
        if picture.shape[2] == 1:
            raise KeyboardInterrupt
        return ours(picture, *rest)

    monkeypatch.setattr(report, "encode", ended)
    assert "goes on from there" in invoke(photos, "--out", out, "--bpp", "2", code=130)
    before = json.loads((out / "results.json").read_text())["rows"]
    assert len(before) == 7 + 5
    monkeypatch.setattr(report, "encode", ours)
    (out / row_of(out, "plain")["file"]).unlink()
    said = invoke(photos, "--out", out, "--bpp", "2")
    assert "one, 2 bpp, plain" in said
    assert "one, 2 bpp, best" not in said
    after = json.loads((out / "results.json").read_text())["rows"]
    assert len(after) == 14
    assert next(row for row in before if row["method"] == "best") in after


def test_methods_are_measured_anew(photos, tmp_path, quick):
    out = tmp_path / "out"
    invoke(photos / "one.png", "--out", out, "--bpp", "2")
    before = row_of(out, "best")
    said = invoke(photos / "one.png", "--out", out, "--bpp", "2", "--again", "JPEG")
    assert "2 bpp, JPEG: " in said
    assert "2 bpp, best: " not in said
    assert row_of(out, "best") == before
    said = invoke(photos / "one.png", "--out", out, "--again", "GIF", code=1)
    assert "'GIF' is no method" in said


def test_older_results_get_what_they_lack_and_nothing_else(photos, tmp_path, quick):
    """There was one Haar row, at the best depth, no earlier environments, and no sources."""
    out = tmp_path / "out"
    invoke(photos / "one.png", "--out", out, "--bpp", "2")
    before = json.loads((out / "results.json").read_text())
    older = json.loads(json.dumps(before))
    older["rows"] = [row for row in older["rows"] if row["method"] != report.HAAR_FIXED]
    for row in older["rows"]:
        if row["method"] == report.HAAR_BEST:
            row["method"] = "Haar top-k"
    older["environment"]["commit"] = "older"
    assert older.pop("sources") == sources.describe("coder-report", "cpu")
    (out / "results.json").write_text(json.dumps(older))
    quick.clear()
    said = invoke(photos / "one.png", "--out", out, "--bpp", "2")
    after = json.loads((out / "results.json").read_text())
    measured = re.findall(r"2 bpp, (.*?): ", said)
    assert measured == [report.HAAR_FIXED, "AVIF"]  # AVIF is not installed, and looked for anew
    assert not quick
    assert [one["commit"] for one in after["earlier_environments"]] == ["older"]
    assert sources.state(after) == sources.UNKNOWN  # most of its rows are of nobody knows which
    kept = {report.HAAR_BEST, report.BLOCKS, "JPEG", "best", "plain"}
    assert [row for row in after["rows"] if row["method"] in kept] == [
        row for row in before["rows"] if row["method"] in kept
    ]
    invoke(photos / "one.png", "--out", out, "--bpp", "2")
    again = json.loads((out / "results.json").read_text())
    assert again["earlier_environments"] == after["earlier_environments"]


def test_other_settings_need_a_fresh_start(photos, tmp_path, quick):
    out = tmp_path / "out"
    invoke(photos / "one.png", "--out", out, "--bpp", "2")
    said = invoke(photos / "one.png", "--out", out, "--bpp", "2", "--seed", "1", code=1)
    assert "--fresh" in said
    invoke(photos / "one.png", "--out", out, "--bpp", "2", "--seed", "1", "--fresh")


def test_rows_of_other_sources_are_not_mixed(photos, tmp_path, quick):
    out = tmp_path / "out"
    invoke(photos / "one.png", "--out", out, "--bpp", "2")
    record = json.loads((out / "results.json").read_text())
    record["sources"]["hash"] = "another"
    (out / "results.json").write_text(json.dumps(record))
    said = invoke(photos / "one.png", "--out", out, "--bpp", "2", code=1)
    assert "its rows depend on were another, are" in " ".join(said.split())
    assert "--fresh" in said
    assert json.loads((out / "results.json").read_text()) == record
    invoke(photos / "one.png", "--out", out, "--bpp", "2", "--fresh")


def test_what_is_no_picture_is_refused(tmp_path):
    with pytest.raises(CoderError, match="no such file"):
        report.photographs([tmp_path / "nothing.png"])
    with pytest.raises(CoderError, match="no picture"):
        report.photographs([tmp_path])


def test_crop_leaves_shorter_sides():
    assert report.cropped(scene(70, 20), 32).shape == (64, 20, 3)
    assert report.cropped(scene(70, 20), 0).shape == (70, 20, 3)


def test_table_has_a_median_only_over_all_pictures():
    def row(name, method, value):
        return {
            "picture": name,
            "target_bpp": 0.05,
            "method": method,
            "status": "ok",
            "psnr": value,
            "ms_ssim": 0.9,
            "bytes": 10,
            "seconds": 1.0,
        }

    record = {
        "settings": {"crop": 0},
        "codecs": {},
        "pictures": {name: {"width": 1, "height": 1} for name in ("a", "b")},
        "rows": [row("a", "best", 30.0), row("b", "best", 32.0), row("a", "JPEG", 29.0)],
    }
    text = report_text.markdown(record)
    assert "| median | | 31.00 | – |" in text
    assert "best over JPEG: +1.00 to +1.00 dB, median +1.00, ahead on 1 of 1" in text
