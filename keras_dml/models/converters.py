"""Loading of PyTorch checkpoints into Keras models whose layers have the same names."""

import os
import pathlib
from collections.abc import Iterator

import keras
import numpy as np

from keras_dml._common.checks import check_choice
from keras_dml._common.errors import ArgumentError
from keras_dml._common.types import StrPath
from keras_dml._files.archives import check_zip
from keras_dml.models.torch_files import read_tensors

ENDINGS = (".pth", ".pt", ".npz")
# Ignored arrays: the classifiers of the checkpoints, which the backbones lack, and PyTorch's
# counters.
_UNUSED = ("last_linear.weight", "last_linear.bias", "fc.weight", "fc.bias")
_COUNTER = ".num_batches_tracked"


def load_arrays(model: keras.Model, path: StrPath, input_channels: str = "rgb") -> None:
    """Set all variables of `model` from the arrays of a PyTorch checkpoint, by name.

    A layer `layer1_0_conv1` takes `layer1.0.conv1.weight`, or `_layer1.0._conv1.weight`. An array
    `[out, in, h, w]` becomes the kernel `[h, w, in, out]`, and the array `[in, 1, h, w]` of a
    depthwise convolution becomes `[h, w, in, 1]`. A batch norm takes `weight`, `bias`,
    `running_mean`, and `running_var`, each `[c]` or, as in the public BN-Inception file, `[1, c]`.
    Every array is used once, except for the 1,000-way classifier (`fc`, `last_linear`) and
    PyTorch's counters, which are ignored.

    Args:
        model: A `keras.Model` whose only layers with variables are convolutions and batch norms.
        path: Path of a saved `state_dict` (`.pth` or `.pt`) or of an `.npz` file with the same
            names. A `state_dict` is read only as data: its code does not run, and PyTorch is not
            needed.
        input_channels: `"rgb"`, or `"bgr"` for a checkpoint that was trained on images with blue
            first. `"bgr"` reverses the input axis of the first kernel, because the images here are
            RGB.

    Raises:
        ValueError: The file cannot be read, `input_channels` is invalid, or arrays are missing,
            left over, have another shape, or have names for the same variable (`a.b` and `a_b`).
            One message lists all such arrays, and no variable has changed.
    """
    check_choice("input_channels", input_channels, ("rgb", "bgr"))
    given = _read(path)
    arrays = {_key(name): (name, array) for name, array in given.items()}
    repeated = [name for name in given if arrays[_key(name)][0] != name]
    variables, missing, misfits = [], [], []
    for key, variable, axes in _variables(model):
        if key not in arrays:
            missing.append(key)
            continue
        name, array = arrays.pop(key)
        if not axes and array.ndim == 2 and array.shape[0] == 1:
            array = array[0]
        values = array.transpose(axes) if axes and array.ndim == len(axes) else array
        if values.shape != tuple(variable.shape):
            wanted = tuple(variable.shape)
            if axes:
                wanted = tuple(wanted[axes.index(axis)] for axis in range(len(axes)))
            misfits.append(f"{name} {array.shape}, not {wanted}")
        variables.append((variable, values))
    unused = {_key(name) for name in _UNUSED}
    left_over = [
        name
        for key, (name, _) in arrays.items()
        if key not in unused and not name.endswith(_COUNTER)
    ]
    problems = [
        f"{len(names)} {what}: {_first(names)}"
        for names, what in (
            (missing, "missing"),
            (left_over, "left over"),
            (misfits, "of another shape"),
            (repeated, "with the name of another array"),
        )
        if names
    ]
    if problems:
        raise ArgumentError(f"arrays do not fit the model: {'; '.join(problems)}")
    if input_channels == "bgr":
        variable, values = variables[0]
        variables[0] = variable, values[:, :, ::-1]
    for variable, values in variables:
        variable.assign(values.astype("float32"))


def _first(names: list[str], most: int = 10) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _key(name: str) -> str:
    """Convert a checkpoint's name to ours: `_blocks.0._bn1.weight` to `blocks_0_bn1_weight`."""
    return "_".join(part.lstrip("_") for part in name.split("."))


def _variables(model: keras.Model) -> Iterator[tuple[str, keras.Variable, tuple[int, ...]]]:
    """Yield each variable with its `_key` in the checkpoint, and the order of the array's axes.

    The order is empty for vectors.
    """
    for layer in model.layers:
        axes: tuple[int, ...] = (2, 3, 1, 0)
        if isinstance(layer, keras.layers.BatchNormalization):
            held = {
                "weight": layer.gamma,
                "bias": layer.beta,
                "running_mean": layer.moving_mean,
                "running_var": layer.moving_variance,
            }
        elif isinstance(layer, (keras.layers.Conv2D, keras.layers.DepthwiseConv2D)):
            held = {"weight": layer.kernel, "bias": layer.bias}
            if isinstance(layer, keras.layers.DepthwiseConv2D):
                axes = (2, 3, 0, 1)
        else:
            continue
        for part, variable in held.items():
            if variable is not None:
                yield f"{layer.name}_{part}", variable, axes if len(variable.shape) == 4 else ()


def _read(path: StrPath) -> dict[str, np.ndarray]:
    """Read the arrays of a file: name -> array of numbers."""
    if not os.path.isfile(path):
        raise ArgumentError(f"No such file: {path}")
    ending = pathlib.Path(path).suffix.lower()
    if ending not in ENDINGS:
        raise ArgumentError(f"not a checkpoint by its name, which must end in {', '.join(ENDINGS)}")
    if ending == ".npz":
        return _read_npz(path)
    return read_tensors(path)


def _read_npz(path: StrPath) -> dict[str, np.ndarray]:
    try:
        check_zip(path)
        with np.load(path, allow_pickle=False) as file:
            return {name: np.asarray(file[name], "float32") for name in file.files}
    except ArgumentError:
        raise
    except Exception as error:  # a damaged file may raise nearly any error
        raise ArgumentError("not an .npz file of numbers that can be read") from error
