"""ViT: timm's names and shapes, a forward pass by hand, prefixes, positions, and files of weights."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from strongreplay.errors import ConfigError
from strongreplay.nets import NETS, build_net
from strongreplay.nets.vit import Form, ViTBody
from strongreplay.nets.vit_weights import fill_in, form_of, hash_of_weights, read_weights
from strongreplay.protocol import derive_generator
from strongreplay.runs.config import config_of, resolve
from strongreplay.storage.records import fingerprint
from strongreplay.testing import check_net

IMAGE = (3, 8, 8)  # of the test net: patches of 4 pixels, width 32, 5 blocks, 4 heads
ASKED: dict[str, int | None] = {"width": None, "depth": None, "heads": None, "patch": None}


def make(shape: tuple[int, ...] = IMAGE, **options: Any) -> Any:
    return build_net("vit", shape, 6, derive_generator(0, "net"), **options)


def images(count: int = 5, shape: tuple[int, ...] = IMAGE) -> Tensor:
    return torch.rand(count, *shape, generator=derive_generator(0, "images"))


def write(folder: Path, tensors: dict[str, Tensor], name: str = "vit.safetensors") -> str:
    save_file({key: value.contiguous() for key, value in tensors.items()}, folder / name)
    return str(folder / name)


# The net


def test_names_and_shapes_are_those_of_timm() -> None:
    block = {
        "norm1.weight": (32,), "norm1.bias": (32,), "attn.qkv.weight": (96, 32), "attn.qkv.bias": (96,),
        "attn.proj.weight": (32, 32), "attn.proj.bias": (32,), "norm2.weight": (32,), "norm2.bias": (32,),
        "mlp.fc1.weight": (128, 32), "mlp.fc1.bias": (128,), "mlp.fc2.weight": (32, 128),
        "mlp.fc2.bias": (32,),
    }  # fmt: skip
    expected = {
        "cls_token": (1, 1, 32), "pos_embed": (1, 5, 32), "patch_embed.proj.weight": (32, 3, 4, 4),
        "patch_embed.proj.bias": (32,), "norm.weight": (32,), "norm.bias": (32,),
    }  # fmt: skip
    expected |= {f"blocks.{n}.{key}": shape for n in range(5) for key, shape in block.items()}
    body = make().body
    assert {key: tuple(value.shape) for key, value in body.state_dict().items()} == expected
    assert sum(value.numel() for value in body.blocks[0].parameters()) == 12_704  # 12 D^2 + 13 D


def test_the_published_sizes_have_the_published_number_of_parameters() -> None:
    with torch.device("meta"):
        sizes = {
            name: sum(p.numel() for p in NETS["vit"].build((3, 224, 224), 1000, size=name).parameters())
            for name in ("tiny", "small", "base")
        }
    assert sizes == {"tiny": 5_717_416, "small": 22_050_664, "base": 86_567_656}


def test_the_features_are_those_of_a_forward_pass_by_hand() -> None:
    """In numpy, from the definition: patches, attention of each head, exact GELU, norms with 1e-6."""
    body, inputs = make().body, images(2)
    found = {key: value.double().numpy() for key, value in body.state_dict().items()}

    def norm(x: Any, name: str) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
        return centred / deviation * found[f"{name}.weight"] + found[f"{name}.bias"]

    def layer(x: Any, name: str) -> Any:
        return x @ found[f"{name}.weight"].T + found[f"{name}.bias"]

    erf = np.vectorize(math.erf)
    kernel = found["patch_embed.proj.weight"].reshape(32, -1)
    for image, feature in zip(inputs.double().numpy(), body(inputs), strict=True):
        cut = [image[:, r : r + 4, c : c + 4].reshape(-1) for r in (0, 4) for c in (0, 4)]
        patches = [kernel @ each + found["patch_embed.proj.bias"] for each in cut]
        x = np.stack([found["cls_token"][0, 0], *patches]) + found["pos_embed"][0]
        for n in range(5):
            q, k, v = np.split(layer(norm(x, f"blocks.{n}.norm1"), f"blocks.{n}.attn.qkv"), 3, axis=1)
            mixed = []
            for part in (slice(8 * h, 8 * h + 8) for h in range(4)):
                scores = np.exp(q[:, part] @ k[:, part].T / np.sqrt(8))
                mixed.append(scores / scores.sum(1, keepdims=True) @ v[:, part])
            x = x + layer(np.concatenate(mixed, 1), f"blocks.{n}.attn.proj")
            hidden = layer(norm(x, f"blocks.{n}.norm2"), f"blocks.{n}.mlp.fc1")
            x = x + layer(hidden * (1 + erf(hidden / np.sqrt(2))) / 2, f"blocks.{n}.mlp.fc2")
        assert feature.tolist() == pytest.approx(norm(x, "norm")[0].tolist(), abs=1e-5)


def test_the_features_are_those_of_timm(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    theirs = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=7).eval()
    ours = make((3, 32, 32), weights=write(tmp_path, theirs.state_dict()))
    inputs = images(3, (3, 32, 32))
    with torch.no_grad():
        expected = theirs.forward_head(theirs.forward_features(inputs), pre_logits=True)
        assert torch.allclose(ours.body(inputs), expected, atol=1e-5)


def test_prefixes_and_prompts_of_length_nought_change_no_bit() -> None:
    body, inputs = make().body, images()
    plain = body(inputs)
    nothing, no_tokens = torch.empty(5, 2, 4, 0, 8), torch.empty(5, 0, 32)
    assert torch.equal(body(inputs, no_tokens, *[nothing] * 5), plain)
    prefix = torch.ones(5, 2, 4, 3, 8)
    changed = body(inputs, no_tokens, prefix)
    assert changed.shape == plain.shape
    assert not torch.equal(changed, plain)


def test_a_prefix_is_more_keys_and_values_and_no_more_queries() -> None:
    attention, tokens = make().body.blocks[0].attn, torch.randn(2, 5, 32)
    prefix = torch.randn(2, 2, 4, 3, 8)
    parts = attention.qkv(tokens).view(2, 5, 3, 4, 8).permute(2, 0, 3, 1, 4)
    keys, values = torch.cat([prefix[:, 0], parts[1]], 2), torch.cat([prefix[:, 1], parts[2]], 2)
    scores = (parts[0] @ keys.transpose(2, 3) / 8**0.5).softmax(-1)  # (B, heads, 5, 8)
    expected = attention.proj((scores @ values).transpose(1, 2).flatten(2))
    assert attention(tokens, prefix).shape == (2, 5, 32)
    assert torch.allclose(attention(tokens, prefix), expected, atol=1e-6)


def test_permuting_a_batch_permutes_the_features() -> None:
    body, inputs, order = make().body, images(), torch.tensor([3, 0, 4, 1, 2])
    assert torch.equal(body(inputs[order]), body(inputs)[order])


@pytest.mark.parametrize(
    ("shape", "patch"), [((1, 28, 28), 4), ((1, 6, 6), 3), ((3, 7, 7), 1), ((3, 32, 32), 4), ((1, 8, 12), 4)]
)
def test_any_image_fits_without_settings(shape: tuple[int, ...], patch: int) -> None:
    net = make(shape)
    assert net.body.form.patch == patch
    assert net(images(2, shape)).shape == (2, 6)
    check_net(NETS["vit"].build, shape)


def test_what_does_not_fit_is_refused_in_words() -> None:
    with pytest.raises(
        ConfigError, match=r"patches of 5 pixels must divide the images' 8 x 8; set net\.patch"
    ):
        make(patch=5)
    with pytest.raises(ConfigError, match=r"net\.heads must divide the width 32, got 5"):
        make(heads=5)
    with pytest.raises(ConfigError, match=r"net vit takes images \(C, H, W\), got samples of shape \(64,\)"):
        make((64,))


def test_images_are_resized_first_if_a_side_is_given() -> None:
    net, inputs = make(side=16), images()
    assert net.body.grid == (4, 4)
    larger = torch.nn.functional.interpolate(inputs, (16, 16), mode="bilinear", antialias=True)
    net.body.side = None
    features = net.body(larger)
    net.body.side = 16
    assert torch.equal(net.body(inputs), features)


# Files of weights


def test_weights_load_by_name_and_a_head_is_left_out(tmp_path: Path) -> None:
    source = build_net("vit", IMAGE, 9, derive_generator(5, "net"), width=64, depth=2).body
    file = write(
        tmp_path, source.state_dict() | {"head.weight": torch.ones(9, 64), "head.bias": torch.ones(9)}
    )
    net = make(weights=file)
    assert (net.body.form.width, net.body.form.depth, net.body.form.heads) == (64, 2, 1)
    assert torch.equal(net.body(images()), source(images()))
    assert net.head.weight.shape == (6, 64)
    assert make(weights=file, heads=4).body.form.heads == 4


VARIANTS = [
    Form(32, 2, 4, 4, 64, registers=3),
    Form(32, 2, 4, 4, 64, registers=3, places_prefix=False),
    Form(32, 2, 4, 4, 128, places_prefix=False),
    Form(32, 2, 4, 4, 128, has_class_token=False, places_prefix=False, averages=True),
    Form(32, 2, 4, 4, 128, averages=True, qkv_bias=False),
    Form(32, 2, 4, 4, 128, layer_scale=True, qk_norm=True),
]


@pytest.mark.parametrize("form", VARIANTS)
def test_every_form_is_found_again_in_its_file(form: Form, tmp_path: Path) -> None:
    source = ViTBody(form, IMAGE)
    file = write(tmp_path, source.state_dict())
    assert form_of(read_weights(file), ASKED | {"heads": 4}, file) == form
    net = make(weights=file, heads=4)
    assert torch.equal(net.body(images()), source(images()))
    assert net.body(images(), torch.zeros(5, 2, 32)).shape == (5, 32)


def test_positions_keep_their_bits_on_the_same_grid_and_are_resized_to_another(tmp_path: Path) -> None:
    source = make((3, 56, 56)).body  # 14 x 14 patches
    file = write(tmp_path, source.state_dict())
    same, smaller = make((3, 56, 56), weights=file).body, make((3, 28, 28), weights=file).body
    assert torch.equal(same.pos_embed, source.pos_embed)
    assert smaller.pos_embed.shape == (1, 50, 32)
    assert torch.equal(smaller.pos_embed[:, 0], source.pos_embed[:, 0])  # of the class token
    level = source.state_dict() | {"pos_embed": torch.full((1, 197, 32), 0.25)}
    file = write(tmp_path, level, "level.safetensors")
    resized = make((3, 28, 28), weights=file).body.pos_embed
    assert torch.allclose(resized, torch.full((1, 50, 32), 0.25), atol=1e-6)


def test_files_that_do_not_fit_are_refused_with_names(tmp_path: Path) -> None:
    held = make().body.state_dict()
    lacking = {key: value for key, value in held.items() if key != "blocks.3.norm1.bias"}
    foreign = held | {"attn_pool.latent": torch.ones(1)}
    wrong = held | {"blocks.1.attn.proj.weight": torch.ones(32, 16)}
    other = {"layers.0.weight": torch.ones(1)}
    for tensors, text in (
        (lacking, "lacks blocks.3.norm1.bias; only plain ViTs"),
        (foreign, "has unknown attn_pool.latent"),
        (wrong, r"blocks.1.attn.proj.weight must be \(32, 32\), got \(32, 16\)"),
        (other, "not the weights of a ViT by timm's names; lacks patch_embed.proj.weight, .* has layers"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=text):
            make(weights=write(tmp_path, tensors))
    flat = held | {"pos_embed": torch.ones(32)}
    with pytest.raises(ConfigError, match=r"pos_embed must have 3 dimensions, got shape \(32,\)"):
        make(weights=write(tmp_path, flat))
    file = write(tmp_path, held)
    with pytest.raises(ConfigError, match=r"has width 32, got 192; leave net\.width and net\.size out"):
        make(weights=file, size="tiny")
    with pytest.raises(ConfigError, match=r"proj\.weight must be \(32, 1, 4, 4\), got .*as many channels"):
        make((1, 8, 8), weights=file)
    with pytest.raises(ConfigError, match="patches of 4 pixels must divide the images' 6 x 6"):
        make((3, 6, 6), weights=file)


def test_files_that_are_no_safetensors_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"\.pth files can run code.*save_file\(tensors, 'w\.safetensors'\)"
    ):
        make(weights=str(tmp_path / "w.pth"))
    with pytest.raises(ConfigError, match=r"must be a \.safetensors file, got .*no such file"):
        make(weights=str(tmp_path / "w.safetensors"))
    (tmp_path / "w.safetensors").write_bytes(b"not one")
    with pytest.raises(ConfigError, match="not a whole safetensors file"):
        make(weights=str(tmp_path / "w.safetensors"))


def test_two_files_are_two_configurations_and_a_changed_file_is_refused(tmp_path: Path) -> None:
    first, second = make((1, 8, 8)).body.state_dict(), make((1, 8, 8), depth=6).body.state_dict()
    file, other = write(tmp_path, first), write(tmp_path, second, "other.safetensors")
    configs = [
        resolve("split-digits", "l2p", settings={"net.weights": each}).to_dict() for each in (file, other)
    ]
    assert configs[0]["net"]["weights_hash"] == hash_of_weights(file) != hash_of_weights(other)
    assert fingerprint(configs[0]) != fingerprint(configs[1])
    assert config_of(configs[0], "").to_dict() == configs[0]
    write(tmp_path, second)
    with pytest.raises(ConfigError, match="not the file this run was made with"):
        config_of(configs[0], "")
    with pytest.raises(ConfigError, match="the file has changed since this run was made"):
        read_weights(file, configs[0]["net"]["weights_hash"])


def test_settings_of_the_net_are_checked_with_all_others() -> None:
    config = resolve("split-digits", "ser", settings={"net.name": "vit", "net.depth": "2", "net.patch": "2"})
    assert config.net.options == {"depth": 2, "patch": 2}
    with pytest.raises(ConfigError) as caught:
        resolve("split-digits", "ser", settings={"net.name": "vit", "net.depth": 0, "net.size": "huge"})
    assert "net.depth must be >= 1, got 0" in str(caught.value)
    assert "net.size must be 'tiny', 'small' or 'base'" in str(caught.value)
    with pytest.raises(ConfigError, match=r"unknown setting 'net\.depth'"):
        resolve("split-digits", "ser", settings={"net.name": "mlp", "net.depth": 2})


def test_fill_in_needs_a_square_grid() -> None:
    body = make().body
    crooked = body.state_dict() | {"pos_embed": torch.ones(1, 7, 32)}
    with pytest.raises(ConfigError, match="is no square grid"):
        fill_in(body, crooked, "FILE")
