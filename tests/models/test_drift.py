"""Drift: thresholds with a stated rate, tests of shares, groups; both commands on real digits."""

import csv
import json
from math import ceil, log
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import chi2
from support.kept_models import CPU, ser, teach, write_folder

from strongreplay.errors import ConfigError, DataError
from strongreplay.methods.base import unchanged
from strongreplay.methods.slda import SLDA, SLDAConfig
from strongreplay.models.clusters import find_clusters, typical_distance
from strongreplay.models.correct import answering_classifier
from strongreplay.models.drift import choose_threshold, load_reference
from strongreplay.models.embeddings import features_of
from strongreplay.models.ood_scores import Statistics, distances, energy
from strongreplay.models.review import choose_diverse
from strongreplay.models.share_tests import compare_shares, holm
from strongreplay.models.store import Store
from strongreplay.nets import linear
from strongreplay.protocol import Problem


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of zeros and ones with 40 held-out samples."""
    folder = tmp_path_factory.mktemp("drift")
    data = write_folder(folder / "january", (0, 1), 0, 80)
    teach(folder / "model", data, settings={"learner.memory": 200, "learner.val": 0.3, "train.epochs": 4})
    write_folder(folder / "like", (0, 1), 90, 40)
    write_folder(folder / "new", (0, 1), 90, 20)
    for path in sorted(folder.glob("like/*/*.png")):
        turned = folder / "unlike" / path.name
        turned.parent.mkdir(exist_ok=True)
        with Image.open(path) as image:
            Image.fromarray(255 - np.asarray(image)).save(turned)
    return folder / "model"


def test_the_energy_is_low_where_the_net_is_sure() -> None:
    found = energy(torch.tensor([[0.0, 0.0], [log(3.0), 0.0], [5.0, 0.0]]))
    assert found[:2].tolist() == pytest.approx([-log(2), -log(4)])
    assert found[2] < found[1]


def test_a_threshold_is_exceeded_at_the_stated_rate() -> None:
    scores = torch.arange(1.0, 100.0)  # of 100 exchangeable samples, 5 are above the 95th
    assert choose_threshold(scores, 0.05) == 95
    assert choose_threshold(torch.arange(1.0, 20.0), 0.05) == 19
    with pytest.raises(DataError, match="need at least 19"):
        choose_threshold(torch.arange(1.0, 19.0), 0.05)
    with pytest.raises(ConfigError, match="between 0 and 1"):
        choose_threshold(scores, 1.0)
    draws = np.random.default_rng(0)
    rates = [
        (torch.from_numpy(draws.random(200)) > choose_threshold(torch.from_numpy(draws.random(60)), 0.05))
        .double()
        .mean()
        for _ in range(500)
    ]
    exact = 1 - ceil(61 * 0.95) / 61
    assert float(np.mean(rates)) == pytest.approx(exact, abs=0.005)


def test_distances_to_known_samples_leave_out_the_sample_itself() -> None:
    known = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    assert distances(known, known, same=True).tolist() == pytest.approx([0.4, 0.2, 0.2], abs=1e-6)
    assert distances(known[:1], known[1:]).tolist() == pytest.approx([0.4], abs=1e-6)


def test_statistics_are_distance_and_energy_of_features_of_the_usual_length() -> None:
    draws = torch.Generator().manual_seed(0)
    method = SLDA(linear((3,), 3), Problem(3, 1, unchanged, unchanged), SLDAConfig(shrinkage=0.0))
    labels = torch.arange(2).repeat(500)  # the third class has not arrived
    stored = torch.randn(1000, 3, generator=draws).double() * torch.tensor([3.0, 1.0, 1.0]) + 20.0
    stored[:, 1] += 8.0 * labels
    shift, unit = stored.mean(0), stored.std(0)
    method.count(((stored - shift) / unit).float(), labels)
    measure, none = Statistics(method, shift, unit), torch.empty(0)
    assert float(measure.length) == pytest.approx(float(stored.norm(dim=1).mean()), rel=0.01)

    sample = stored[:1] / stored[:1].norm() * measure.length
    found = measure(sample, none)[0].tolist()
    inputs, inverse = ((sample - shift) / unit)[0], torch.linalg.inv(method.covariance().double())
    away = [inputs - mean for mean in method.means[:2].double()]
    assert found[0] == pytest.approx(min(float(one @ inverse @ one) for one in away), rel=1e-3)
    centred = method.means[:2].double() - measure.centre
    scores = [(inputs - measure.centre) @ inverse @ mean - mean @ inverse @ mean / 2 for mean in centred]
    assert found[1] == pytest.approx(float(energy(torch.stack(scores)[None])), rel=1e-3)
    assert measure(7 * sample, none)[0].tolist() == pytest.approx(found)  # the length does not matter
    known, other = measure(torch.tensor([[20.0, 20.0, 20.0], [20.0, 20.0, 32.0]]), none)
    assert other[0] > 10 * known[0]  # no class lies there


def test_shares_are_compared_by_a_g_test_and_corrected_by_holm() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    before, now = [50, 50, 20], [90, 10, 20]
    together, changes = compare_shares(["a", "b", "c"], before, now)
    expected = [sum(pair) / 2 for pair in zip(before, now, strict=True)]  # both have 120 samples
    g = 2 * sum(
        count * log(count / mean)
        for counts in (before, now)
        for count, mean in zip(counts, expected, strict=True)
    )
    assert together == pytest.approx(chi2.sf(g, 2))
    assert [change.label for change in changes] == ["b", "a", "c"]
    assert (changes[2].p, changes[0].p < 1e-6) == (1.0, True)
    assert compare_shares(["a"], [5], [7])[0] is None


def test_groups_are_as_tight_as_a_class() -> None:
    draws = torch.Generator().manual_seed(0)
    centres = torch.eye(6)[[0] * 8 + [1] * 6 + [2] * 3]
    features = torch.nn.functional.normalize(centres + 0.05 * torch.randn(17, 6, generator=draws), dim=1)
    radius = typical_distance(features, torch.tensor([0] * 8 + [1] * 6 + [2] * 3))
    found = find_clusters(features, [f"{row}.png" for row in range(17)], 3 * radius)
    assert [cluster.samples for cluster in found] == [8, 6]
    assert set(found[0].examples) == {f"{row}.png" for row in range(8)}
    assert find_clusters(features[:4], ["a", "b", "c", "d"], 1.0) == []


def test_copies_are_not_chosen_twice() -> None:
    features = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    assert choose_diverse(features, torch.tensor([1.0, 0.9, 0.1], dtype=torch.float64), 2) == [0, 2]


@pytest.mark.slow
def test_features_are_what_the_head_sees(kept: Path) -> None:
    _, model, reference = load_reference(Store(kept), None, CPU)
    net = answering_classifier(model)
    images = torch.randint(0, 256, (7, 1, 20, 20), dtype=torch.uint8)
    with torch.no_grad():
        right = torch.nn.functional.normalize(net.eval().features(model.test_view(images)), dim=1)
    assert torch.allclose(features_of(model, images), right)
    assert reference.count == 40


@pytest.mark.slow
def test_the_command_tells_like_from_unlike_data(kept: Path, tmp_path: Path) -> None:
    like = ser("drift", kept, "--data", kept.parent / "like", "--json", "--score", "features")
    found = json.loads(like.out)
    assert (like.code, found["samples"], found["over"], found["held_out"]) == (0, 80, False, 40)
    assert found["share"] <= 0.15
    picture = tmp_path / "groups.png"
    words = ("--score", "features", "--examples", picture)
    said = ser("drift", kept, "--data", kept.parent / "unlike", *words)
    assert said.code == 4, said.out
    assert "over the limit of 15%" in said.out
    assert "perhaps a new class" in said.out
    with Image.open(picture) as drawn:
        assert drawn.size[0] > 32
    assert ser("drift", kept, "--data", tmp_path / "none").code != 0


@pytest.mark.slow
def test_reviewed_photos_come_back_as_corrections(kept: Path, tmp_path: Path) -> None:
    out = tmp_path / "review"
    assert ser("review", kept, "--data", kept.parent / "new", "--out", out, "--count", 12).code == 0
    rows = list(csv.DictReader((out / "review.csv").read_text().splitlines()))
    assert len(rows) == len(list((out / "photos").iterdir())) == 12
    assert len({row["source"] for row in rows}) == 12
    tasks = json.loads((out / "tasks.json").read_text())
    assert tasks[0]["data"]["path"] == "photos/001.png"
    assert tasks[0]["predictions"][0]["result"][0]["value"]["choices"] == [rows[0]["guess"]]
    assert '<Choice value="zero"/>' in (out / "labels.xml").read_text()
    # As Label Studio exports it: the columns of the task, then the choice and columns of its own.
    lines = ["image,path,id,label,annotator"]
    for number, row in enumerate(rows):
        label = Path(row["source"]).parent.name
        lines.append(f"/data/local-files/?d={row['path']},{row['path']},{number},{label},1")
    (out / "corrections.csv").write_text("\n".join(lines) + "\n")
    said = ser("learn", kept, "--data", out / "corrections.csv", "--max-drop", 100, "--json")
    assert said.code == 0, said.err
    assert Store(kept).history()[-1]["samples"] == 12
    assert ser("review", kept, "--data", kept.parent / "new", "--out", out).code == 2  # not empty
