"""Checkpoints that do not match, cannot be read, or have different formats."""

import keras
import numpy as np
import pytest
from torch_format import save, state_dict

from keras_dml import models
from keras_dml.models.converters import load_arrays


def tiny():
    inputs = keras.Input((4, 4, 3))
    x = keras.layers.Conv2D(2, (3, 1), name="stem_conv")(inputs)
    x = keras.layers.BatchNormalization(name="stem_bn")(x)
    return keras.Model(inputs, keras.layers.Conv2D(5, 1, use_bias=False, name="last")(x))


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


def check(model, found, first_kernel=None):
    layer = model.get_layer
    expected = found["stem.conv.weight"].transpose(2, 3, 1, 0)
    np.testing.assert_array_equal(
        layer("stem_conv").kernel, expected if first_kernel is None else first_kernel
    )
    np.testing.assert_array_equal(layer("stem_conv").bias, found["stem.conv.bias"])
    held = [x.numpy() for x in layer("stem_bn").weights]  # gamma, beta, mean, variance
    for part, values in zip(("weight", "bias", "running_mean", "running_var"), held, strict=True):
        np.testing.assert_array_equal(values, found[f"stem.bn.{part}"].ravel())
    np.testing.assert_array_equal(layer("last").kernel[0, 0], found["last.weight"][:, :, 0, 0].T)


def test_arrays_by_name(tmp_path):
    found = arrays()
    unused = {
        "fc.weight": np.ones((7, 5)), "fc.bias": np.ones(7), "last_linear.bias": np.ones(7),
        "stem.bn.num_batches_tracked": np.array(3),
    }  # fmt: skip
    model = tiny()
    load_arrays(model, write(tmp_path, found | unused))
    check(model, found)
    rows = {name: x[None] if name.startswith("stem.bn") else x for name, x in found.items()}
    model = tiny()
    load_arrays(model, write(tmp_path, rows))
    check(model, found)


def test_a_checkpoint_of_bgr_images_has_its_first_kernel_reversed(tmp_path):
    found, model = arrays(), tiny()
    load_arrays(model, write(tmp_path, found), "bgr")
    check(model, found, first_kernel=found["stem.conv.weight"][:, ::-1].transpose(2, 3, 1, 0))
    with pytest.raises(ValueError, match="must be one of 'rgb', 'bgr', but got 'grb'"):
        load_arrays(model, write(tmp_path, found), "grb")


@pytest.mark.parametrize("zipped", [True, False])
def test_a_state_dict_of_pytorch(zipped, tmp_path):
    found, model, path = arrays(), tiny(), tmp_path / "tiny.pth"
    # The public BN-Inception file has the older form, without zip.
    save(state_dict({**found, "stem.bn.num_batches_tracked": np.array(3)}), path, zipped)
    load_arrays(model, path)
    check(model, found)


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


@pytest.mark.slow
def test_only_two_backbones_take_checkpoints(tmp_path):
    path = write(tmp_path, arrays())
    message = "weights must .*small_convnet, .*PyTorch checkpoints fit only bn_inception, .*_lite0"
    with pytest.raises(ValueError, match=message):
        models.build_backbone("small_convnet", 16, weights=str(path))
    message = "weights must .*bn_inception, .*tiny.npz.*missing: conv1_7x7_s2_weight"
    with pytest.raises(ValueError, match=message):
        models.build_backbone("bn_inception", 32, weights=str(path))
