"""Loading classifiers, their preprocessing, and how calls are counted."""

from __future__ import annotations

import json
import shutil
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attack_models import SHAPES, pictures, trained_classifier, trained_net
from fast_lapsum.apps.attack import methods
from fast_lapsum.apps.attack.classifiers import (
    ModelError,
    Preprocessing,
    from_module,
    load_classifier,
)
from fast_lapsum.apps.attack.protocol import LEAD, Classifier, Limits, Meter, has_won, lead

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny ResNet in the Hugging Face format."""
    transformers = pytest.importorskip("transformers")
    path = tmp_path_factory.mktemp("models") / "tiny-resnet"
    config = transformers.ResNetConfig(
        embedding_size=4,
        hidden_sizes=[4, 8],
        depths=[1, 1],
        layer_type="basic",
        id2label=dict(enumerate(SHAPES)),
        label2id={name: index for index, name in enumerate(SHAPES)},
    )
    transformers.ResNetForImageClassification(config).save_pretrained(path)
    processor = {"image_mean": MEAN, "image_std": STD, "size": {"shortest_edge": 24}}
    (path / "preprocessor_config.json").write_text(json.dumps(processor))
    return path


def test_folder_is_loaded_with_its_labels_and_preprocessing(folder: Path) -> None:
    classifier = load_classifier(str(folder))
    images, _ = pictures(2)
    assert classifier.labels == SHAPES
    assert classifier.name == "tiny-resnet"
    assert classifier.label(1) == "square"
    mean, std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)
    with torch.no_grad():
        expected = classifier.model((images - mean) / std).logits
        assert torch.allclose(classifier.logits(images), expected, atol=1e-5)


def test_size_of_the_configuration(folder: Path) -> None:
    images, _ = pictures(1, side=48)
    with torch.no_grad():
        configured = load_classifier(str(folder), resize="config").logits(images)
        given = load_classifier(str(folder), resize=24).logits(images)
        native = load_classifier(str(folder)).logits(images)
    assert torch.equal(configured, given)
    assert not torch.allclose(configured, native)


def test_folder_without_image_processor_is_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(ModelError, match=r"no image processor: preprocessor_config\.json"):
        load_classifier(str(tmp_path))
    (tmp_path / "preprocessor_config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read"):
        load_classifier(str(tmp_path))


@pytest.fixture
def damaged(folder: Path, tmp_path: Path) -> Path:
    """A copy of the tiny ResNet's folder, to be damaged."""
    return Path(shutil.copytree(folder, tmp_path / "damaged"))


def test_weights_that_are_cut_off_are_named(damaged: Path) -> None:
    weights = damaged / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ModelError, match=r"damaged' cannot be loaded: SafetensorError: "):
        load_classifier(str(damaged))


def test_weights_of_another_size_than_configured_are_named(damaged: Path) -> None:
    config = json.loads((damaged / "config.json").read_text())
    (damaged / "config.json").write_text(json.dumps({**config, "embedding_size": 6}))
    with pytest.raises(ModelError, match=r"another size than configured resnet\.embedder\."):
        load_classifier(str(damaged))


def test_a_backbone_without_a_last_layer_is_no_classifier(damaged: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = damaged / "model.safetensors"
    kept = {name: one for name, one in load_file(weights).items() if "classifier" not in name}
    save_file(kept, weights, {"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks classifier\.1\.bias, classifier\.1\.weight\."):
        load_classifier(str(damaged))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("image_mean", 0.5),
        ("image_mean", [0.5]),
        ("image_std", ["a", "b", "c"]),
        ("image_std", [0.5, 0.5, float("nan")]),
        ("rescale_factor", "1/255"),
        ("rescale_factor", 0),
    ],
)
def test_a_wrong_preprocessor_config_is_named(damaged: Path, field: str, value: object) -> None:
    path = damaged / "preprocessor_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with pytest.raises(ModelError, match=rf"{field} is .*, expected "):
        load_classifier(str(damaged))


class _Hub(BaseHTTPRequestHandler):
    """Is there, and knows nothing."""

    def do_HEAD(self) -> None:
        self.send_response(404)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.mark.parametrize("answers", [True, False])
def test_weights_that_cannot_be_had_name_the_choices(
    monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    """A hub that does not answer is asked once, and the cache instead; one that does, as ever."""
    pytest.importorskip("transformers")
    import huggingface_hub
    from transformers import AutoModelForImageClassification

    asked: list[Any] = []

    def not_found(*_: object, **options: Any) -> None:
        asked.append(options["local_files_only"])
        raise OSError("We couldn't find the files\nand more lines")

    monkeypatch.setattr(AutoModelForImageClassification, "from_pretrained", not_found)
    with HTTPServer(("127.0.0.1", 0), _Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        where = f"http://127.0.0.1:{server.server_port if answers else 1}"
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", where)
        says = "We couldn't find the files" if answers else f"not in the local cache, and {where}"
        with pytest.raises(ModelError, match=rf"{says}.* Choices: .*timm:NAME"):
            load_classifier("facebook/convnextv2-base-22k-384")
        server.shutdown()
    assert asked == [not answers]


def test_timm_name_that_is_unknown() -> None:
    with pytest.raises(
        ModelError, match=r"'timm:no_such_model' (cannot be loaded|needs) .*Choices"
    ):
        load_classifier("timm:no_such_model")


def test_a_folder_that_is_not_there_is_said_to_be_so() -> None:
    with pytest.raises(ModelError, match=r"'\./nowhere' cannot be loaded: there is no such folder"):
        load_classifier("./nowhere")


def test_resize_is_antialiased_and_differentiable() -> None:
    images = pictures(2, side=64)[0].requires_grad_()
    out = Preprocessing(resize=16)(images)
    assert out.shape == (2, 3, 16, 16)
    mean = F.avg_pool2d(images, 4)
    assert (out - mean).abs().mean() < 0.05
    out.sum().backward()
    assert images.grad is not None
    assert (images.grad > 0).all()  # without antialiasing most pixels would not be seen at all


def test_short_side_is_what_is_resized() -> None:
    assert Preprocessing(resize=16)(torch.rand(1, 3, 32, 96)).shape == (1, 3, 16, 48)
    assert Preprocessing(resize=16)(torch.rand(1, 3, 96, 32)).shape == (1, 3, 48, 16)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"mean": (0.5,)}, ModelError, "mean must have 3 values"),
        ({"std": (1.0, 0.0, 1.0)}, ModelError, "std must be positive"),
        ({"resize": 0}, ValueError, "resize=0"),
    ],
)
def test_wrong_preprocessing_is_named(
    arguments: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        from_module(trained_net(), **arguments)  # type: ignore[arg-type]


def test_calls_and_gradients_are_counted_per_picture() -> None:
    classifier = trained_classifier()
    images, _ = pictures(3)
    meter = Meter(classifier, Limits(calls=7))
    classifier.predict(images)
    assert (classifier.calls, classifier.gradients) == (3, 0)
    leaf = images.clone().requires_grad_()
    classifier.logits(leaf).sum().backward()
    assert (classifier.calls, classifier.gradients) == (6, 3)
    assert meter.calls_left == 1
    assert meter.allows(1)
    assert not meter.allows(2)


def test_pictures_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"images must be \[N, 3, H, W\], got shape \(3, 8, 8\)"):
        trained_classifier().logits(torch.zeros(3, 8, 8))


def test_outputs_with_logits_and_models_without_weights() -> None:
    class Output:
        def __init__(self, logits: Tensor) -> None:
            self.logits = logits

    class Mean(torch.nn.Module):
        def forward(self, images: Tensor) -> Output:
            return Output(images.mean((-2, -1)))

    classifier = Classifier(Mean())
    assert classifier.device.type == "cpu"
    assert classifier.label(2) == "class 2"
    picture = torch.tensor([0.2, 0.7, 0.4]).view(1, 3, 1, 1).expand(1, 3, 4, 4)
    logits = classifier.logits(picture)[0]
    first = int(logits.argmax())
    assert not has_won(logits, first, None)
    assert has_won(logits, (first + 1) % 3, None)
    assert has_won(logits, (first + 1) % 3, first)
    logits[0] = logits[first] - 0.9 * LEAD  # too close to call on another machine
    assert not has_won(logits, 0, None)
    assert not has_won(logits, 2, first)


@pytest.mark.parametrize(("label", "target", "named"), [(-1, None, "label"), (0, 4, "target")])
def test_classes_that_the_model_does_not_have_are_refused(
    label: int, target: int | None, named: str
) -> None:
    with pytest.raises(ValueError, match=rf"{named} must be a class from 0 to 3, got {named}="):
        lead(torch.zeros(4), label, target)
    attack = methods.method("sigma-zero")
    with pytest.raises(ValueError, match=f"{named} must be a class from 0 to 3"):
        attack.run(
            trained_classifier(), pictures(1)[0][0], label, target, Limits(calls=3), 0, None, None
        )
