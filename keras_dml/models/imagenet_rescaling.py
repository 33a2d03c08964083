"""Detection of weight files for an EfficientNet with the extra rescaling of Keras.

The Keras ImageNet files of EfficientNet B0 to B7 contain the standard deviations of the colors in
place of the variances. With `weights="imagenet"`, and only then, Keras therefore divides the
normalized images again, by the square roots of these numbers (tensorflow/tensorflow issue 49930).
Weights fit only the graph that they were trained in, so the file has to identify its graph.
"""

import hashlib
import json
import math
import os
import pathlib
import re
import sys
import zipfile
from types import ModuleType
from typing import Any

import h5py
import keras

from keras_dml._backend.cloning import copy_state, same_layer
from keras_dml._common.errors import ArgumentError


def has_rescaling(application: str) -> bool:
    """Return whether `keras.applications` builds the model of this name in these two ways."""
    return re.fullmatch(r"EfficientNetB[0-7]", application) is not None


def with_rescaling(application: str, model: keras.Model) -> keras.Model:
    """Copy the model with the Keras rescaling after the normalization, as for `"imagenet"`."""
    deviations = _module(application).IMAGENET_STDDEV_RGB
    copies = []

    def copy_of(layer: keras.Layer) -> keras.Layer:
        copies.append((layer, same_layer(layer)))
        return copies[-1][1]

    def call(layer: keras.Layer, *args: Any, **kwargs: Any) -> Any:
        outputs = layer(*args, **kwargs)
        if isinstance(layer, keras.layers.Normalization):
            scale = [1 / math.sqrt(deviation) for deviation in deviations]
            outputs = keras.layers.Rescaling(scale, name="imagenet_rescaling")(outputs)
        return outputs

    # New layers, because the model's layers would keep the outputs of the old graph.
    copy = keras.models.clone_model(model, clone_function=copy_of, call_function=call)
    for old, new in copies:
        copy_state(old, new)
    return copy


def file_has_rescaling(application: str, path: str | os.PathLike[str]) -> bool:
    """Return whether the weights in a file belong to the graph with the rescaling.

    The Keras no-top file, identified by its MD5, does. `.weights.h5`, `.keras`, and Keras 3 `.h5`
    files list the layers of the saved model. Other `.h5` files are older than the rescaling in
    Keras, and can contain weights of either kind.

    Raises:
        ValueError: The file does not identify its graph.
    """
    path = pathlib.Path(path)
    count: int | None
    if path.suffix == ".keras":
        with zipfile.ZipFile(path) as archive:
            count = _rescalings_of_config(json.loads(archive.read("config.json")))
    else:
        known = _module(application).WEIGHTS_HASHES[application[-2:].lower()][1]
        if _md5(path) == known:
            return True
        count = _rescalings_of_h5(path)
    if count not in (1, 2):
        raise ArgumentError(
            f"The file does not tell whether its weights belong with the rescaling that Keras adds "
            f"to {application} only for 'imagenet'. Use the Keras no-top file (MD5 "
            f"{_module(application).WEIGHTS_HASHES[application[-2:].lower()][1]}), or save the "
            "model in which the weights work as .keras or .weights.h5 with Keras 3"
        )
    return count == 2


def _module(application: str) -> ModuleType:
    return sys.modules[getattr(keras.applications, application).__module__]


def _md5(path: pathlib.Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def _rescalings_of_config(config: object) -> int:
    if isinstance(config, dict):
        own = config.get("class_name") == "Rescaling" and "registered_name" in config
        return own + sum(_rescalings_of_config(value) for value in config.values())
    if isinstance(config, list):
        return sum(_rescalings_of_config(value) for value in config)
    return 0


def _rescalings_of_h5(path: pathlib.Path) -> int | None:
    """Count the rescaling layers of the saved model. None if the file does not list its layers."""
    with h5py.File(path) as file:
        if "layers" in file:
            names = list(file["layers"])
        else:
            group = file.get("model_weights", file)
            version = _text(group.attrs.get("keras_version", ""))
            if not version.startswith("3."):
                return None
            # Keras splits long lists into several attributes.
            lists = [v for k, v in group.attrs.items() if re.fullmatch(r"layer_names\d*", k)]
            names = [_text(name) for part in lists for name in part]
    return sum(
        re.fullmatch(r"rescaling(_\d+)?|imagenet_rescaling", name) is not None for name in names
    )


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
