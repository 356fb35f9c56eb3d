"""ONNX files: what they answer in a session of their own, what they tell, and what is refused."""

import json
import math
import os
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import strongreplay
from strongreplay.errors import ConfigError, DataError, RunError
from strongreplay.models.export import Exported, export_onnx
from strongreplay.models.export_input import PIXELS, PREFIX
from strongreplay.nets import build_net
from strongreplay.nets.classifier import BLOCK, GrowingHead, seeded_init

NAMES: list[str | int] = ["Zürich", 7, "猫 \U0001f408", 0, "7", "two\nlines", "broken \udcff name"]


def draw(shape: tuple[int, ...], count: int, seed: int = 5) -> Tensor:
    """Images or features as they come, not normalised."""
    generator = torch.Generator().manual_seed(seed)
    if len(shape) == 3:
        return torch.randint(256, (count, *shape), dtype=torch.uint8, generator=generator)
    return 3 * torch.randn(count, *shape, generator=generator) + 1


@dataclass(frozen=True)
class Case:
    """A net, how its inputs are normalised, and the file made of it."""

    net: nn.Module
    shape: tuple[int, ...]
    mean: list[float]
    std: list[float]
    labels: list[str | int]
    num_checked: int
    exported: Exported

    def logits(self, stored: Tensor) -> Tensor:
        """By PyTorch and by hand, so that the file is not compared with its own writer."""
        channels = [
            (stored[:, number].double() / (255 if len(self.shape) == 3 else 1) - mean) / std
            for number, (mean, std) in enumerate(zip(self.mean, self.std, strict=True))
        ]
        with torch.no_grad():
            logits: Tensor = self.net(torch.stack(channels, 1).float())
        return logits


def trained(net: nn.Module) -> nn.Module:
    """With running statistics and biases as they are after training, when none is 0 or 1 any more."""
    generator = torch.Generator().manual_seed(3)
    for layer in net.modules():
        if (
            isinstance(layer, nn.BatchNorm2d)
            and layer.running_mean is not None
            and layer.running_var is not None
        ):
            layer.running_mean.normal_(generator=generator).mul_(0.1)
            layer.running_var.uniform_(0.2, 2, generator=generator)
            layer.weight.data.uniform_(0.5, 2, generator=generator)
            layer.bias.data.normal_(generator=generator)
    return net.eval()


# net, shape, width, labels, number of images given to be checked with
CASES: dict[str, tuple[str, tuple[int, ...], int, list[str | int], int | None]] = {
    "mlp on images, growing head": ("mlp", (1, 28, 28), 100, list(range(70)), 1),
    "mlp on features, 1 class": ("mlp", (20,), 30, ["only"], None),
    "cnn, names of all kinds": ("cnn", (1, 28, 28), 16, NAMES, 203),
    "resnet18 of width 20": ("resnet18", (3, 32, 32), 20, [5, 3, 4], 0),
}


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    name, shape, width, labels, num_images = CASES[request.param]
    generator = torch.Generator().manual_seed(1)
    net = build_net(name, shape, len(labels), generator, width=width)
    if len(labels) > BLOCK:  # so that it has more than one
        with seeded_init(generator):
            net.head = GrowingHead(net.head.in_features, len(labels))
    mean, std = [round(0.1 * number - 0.2, 1) for number in range(shape[0])], [0.3] * shape[0]
    path = tmp_path_factory.mktemp("export") / "model.onnx"
    exported = export_onnx(
        trained(net),
        path,
        shape=shape,
        mean=mean,
        std=std,
        labels=labels,
        images=None if num_images is None else draw(shape, num_images, seed=6),
        about={"method": "ser", "labels": "not these", "source": "ü\udcff"},
    )
    return Case(net, shape, mean, std, labels, num_images or 100, exported)


def session(path: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def as_taken(stored: Tensor) -> Any:
    """As the file takes samples: images as RGB with the channels last."""
    return (stored if stored.dim() == 2 else stored.expand(-1, 3, -1, -1).movedim(1, -1)).numpy()


def properties(path: Path) -> dict[str, str]:
    found: dict[str, str] = session(path).get_modelmeta().custom_metadata_map
    return found


def small(path: Path, net: nn.Module | None = None, **changes: Any) -> Exported:
    """Export a net of two classes and four features, or what is changed of it."""
    net = nn.Linear(4, 2) if net is None else net
    settings: dict[str, Any] = {"shape": (4,), "mean": [0.5], "std": [2.0], "labels": ["a", "b"], **changes}
    return export_onnx(net, path, **settings)


@pytest.mark.slow
def test_a_fresh_session_answers_like_pytorch_in_batches_of_any_size(case: Case) -> None:
    fresh = session(case.exported.path)
    name = "images" if len(case.shape) == 3 else "features"
    for size in (1, 7, 100):
        stored = draw(case.shape, size)
        logits, probabilities = fresh.run(["logits", "probabilities"], {name: as_taken(stored)})
        expected = case.logits(stored)
        assert logits.shape == probabilities.shape == (size, len(case.labels))
        scale = max(1, expected.abs().max().item())
        torch.testing.assert_close(torch.from_numpy(logits), expected, atol=1e-4 * scale, rtol=0)
        torch.testing.assert_close(torch.from_numpy(probabilities), expected.softmax(1), atol=1e-4, rtol=0)


def test_answers_depend_on_the_images(case: Case) -> None:
    name = "images" if len(case.shape) == 3 else "features"
    (logits,) = session(case.exported.path).run(["logits"], {name: as_taken(draw(case.shape, 7))})
    assert logits.std(axis=0).min() > 1e-3


def test_the_file_tells_labels_and_normalisation(case: Case) -> None:
    found = properties(case.exported.path)
    assert json.loads(found["labels"]) == case.labels
    assert [type(label) for label in json.loads(found["labels"])] == [type(label) for label in case.labels]
    assert tuple(json.loads(found["shape"])) == case.shape
    assert (json.loads(found["mean"]), json.loads(found["std"])) == (case.mean, case.std)
    assert found["package"] == strongreplay.__version__
    assert (found["method"], found["source"]) == ("ser", "ü\\udcff")


def test_the_report_fits_the_file_which_is_valid_and_has_a_text_beside_it(case: Case) -> None:
    path = case.exported.path
    assert sorted(file.name for file in path.parent.iterdir()) == ["model.onnx", "model.onnx.md"]
    assert case.exported.bytes == path.stat().st_size
    assert case.exported.num_checked == case.num_checked
    assert 0 <= case.exported.max_difference < 1e-4
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert [entry.version for entry in model.opset_import if not entry.domain] == [case.exported.opset]


def test_no_paths_and_no_code_are_in_the_file(case: Case) -> None:
    data = case.exported.path.read_bytes()
    for words in (os.path.dirname(strongreplay.__file__), "stack_trace", "site-packages", ".py"):
        assert words.encode() not in data, words


def test_a_growing_head_is_a_plain_layer_in_the_file(case: Case) -> None:
    nodes = onnx.load(case.exported.path).graph.node
    ops = [node.op_type for node in nodes if not node.output[0].startswith((PREFIX, PIXELS))]
    assert ops.count("Gemm") == sum(isinstance(layer, nn.Linear) for layer in case.net.modules())
    assert not {"Pad", "Slice", "Concat", "Split"} & {*ops}


class Scaled(nn.Linear):
    """A layer whose weights are not all there is to it."""

    def forward(self, features: Tensor) -> Tensor:
        return 2 * super().forward(features)


@pytest.mark.slow
def test_a_layer_that_is_more_than_its_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"model.onnx: onnxruntime and PyTorch differ by .* use the net in"):
        small(tmp_path / "model.onnx", Scaled(4, 2))
    assert not list(tmp_path.iterdir())


class Shifty(nn.Module):
    """Answers otherwise while it is exported."""

    def __init__(self, shift: float) -> None:
        super().__init__()
        self.layer, self.shift = nn.Linear(4, 2), shift

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.layer(inputs)
        return logits + self.shift if torch.onnx.is_in_onnx_export() else logits


def test_a_file_that_answers_otherwise_is_refused_and_the_old_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_text("the old one")
    with pytest.raises(RunError, match=r"differ by 0.01 in a batch of 1, at most"):
        small(path, Shifty(0.01))
    assert path.read_text() == "the old one"
    assert list(tmp_path.iterdir()) == [path]


def test_a_small_difference_is_measured(tmp_path: Path) -> None:
    assert small(tmp_path / "model.onnx", Shifty(5e-5)).max_difference == pytest.approx(5e-5, rel=0.05)


class Counting(nn.Module):
    """Its code asks for the length of a batch, which must not become a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.layer(inputs)
        return logits.view(len(inputs), 2)


@pytest.mark.slow
def test_a_net_that_counts_its_inputs_still_takes_batches_of_any_size(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    small(path, Counting())
    for size in (1, 2, 3, 50):
        (logits,) = session(path).run(["logits"], {"features": torch.zeros(size, 4).numpy()})
        assert logits.shape == (size, 2)


class Undecided(nn.Module):
    """Its code depends on values, so it is no graph."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs[:, :2] if inputs.sum() > 0 else inputs[:, 2:]


def test_a_net_that_is_no_graph_is_refused_in_one_sentence(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RunError, match=r"^\S*model.onnx: this net cannot be written as ONNX \(.*\); change"):
        small(tmp_path / "model.onnx", Undecided())
    assert not list(tmp_path.iterdir())
    assert capfd.readouterr() == ("", "")


def test_the_net_the_generators_and_the_terminal_are_left_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shared = GrowingHead(4, 4)  # in two places, and plain in both of them in the file
    net = nn.Sequential(shared, shared, nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2)).train()
    net[2].eval()  # a mode of its own, as in a frozen part
    weights = {name: value.clone() for name, value in net.state_dict().items()}
    draws = torch.get_rng_state()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        small(tmp_path / "model.onnx", net)
    assert not caught
    assert capfd.readouterr() == ("", "")
    assert torch.equal(draws, torch.get_rng_state())
    assert [layer.training for layer in net.modules()] == [True, True, False, True, True]
    assert net[0] is net[1] is shared
    assert all(torch.equal(value, weights[name]) for name, value in net.state_dict().items())
    ops = {node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node}
    assert not ops & {"Pad", "Slice", "Concat", "Split"}


def test_images_of_another_kind_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    images = draw((1, 2, 2), 3)
    with pytest.raises(DataError, match=r"images must be \(N, 1, 2, 2\) uint8, got \(3, 2, 2\)"):
        small(path, net, shape=(1, 2, 2), images=images[:, 0])
    with pytest.raises(DataError, match=r"uint8, got \(3, 1, 2, 2\) torch.float32; give them as stored"):
        small(path, net, shape=(1, 2, 2), images=images.float())
    with pytest.raises(DataError, match=r"images must be \(N, 4\) float, got \(3, 4\) torch.uint8"):
        small(path, images=images.view(3, 4))
    with pytest.raises(RunError, match=r"logits must be finite, the net gave \[nan, nan\]; train it again"):
        small(path, images=torch.full((3, 4), math.nan))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shape": (2, 2)}, r"shape must be \(C, H, W\) or \(D,\), got \(2, 2\)"),
        ({"mean": [0.0, 0.0]}, r"mean must have 1 or 4 values, got 2"),
        ({"std": []}, r"std must have 1 or 4 values, got 0"),
        ({"mean": [math.inf]}, r"mean must be finite, got \[inf\]"),
        ({"std": [0.0]}, r"std must be above 0 and finite, got \[0.0\]"),
        ({"shape": (3, 4, 5)}, r"images must be square and have 1 or 3 channels, got \(3, 4, 5\)"),
        ({"labels": []}, r"there are no labels"),
        ({"labels": ["a", "a"]}, r"a label stands for two columns"),
        ({"labels": ["a", "b", "c"]}, r"3 labels need logits \(2, 3\), the net gave \(2, 2\)"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"model.onnx: {message}"):
        small(tmp_path / "model.onnx", **changes)
    assert not list(tmp_path.iterdir())


def test_a_net_too_large_for_one_file_is_refused_at_once(tmp_path: Path) -> None:
    net = nn.Linear(4, 2)
    net.register_buffer("large", torch.zeros(1).expand(2**29))
    with pytest.raises(ConfigError, match=r"2,147,483,688 bytes of weights do not fit the 2 GiB"):
        small(tmp_path / "model.onnx", net)


def test_a_folder_is_no_place_for_the_file(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"this is a folder, expected a file; name one, such as .*model.onnx"
    ):
        small(tmp_path)
    assert not list(tmp_path.iterdir())


def test_places_that_cannot_be_written_to_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    for folder, reason in (("file", "Not a directory"), ("missing", "No such file or directory")):
        with pytest.raises(RunError, match=rf"could not be written \({reason}\); choose another place"):
            small(tmp_path / folder / "model.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    with pytest.raises(RunError, match=r"could not be written \(File name too long\)"):
        small(tmp_path / f"{'x' * 300}.onnx")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_protected_folder_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(RunError, match=r"could not be written \(Permission denied\)"):
        small(tmp_path / "model.onnx")


@pytest.mark.parametrize("name", ["onnx", "onnxscript", "onnxruntime"])
def test_missing_packages_are_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)  # as Python itself marks what cannot be imported
    with pytest.raises(ConfigError, match=rf"{name} is missing; run: pip install 'strongreplay\[onnx\]'"):
        small(tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())
