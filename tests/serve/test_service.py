"""The service, as a real process on loopback: answers, limits, refusals, hot reload, draining."""

import base64
import io
import itertools
import json
import random
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings
from PIL import Image
from support.kept_models import make_model, ser
from support.services import RunningService, running_service

from strongreplay.serve.app import Predictions

pytestmark = pytest.mark.slow
TOKEN = "correct-horse-battery-staple"


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("kept"))


@pytest.fixture(scope="module")
def service(kept: Path) -> Iterator[RunningService]:
    limits = ("--body-limit", "300000", "--pixel-limit", "1000000", "--queue", "64", "--timeout", "5")
    with running_service(kept, *limits) as found:
        yield found


def photo(kept: Path, number: int = 0) -> Path:
    return sorted(kept.parent.glob("january/*/*.png"))[number]


def png(width: int, height: int) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.zeros((height, width), np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def test_answers_equal_those_of_predict_in_every_form(kept: Path, service: RunningService) -> None:
    paths = [photo(kept, 0), photo(kept, 25)]
    contents = [path.read_bytes() for path in paths]
    said = [json.loads(line) for line in ser("predict", kept, *paths, "--json", "--top", 2).out.splitlines()]
    as_bytes = [
        service.client.post("/predict?top=2", content=c, headers={"Content-Type": "image/png"}).json()
        for c in contents
    ]
    files = [("images", (path.name, content)) for path, content in zip(paths, contents, strict=True)]
    as_form = service.client.post("/predict?top=2", files=files)
    texts = [base64.b64encode(content).decode() for content in contents]
    as_json = service.client.post("/predict", json={"images": texts, "top": 2})
    for row, expected in enumerate(said):
        several = [form.json()["answers"][row] for form in (as_form, as_json)]
        for answer in (as_bytes[row]["answers"][0], *several):
            assert answer["label"] == expected["label"]
            assert answer["probability"] == pytest.approx(expected["probability"], abs=1e-6)
            assert [one["label"] for one in answer["top"]] == [label for label, _ in expected["top"]]
    for form in (as_form, as_json):
        assert Predictions.model_validate(form.json(), strict=True).version == as_bytes[0]["version"] == "v2"
    assert [one["name"] for one in as_form.json()["answers"]] == [path.name for path in paths]


def test_curl_needs_no_content_type_and_sees_why_a_large_body_is_refused(
    kept: Path, service: RunningService, tmp_path: Path
) -> None:
    (tmp_path / "large").write_bytes(bytes(40_000_000))
    for name, status, text in ((photo(kept), "200", '"version":"v2"'), (tmp_path / "large", "413", "bytes")):
        words = [
            "curl",
            "-s",
            "-w",
            "%{http_code}",
            "--data-binary",
            f"@{name}",
            f"{service.address}/predict",
        ]
        said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        assert (said[-3:], text in said) == (status, True), said


def test_other_routes(service: RunningService) -> None:
    get = service.client.get
    assert get("/health").json() == {"alive": True}
    assert get("/ready").json()["ready"] is True
    assert get("/version").json()["version"] == "v2"
    assert get("/classes").json() == ["one", "zero", "two"]
    text = get("/metrics").text
    assert 'ser_version{version="v2"} 1.0' in text
    assert 'ser_requests_total{route="/health",status="200"}' in text
    page = get("/docs").text
    assert "POST /predict" in page
    assert "src=" not in page  # it loads nothing
    assert "/predict" in get("/openapi.json").json()["paths"]


JSON = {"Content-Type": "application/json"}
BAD: list[tuple[str, dict[str, Any], int, str]] = [
    ("nothing", {"content": b""}, 400, "no image"),
    ("no image", {"content": b"hello"}, 400, "image #0 is not an image"),
    ("half an image", {"content": png(64, 64)[:60]}, 400, "image #0 is damaged"),
    ("no JSON", {"content": b"{", "headers": JSON}, 400, "no JSON"),
    ("deep JSON", {"content": b"[" * 100_000, "headers": JSON}, 400, "no JSON"),
    ("other JSON", {"json": {"image": "x"}}, 400, "'images'"),
    ("no base64", {"json": {"images": ["é"]}}, 400, "no base64"),
    ("wrong top", {"json": {"images": ["aGk="], "top": -1}}, 400, "top must be"),
    ("top in the address", {"content": png(8, 8), "params": {"top": "0"}}, 400, "top must be"),
    ("a text", {"content": b"x", "headers": {"Content-Type": "text/plain"}}, 415, "Content-Type"),
    ("an empty form", {"files": {"images": b""}}, 400, "no image"),
    ("a broken form", {"content": b"x", "headers": {"Content-Type": "multipart/form-data"}}, 400, "form"),
    ("a large body", {"content": b"x" * 400_000}, 413, "300,000 bytes"),
    ("a large image", {"content": png(2000, 600)}, 413, "2000 x 600 pixels"),
    ("another site", {"content": png(8, 8), "headers": {"Origin": "http://example.org"}}, 403, "other sites"),
    ("another name", {"content": png(8, 8), "headers": {"Host": "example.org"}}, 403, "Host"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("request_", "status", "text"), [row[1:] for row in BAD], ids=[row[0] for row in BAD]
)
def test_bad_requests_get_a_clear_4xx(
    service: RunningService, request_: dict[str, Any], status: int, text: str
) -> None:
    answer = service.client.post("/predict", **request_)
    assert answer.status_code == status
    assert text in answer.json()["error"]


def test_chunked_bodies_are_counted(service: RunningService) -> None:
    answer = service.client.post("/predict", content=(b"x" * 10_000 for _ in range(40)))
    assert answer.status_code == 413


def damaged(good: bytes, draws: random.Random) -> bytes:
    """A photo with other bytes in some places, sometimes cut off."""
    content = bytearray(good)
    for _ in range(draws.randrange(1, 30)):
        content[draws.randrange(len(content))] = draws.randrange(256)
    return bytes(content[: draws.randrange(len(content))] if draws.random() < 0.3 else content)


def random_json(draws: random.Random, depth: int = 0) -> Any:
    leaves = [None, True, -1, 10**30, 1.5, "", "v1", "\0\ud800", base64.b64encode(png(8, 8)).decode()]
    if depth == 3 or draws.random() < 0.5:
        return draws.choice(leaves)
    inside = [random_json(draws, depth + 1) for _ in range(draws.randrange(4))]
    keys = ["images", "top", "ids", "version"]
    return inside if draws.random() < 0.4 else dict(zip(draws.sample(keys, len(inside)), inside, strict=True))


def test_900_random_requests_never_give_a_5xx(kept: Path, service: RunningService) -> None:
    draws, good = random.Random(0), photo(kept).read_bytes()
    kinds = ["image/png", "application/json", "multipart/form-data; boundary=x", "text/html", "", "\x7f"]
    paths = ["/predict", "/predict?top=0", "/predict?top=x", "/nothing", "/classes", "/api/nearest?count=2"]
    for _ in range(500):
        path, content = draws.choice(paths), damaged(good, draws)
        answer = service.client.post(path, content=content, headers={"Content-Type": draws.choice(kinds)})
        assert answer.status_code < 500, (path, content)
    for _ in range(400):
        path = draws.choice(["/predict", "/api/nearest", "/api/rollback", "/api/forget", "/api/accept"])
        content = json.dumps(random_json(draws)).encode()
        answer = service.client.post(path, content=content, headers=JSON)
        assert answer.status_code < 500, (path, content)


def test_100_requests_made_from_its_own_openapi_never_give_a_5xx(kept: Path, tmp_path: Path) -> None:
    """With the token, so that acts are carried out too; on a copy of the model."""
    import schemathesis  # slow to import

    right, statuses = {"Authorization": f"Bearer {TOKEN}"}, list[int]()
    with running_service(Path(shutil.copytree(kept, tmp_path / "model")), token=TOKEN) as service:
        schema = schemathesis.openapi.from_dict(service.client.get("/openapi.json", headers=right).json())
        for operation in schema.get_all_operations():

            @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), database=None)
            @seed(0)
            @given(case=operation.ok().as_strategy())  # type: ignore[union-attr]
            def check(case: Any) -> None:
                answer = case.call(base_url=service.address, headers=right, timeout=30)
                statuses.append(answer.status_code)
                assert answer.status_code < 500, answer.text

            check()
    assert len(statuses) >= 100
    assert {200, 400} <= set(statuses)


def test_a_full_queue_gives_503_with_retry_after(kept: Path) -> None:
    with running_service(kept, "--queue", "2", "--wait-ms", "400") as small:
        content, found = photo(kept).read_bytes(), list[httpx.Response]()

        def ask() -> None:
            found.append(httpx.post(f"{small.address}/predict", content=content, trust_env=False))

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        statuses = {answer.status_code for answer in found}
        assert statuses == {200, 503}
        assert all(answer.headers["Retry-After"] == "1" for answer in found if answer.status_code == 503)
        text = small.client.get("/metrics").text
        images, passes = (
            float(re.findall(rf"^ser_batch_images_{name} (.*)$", text, re.M)[0]) for name in ("sum", "count")
        )
        assert images > passes  # requests that arrived together shared a forward pass


def test_a_new_version_is_served_within_two_seconds_and_no_request_fails(tmp_path: Path) -> None:
    """Four clients ask all the time while an update is accepted and rolled back by commands."""
    kept = make_model(tmp_path)
    content = photo(kept).read_bytes()
    with running_service(kept) as service:
        seen, ended = [list[tuple[int, str]]() for _ in range(4)], threading.Event()

        def ask(found: list[tuple[int, str]]) -> None:
            with httpx.Client(base_url=service.address, timeout=30, trust_env=False) as client:
                while not ended.is_set():
                    answer = client.post("/predict", content=content)
                    found.append((answer.status_code, answer.json().get("version", "")))

        threads = [threading.Thread(target=ask, args=(found,)) for found in seen]
        for thread in threads:
            thread.start()
        time.sleep(0.3)
        assert ser("learn", kept, "--accept").code == 0
        assert service.wait_for("v3") < 2
        assert ser("rollback", kept, "v1").code == 0
        assert service.wait_for("v1") < 2
        time.sleep(0.3)
        ended.set()
        for thread in threads:
            thread.join()
        for found in seen:
            assert {status for status, _ in found} == {200}
            order = [version for version, _ in itertools.groupby(version for _, version in found)]
            assert order == ["v2", "v3", "v1"]  # each once: never back again

        (kept / "versions" / "v0002.json").write_text("{}")  # a damaged version is not served
        (kept / "current").write_text("v2\n")
        time.sleep(1.2)
        ready = service.client.get("/ready").json()
        assert (ready["version"], "v0002.json" in ready["problem"]) == ("v1", True)
        assert service.client.post("/predict", content=content).json()["version"] == "v1"


def test_a_token_is_needed_and_sigterm_answers_what_is_under_way(kept: Path, tmp_path: Path) -> None:
    content, found, images = photo(kept).read_bytes(), list[httpx.Response](), tmp_path / "images"
    with running_service(kept, "--wait-ms", "1500", "--keep-images", str(images), token=TOKEN) as service:
        assert service.client.get("/health").status_code == 200
        for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}):
            answer = service.client.post("/predict", content=content, headers=header)
            assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
        right = {"Authorization": f"Bearer {TOKEN}"}
        thread = threading.Thread(
            target=lambda: found.append(service.client.post("/predict", content=content, headers=right))
        )
        thread.start()
        time.sleep(0.5)
        said = service.stop()
        thread.join()
        assert found[0].status_code == 200
        assert "every request under way was answered" in said
        assert service.process.returncode == 0
    assert [path.read_bytes() for path in images.iterdir()] == [content]  # not those of a 401
    assert ser("review", kept, "--data", images, "--out", tmp_path / "review").code == 0
    assert [path.read_bytes() for path in (tmp_path / "review" / "photos").iterdir()] == [content]


WRONG = [
    (("--host", "0.0.0.0"), "needs a token"),
    (("--token", "nowhere"), "not readable"),
    (("--keep-images", "MODEL"), "lies in the model's folder"),
    (("--host", "203.0.113.9", "--token", "TOKEN"), "cannot listen there"),
]


@pytest.mark.parametrize(("words", "text"), WRONG)
def test_wrong_commands(kept: Path, tmp_path: Path, words: tuple[str, ...], text: str) -> None:
    (tmp_path / "TOKEN").write_text(TOKEN)
    places = {"TOKEN": tmp_path / "TOKEN", "nowhere": tmp_path / "nowhere", "MODEL": kept / "images"}
    given = [str(places.get(word, word)) for word in words]
    said = ser("serve", kept, *given)
    assert (said.code != 0, text in said.err) == (True, True), said.err
