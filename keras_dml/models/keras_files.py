"""Saved Keras models (`.keras` files) as backbones."""

import contextlib
import io
import json
import math
import pathlib
import re
import threading
import zipfile
from collections.abc import Iterator
from typing import Any

import keras

from keras_dml._backend.private import Functional
from keras_dml._common.errors import ArgumentError
from keras_dml._common.extras import needing
from keras_dml._common.types import StrPath
from keras_dml._files.archives import opened_zip

ENDING = ".keras"
_HUB = "keras_hub"
# Numbers of layers that a file can have without storing them, such as the matrices of LoRA.
_MOST_NUMBERS = 2**26
_ADDING = threading.Lock()
# Class name with which Keras serializes a Python lambda.
_CODE = "__lambda__"


def load_keras_file(path: StrPath, trust_code: bool = False) -> keras.Model:
    """Load the model of a `.keras` file, uncompiled. Every failure is a one-line error.

    Args:
        path: Path of the file.
        trust_code: Whether to run the Python code of `Lambda` layers in the file. The code can do
            anything, so set this only for files whose origin you trust.

    Raises:
        MissingExtraError: The model has KerasHub layers, and KerasHub is not installed.
        ValueError: The file does not exist or is not a Keras file, contains classes that are not
            registered (the message names all of them), or contains Python code that is not trusted.

    Examples:
        >>> inputs = keras.Input((4,))
        >>> keras.Model(inputs, keras.layers.Dense(2)(inputs)).save("net.keras")
        >>> load_keras_file("net.keras").output_shape
        (None, 2)
    """
    path = pathlib.Path(path).expanduser()
    config, stored = _config(path)
    try:
        classes, lambdas = set(_custom_classes(config)), sorted(set(_lambdas(config)))
    except RecursionError as error:
        raise ArgumentError(f"{path} must have a model of fewer nested parts.") from error
    # KerasHub finds its classes by their modules.
    of_hub = {name for name, module in classes if module.partition(".")[0] == _HUB}
    if of_hub:
        with needing("hub", path.name):
            import keras_hub  # noqa: F401 registers its classes
    others = {name for name, _ in classes} - of_hub
    unknown = sorted(name for name in others if not keras.saving.get_registered_object(name))
    if unknown:
        raise ArgumentError(
            f"{path} must have only registered custom classes, but got {', '.join(unknown)}. "
            "Decorate them with @keras.saving.register_keras_serializable() and import their "
            "modules first (--import_modules on the command line)."
        )
    if lambdas and not trust_code:
        raise ArgumentError(
            f"{path} must have no Lambda layers, but got {', '.join(lambdas)}. Loading would run "
            "their Python code. Replace them with Layer classes or, if you trust the author of the "
            "file, set trust_code (--trust_code on the command line)."
        )
    try:
        with _weights_of_at_most(stored + _MOST_NUMBERS):
            return keras.saving.load_model(path, compile=False, safe_mode=not trust_code)
    except Exception as error:  # third-party layers may raise anything
        raise ArgumentError(f"{path} cannot be loaded: {_first(error)}") from error


def saved_backbone(path: StrPath, image_size: int, trust_code: bool = False) -> keras.Model:
    """Load a saved model as a backbone: images `[n, s, s, 3]` in 0..255 to maps, tokens or vectors.

    A functional model with inputs of exactly this size is returned unchanged. Any other model
    (sequential, subclassed, or functional with a variable image size) becomes the only layer of a
    new functional model.

    Args:
        path: Path of a `.keras` file. Its model takes such images and scales them itself.
        image_size: s.
        trust_code: As in `load_keras_file`.

    Raises:
        MissingExtraError: As in `load_keras_file`.
        ValueError: As in `load_keras_file`. Also if the model does not take images of this size, or
            its output is not one of the three.

    Examples:
        >>> saved_backbone("backbone.keras", 224).output_shape  # doctest: +SKIP
        (None, 7, 7, 1280)
    """
    model = load_keras_file(path, trust_code)
    name = pathlib.Path(path).name
    shape = (image_size, image_size, 3)
    images = keras.Input(shape, name="images")
    if isinstance(model, Functional) and getattr(model.input, "shape", None) == images.shape:
        return model
    for tensor in getattr(model, "inputs", None) or []:
        wanted = tuple(tensor.shape)
        # The batch size may differ: a model that was built on one image keeps the batch size 1.
        if len(wanted) != 4 or any(a not in (None, b) for a, b in zip(wanted[1:], shape)):
            raise ArgumentError(
                f"{name} must take RGB images [n, h, w, 3] of image_size={image_size}, but got a "
                f"model for inputs of shape {wanted}. Set the image_size of the saved model."
            )
    given: Any = images
    if isinstance(getattr(model, "input", None), dict):
        given = dict.fromkeys(model.input, images)
    try:
        with _weights_of_at_most(_MOST_NUMBERS):  # of layers that are not built yet
            outputs = model(given)
    except Exception as error:  # third-party code may raise anything
        raise ArgumentError(
            f"{name} does not take images [n, {image_size}, {image_size}, 3]: {_first(error)}"
        ) from error
    return keras.Model(images, outputs, name=f"{model.name}_backbone")


@contextlib.contextmanager
def _weights_of_at_most(most: int) -> Iterator[None]:
    """Within the block, limit the numbers of the weights that this thread adds to layers.

    A configuration of a few bytes can name a layer of any size.
    """
    add_weight, thread, left = keras.Layer.add_weight, threading.get_ident(), most

    def counted(layer: keras.Layer, shape: Any = None, *args: Any, **kwargs: Any) -> Any:
        nonlocal left
        if threading.get_ident() == thread:
            sizes = (shape,) if isinstance(shape, int) else shape or ()
            left -= math.prod(size or 1 for size in sizes)
            if left < 0:
                raise ArgumentError(
                    f"its layers must have the weights that are in the file, but got {layer.name} "
                    f"with weights of shape {tuple(sizes)}"
                )
        return add_weight(layer, shape, *args, **kwargs)

    with _ADDING:
        keras.Layer.add_weight = counted
        try:
            yield
        finally:
            keras.Layer.add_weight = add_weight


def _config(path: pathlib.Path) -> tuple[Any, int]:
    """Return the model's configuration from the file, and the size of the content in bytes."""
    if not path.is_file():
        raise ArgumentError(f"No such file: {path}")
    try:
        with opened_zip(path) as archive:
            # Check all checksums here, because Keras reads the weights piecewise and checks none.
            damaged = archive.testzip()
            config = json.loads(archive.read("config.json"))
            stored = sum(entry.file_size for entry in archive.infolist())
            if damaged is None:
                _check_weights(archive, stored)
    except ArgumentError:
        raise
    except Exception as error:  # a damaged file may raise nearly any error
        raise ArgumentError(f"{path} is not a readable .keras file") from error
    if damaged is not None:
        raise ArgumentError(f"{path} is damaged: {damaged} in it has another checksum")
    return config, stored


def _check_weights(archive: zipfile.ZipFile, most: int) -> None:
    """Check that no weights announce more numbers than the archive has bytes."""
    import h5py

    def numbers(_: str, found: Any) -> None:
        nonlocal most
        most -= found.size or 0 if isinstance(found, h5py.Dataset) else 0
        if most < 0:
            raise ArgumentError(f"{archive.filename} is damaged: its weights are cut off")

    for name in archive.namelist():
        if name.endswith(".h5"):
            with h5py.File(io.BytesIO(archive.read(name)), "r") as weights:
                weights.visititems(numbers)


def _objects(config: Any) -> Iterator[dict[str, Any]]:
    """Yield every serialized object in a configuration, at any depth."""
    if isinstance(config, dict):
        if "class_name" in config and "config" in config:
            yield config
        for key, value in config.items():
            if key != "compile_config":  # losses and similar objects, which are not loaded
                yield from _objects(value)
    elif isinstance(config, (list, tuple)):
        for value in config:
            yield from _objects(value)


def _custom_classes(config: Any) -> Iterator[tuple[str, str]]:
    """Yield the registered name and module of each object whose class is not from Keras."""
    for one in _objects(config):
        module, registered = one.get("module"), one.get("registered_name")
        own = module == "builtins" or str(module).partition(".")[0] == "keras"
        if registered and not (module and own) and one["class_name"] != "function":
            yield str(registered), str(module)


def _lambdas(config: Any) -> Iterator[str]:
    """Yield the names of the layers that contain Python code."""
    for one in _objects(config):
        if one["class_name"] != _CODE and isinstance(one["config"], dict):
            held = one["config"].values()
            if any(isinstance(x, dict) and x.get("class_name") == _CODE for x in held):
                yield str(one["config"].get("name", one["class_name"]))


def _first(error: Exception) -> str:
    """Return an error's first sentence, without the configurations that Keras appends."""
    text = " ".join(str(error).split()) or type(error).__name__
    return re.split(r"(?<=[a-z)'`])\. |Full object config", text)[0][:300].rstrip(". ")
