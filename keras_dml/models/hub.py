"""Backbones from KerasHub, by preset or folder, as models of images in 0..255."""

import contextlib
import difflib
import math
import os
import pathlib
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any, TypeAlias

import keras
import numpy as np
from keras import ops

from keras_dml._backend.cloning import all_layers, finalize
from keras_dml._common.errors import ArgumentError, argument_error
from keras_dml._common.extras import needing
from keras_dml._common.types import Tensor
from keras_dml._files.json_files import read_json
from keras_dml.layers.pooling import TokenLayout
from keras_dml.models.image_size import fitting_image_size

PREFIX = "hub:"
_CONFIG, _CONVERTER = "config.json", "image_converter.json"
_PREPROCESSOR = "preprocessor_config.json"
_SCALING = {
    "do_rescale": bool | None,
    "rescale_factor": float | None,
    "do_normalize": bool | None,
    "image_mean": ([float] * 3, None),
    "image_std": ([float] * 3, None),
}

_PerColor: TypeAlias = float | list[float]


def hub_backbone(name: str, image_size: int, random: bool = False) -> keras.Model:
    """Build a KerasHub backbone: images `[n, s, s, 3]` in 0..255 to maps, tokens or vectors.

    KerasHub backbones take scaled images, some of them in a dictionary. The returned model takes
    unscaled images and includes the scale and offset of the preset's image converter. Position
    embeddings are interpolated to `image_size`, bicubically as in the original code, and files
    store them in that size. For an image and text model, only the image encoder is used. Tokens end
    in a `TokenLayout`.

    Args:
        name: `"hub:"` followed by a preset (`"hub:dinov2_base"`), a handle
            (`"hub:hf://OWNER/MODEL"`), or a local folder. The folder contains a Keras preset with
            its image converter, or a Hugging Face or timm model that KerasHub converts.
        image_size: s, in pixels. A multiple of the backbone's patch size.
        random: Whether to use random weights instead of the preset's weights.

    Raises:
        MissingExtraError: KerasHub is not installed.
        ValueError: The preset or folder does not exist, is gated, is unreachable, or has no image
            encoder, or the backbone does not support the image size.

    Examples:
        >>> hub_backbone("hub:dinov2_small", 224).output_shape  # doctest: +SKIP
        (None, 257, 384)
    """
    preset = os.path.expanduser(name.removeprefix(PREFIX))
    with needing("hub", f"backbone {name}"):
        import keras_hub
    check_there(keras_hub, name, preset)
    with refusing(keras_hub, name, preset):
        whole = keras_hub.models.Backbone.from_preset(preset, load_weights=not random)
        seeing = getattr(whole, "vision_encoder", None)
        backbone = whole if seeing is None else seeing
        if len(backbone.inputs) != 1 or len(backbone.inputs[0].shape) != 4:
            raise ArgumentError(
                f"backbone must take only images, but got {name!r}, a {type(whole).__name__}, "
                "which takes text. models.text_backbone builds encoders of text, and a run needs "
                "--texts=FILE.csv."
            )
        scale, offset = _scaling(keras_hub, name, preset)
    _check_side(name, backbone, image_size)
    backbone = _of_size(name, backbone, image_size)
    inputs = keras.Input((image_size, image_size, 3), name="images")
    x = keras.layers.Rescaling(scale, offset, name="input_scaling")(inputs)
    x = backbone(dict.fromkeys(backbone.input, x) if isinstance(backbone.input, dict) else x)
    others = _others(x, backbone, image_size)
    if others is not None:
        x = TokenLayout(others > 0, max(others - 1, 0), name="tokens")(x)
    return keras.Model(inputs, x, name=plain_name(name))


def plain_name(name: str) -> str:
    """Return a name of a preset as a name of a model."""
    return re.sub(r"[^A-Za-z0-9.]+", "_", name).strip("_")


@contextlib.contextmanager
def refusing(keras_hub: ModuleType, name: str, preset: str) -> Iterator[None]:
    """Turn every error of KerasHub and the model hubs into a one-line `ArgumentError`."""
    try:
        yield
    except ArgumentError:
        raise
    except Exception as error:
        lines = " ".join(str(error).split())
        said = f"{type(error).__name__}: {lines[:300]}" if lines else type(error).__name__
        if pathlib.Path(preset).is_dir():
            raise ArgumentError(
                f"backbone {name} could not be read from its folder ({said})"
            ) from error
        handle = keras_hub.models.Backbone.presets.get(preset, {}).get("kaggle_handle", preset)
        raise ArgumentError(
            f"backbone {name} could not be fetched ({said}). Without a network, or if it is gated, "
            f"fetch {handle} where you may, unpack it, and give "
            f"backbone={PREFIX}FOLDER"
        ) from error


def check_there(keras_hub: ModuleType, name: str, preset: str) -> None:
    """Refuse a name that is neither a preset, nor a handle, nor the folder of a preset."""
    presets = keras_hub.models.Backbone.presets
    path = pathlib.Path(preset)
    if path.is_dir():
        if not (path / _CONFIG).is_file():
            raise argument_error("backbone", f"the folder of a preset with a {_CONFIG}", name)
    elif preset not in presets and "://" not in preset:
        near = difflib.get_close_matches(preset, presets, 3, cutoff=0.5)
        example = f", such as {', '.join(near)}" if near else ""
        wanted = f"{PREFIX} and a KerasHub preset{example}, or a preset's folder"
        problem = "is a file" if path.is_file() else "does not exist"
        raise argument_error("backbone", wanted, name, advice=f"{preset} {problem}.")


def _scaling(keras_hub: ModuleType, name: str, preset: str) -> tuple[_PerColor, _PerColor]:
    """Return the scale and the offset that the preset's weights expect for images in 0..255."""
    folder, converter = pathlib.Path(preset), None
    # In a Keras preset, the converter is a separate file that `Backbone.save_to_preset` does not
    # write.
    if not folder.is_dir() or _is_foreign(folder) or (folder / _CONVERTER).is_file():
        converter = keras_hub.layers.ImageConverter.from_preset(preset)
    if converter is not None:
        scale = 1.0 if converter.scale is None else converter.scale
        return scale, 0.0 if converter.offset is None else converter.offset
    # KerasHub reads the Hugging Face file only for some models.
    if (folder / _PREPROCESSOR).is_file():
        return _of_hugging_face(folder / _PREPROCESSOR)
    wanted = _PREPROCESSOR if folder.is_dir() and _is_foreign(folder) else _CONVERTER
    raise ArgumentError(
        f"backbone must specify how its images are scaled, but got {name!r} without {wanted}. Use "
        "a folder that has this file, or add it to the Keras preset with "
        "keras_hub.layers.ImageConverter(scale=…, offset=…).save_to_preset(FOLDER)."
    )


def _of_hugging_face(path: pathlib.Path) -> tuple[_PerColor, _PerColor]:
    """Read a `preprocessor_config.json`: `(rescale_factor * image - mean) / std`, with defaults."""
    config = read_json(path, _SCALING)
    given = config.get("rescale_factor")
    factor = 1 / 255 if given is None else given
    if config.get("do_rescale") is False:
        factor = 1.0
    if config.get("do_normalize") is False:
        return _finite(path, [factor])[0], 0.0
    means, deviations = (config.get(name) or [] for name in ("image_mean", "image_std"))
    if not (means and deviations and all(deviations)):
        raise ArgumentError(
            f"{path} must have image_mean and image_std, three numbers each, and no image_std of 0."
        )
    return (
        _finite(path, [factor / deviation for deviation in deviations]),
        _finite(path, [-mean / deviation for mean, deviation in zip(means, deviations)]),
    )


def _finite(path: pathlib.Path, numbers: list[float]) -> list[float]:
    if not all(map(math.isfinite, numbers)):
        raise ArgumentError(f"{path} must have finite numbers, but got a scaling of {numbers}.")
    return numbers


def _is_foreign(folder: pathlib.Path) -> bool:
    """Return whether a folder is from Hugging Face or timm, and not from Keras."""
    return "registered_name" not in read_json(folder / _CONFIG, dict[str, Any])


def _patch(backbone: keras.Model) -> int | None:
    patch = getattr(backbone, "patch_size", None)
    sides = patch if isinstance(patch, (tuple, list)) else (patch,)
    return int(sides[0]) if sides[0] else None


def _check_side(name: str, backbone: keras.Model, image_size: int) -> None:
    patch = _patch(backbone)
    if patch and image_size % patch:
        below = image_size // patch * patch
        near = f"{below} or {below + patch}" if below else str(patch)
        wanted = f"a multiple of {patch}, the patch of {name}, such as {near}"
        raise argument_error("image_size", wanted, image_size)


def _of_size(name: str, backbone: keras.Model, image_size: int) -> keras.Model:
    """Return the backbone for images of this size, with the same weights.

    Drops the mask token of DINOv2 and DINOv3, which only their pretraining uses.
    """
    given = tuple(backbone.inputs[0].shape[1:3])
    config = backbone.get_config()
    changes: dict[str, Any] = {}
    if "image_shape" in config and given not in ((image_size, image_size), (None, None)):
        changes["image_shape"] = (image_size, image_size, 3)
    if config.get("use_mask_token"):
        changes["use_mask_token"] = False
    # DINOv2 stores position embeddings in the preset's size and interpolates them when it loads
    # them, which would blur position embeddings after training.
    target_side = tuple(changes.get("image_shape", given))[:2]
    if tuple(config.get("position_embedding_shape", target_side))[:2] != target_side:
        changes["position_embedding_shape"] = (*target_side, 3)
    if not changes:
        return backbone
    with fitting_image_size(name, image_size):
        target = type(backbone).from_config({**config, **changes})
    patches = (image_size // (_patch(backbone) or image_size)) ** 2
    antialias = config.get("antialias_in_interpolation", False)
    for old, new in zip(all_layers(backbone), all_layers(target), strict=True):
        _copy_weights(name, old, new, patches, antialias)
    finalize(target)
    return target


def _copy_weights(
    name: str, source: keras.Layer, target: keras.Layer, patches: int, antialias: bool
) -> None:
    """Copy a layer's weights, without its inner layers, to the layer for another image size."""
    olds, news = _own(source), _own(target)
    named = {variable.name: variable for variable in olds}
    # By position, because some names are not unique. By name if the mask token was dropped.
    same = olds if len(olds) == len(news) else [named[variable.name] for variable in news]
    for new, old in zip(news, same, strict=True):
        # DINOv2 computes with this variable, and stores `position_embeddings` in files.
        old = named.get(f"interpolated_{new.name}", old)
        if not keras.backend.is_float_dtype(old.dtype):
            # Positions, 0 to t - 1, which the new layer created.
            continue
        values = ops.convert_to_numpy(old.value)
        if values.shape != tuple(new.shape):
            values = _resized(name, values, tuple(new.shape), patches, antialias)
        new.assign(values)


def _own(layer: keras.Layer) -> list[keras.Variable]:
    """Return the variables of a layer that do not belong to a layer within it."""
    inner = {id(variable) for one in all_layers(layer)[1:] for variable in one.variables}
    return [variable for variable in layer.variables if id(variable) not in inner]


def _resized(
    name: str, values: np.ndarray, shape: tuple[int, ...], patches: int, antialias: bool
) -> np.ndarray:
    """Resize position embeddings `[…, t, c]` to another number of patches.

    The other tokens come first and stay unchanged. The grid of patches is interpolated.
    """
    number, channels = values.shape[-2:]
    others = shape[-2] - patches
    side, target = math.isqrt(max(number - others, 0)), math.isqrt(patches)
    fits = side and side**2 == number - others and channels == shape[-1]
    if not fits or others < 0:
        raise ArgumentError(
            f"backbone {name} takes only images of its preset's size: weights {values.shape} "
            f"cannot become {shape}"
        )
    rows = values.reshape(number, channels)
    grid = ops.image.resize(
        ops.convert_to_tensor(rows[others:].reshape(1, side, side, channels)),
        (target, target),
        interpolation="bicubic",
        antialias=antialias,
        data_format="channels_last",
    )
    grid = ops.convert_to_numpy(grid).reshape(-1, channels)
    return np.concatenate([rows[:others], grid]).reshape(shape)


def _others(x: Tensor, backbone: keras.Model, image_size: int) -> int | None:
    """Count the tokens that are not patches. None if unknown or without tokens."""
    if not hasattr(x, "shape") or len(x.shape) != 3 or x.shape[1] is None:
        return None
    patch = _patch(backbone)
    others = None if patch is None else x.shape[1] - (image_size // patch) ** 2
    return others if others is not None and others >= 0 else None
