"""Arrays of PyTorch checkpoints into Keras models whose layers have the same names."""

import os
import pathlib
from collections.abc import Iterator

import keras
import numpy as np

from keras_dml.checks import check_choice
from keras_dml.errors import ArgumentError

ENDINGS = (".pth", ".pt", ".npz")
# The classifier of either checkpoint, which the backbones do not have, and PyTorch's counters.
_UNUSED = ("last_linear.weight", "last_linear.bias", "fc.weight", "fc.bias")
_COUNTER = ".num_batches_tracked"


def load_arrays(
    model: keras.Model, path: str | os.PathLike[str], input_channels: str = "rgb"
) -> None:
    """Sets all variables of `model` from the arrays of a PyTorch checkpoint, by name.

    A layer called `layer1_0_conv1` takes `layer1.0.conv1.weight`: `[out, in, h, w]` becomes the
    kernel `[h, w, in, out]`. A batch norm takes `weight`, `bias`, `running_mean`, `running_var`,
    each `[c]` or, as in the public BN-Inception file, `[1, c]`. Every array is used once, but for
    the 1,000-way classifier (`fc`, `last_linear`) and PyTorch's counters, which are left out.

    Args:
        model: a `keras.Model` whose layers with variables are convolutions and batch norms.
        path: `.pth` or `.pt`, a saved `state_dict` (read by PyTorch, as data alone: no code in it
            is run), or `.npz` with the same names.
        input_channels: `"rgb"`, or `"bgr"` for a checkpoint whose images had blue first: the first
            kernel is reversed over its input, since the images here are RGB.

    Raises:
        ValueError: the file cannot be read, PyTorch is not installed, `input_channels` is none of
            the two, or arrays are missing, left over or of another shape, all of them in one
            message; then no variable has changed.
    """
    check_choice("input_channels", input_channels, ("rgb", "bgr"))
    arrays: dict[str, tuple[str, np.ndarray]] = {}
    left_over: list[str] = []
    for name, array in _read(path).items():
        key = name.replace(".", "_")
        if key in arrays:  # a.b beside a_b
            left_over.append(name)
        arrays.setdefault(key, (name, array))
    variables, missing, misfits = [], [], []
    for key, variable in _variables(model):
        if key not in arrays:
            missing.append(key)
            continue
        name, array = arrays.pop(key)
        kernel = len(variable.shape) == 4
        if not kernel and array.ndim == 2 and array.shape[0] == 1:
            array = array[0]
        values = array.transpose(2, 3, 1, 0) if kernel and array.ndim == 4 else array
        if values.shape != tuple(variable.shape):
            wanted = tuple(variable.shape)
            wanted = wanted[3:] + wanted[2:1:-1] + wanted[:2] if kernel else wanted
            misfits.append(f"{name} {array.shape}, not {wanted}")
        variables.append((variable, values))
    unused = {name.replace(".", "_") for name in _UNUSED}
    left_over += [
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
        )
        if names
    ]
    if problems:
        raise ArgumentError(f"arrays do not fit the model: {'; '.join(problems)}")
    if input_channels == "bgr":
        variable, values = variables[0]
        variables[0] = variable, values[:, :, ::-1]
    for variable, values in variables:
        variable.assign(values)


def _first(names: list[str], most: int = 10) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _variables(model: keras.Model) -> Iterator[tuple[str, keras.Variable]]:
    """Each variable with the checkpoint's name of its array, underscores for dots."""
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            held = {
                "weight": layer.gamma,
                "bias": layer.beta,
                "running_mean": layer.moving_mean,
                "running_var": layer.moving_variance,
            }
        elif isinstance(layer, keras.layers.Conv2D):
            held = {"weight": layer.kernel, "bias": layer.bias}
        else:
            continue
        for part, variable in held.items():
            if variable is not None:
                yield f"{layer.name}_{part}", variable


def _read(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Name to float32 array."""
    if not os.path.isfile(path):
        raise ArgumentError(f"No such file: {path}")
    ending = pathlib.Path(path).suffix.lower()
    if ending not in ENDINGS:
        raise ArgumentError(f"not a checkpoint by its name, which must end in {', '.join(ENDINGS)}")
    return _read_npz(path) if ending == ".npz" else _read_torch(path)


def _read_npz(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: np.asarray(file[name], "float32") for name in file.files}
    except Exception as error:  # a damaged file may end in nearly any
        raise ArgumentError("not an .npz file of numbers that can be read") from error


def _read_torch(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    try:
        import torch
    except ImportError as error:
        raise ArgumentError(
            "a .pth file is read by PyTorch, which is not installed: pip install torch. Or write "
            "its arrays to an .npz file where PyTorch is: numpy.savez(FILE, "
            "**{name: x.numpy() for name, x in torch.load(PATH).items()})"
        ) from error
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file may end in nearly any
        raise ArgumentError("not a PyTorch file of tensors that can be read") from error
    if not isinstance(state, dict) or not all(torch.is_tensor(x) for x in state.values()):
        raise ArgumentError("not a state_dict: it must hold tensors by name and nothing else")
    return {name: tensor.float().numpy() for name, tensor in state.items()}
