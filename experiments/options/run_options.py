"""The options of a run, in groups that other commands share."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
from collections.abc import Collection, Mapping
from typing import Any, Self

from experiments.options import loss_flags
from experiments.options.command_words import given_words
from experiments.options.conversions import normal_path
from experiments.options.declared import Flag, Options, declarations, flags_of, option
from experiments.options.errors import UsageError
from experiments.options.registry_flags import (
    arguments,
    flags_of_entries,
    import_attribute,
    summary,
    words,
)
from pipelines.max_pixels import MOST_PIXELS

DATA, IMAGES, SAMPLING, MODEL = "Data", "Images", "Sampling", "Model"
LOSS, OPTIMIZER, TRAINING = loss_flags.GROUP, "Optimizer", "Training"
EVALUATION, RUN = "Evaluation", "Run"
RELATIONS, SAMPLERS = "keras_dml.relations.RELATIONS", "pipelines.samplers.SAMPLERS"
OPTIMIZERS, SCHEDULES = "keras_dml.optimizers.OPTIMIZERS", "keras_dml.optimizers.SCHEDULES"


def _datasets() -> str:
    names = words("pipelines.datasets.registry.NAMES")()
    return f"Dataset: {', '.join(names)}, or {_prefix()}NAME."


def _prefix() -> str:
    prefix: str = import_attribute("pipelines.datasets.registry.PREFIX")
    return prefix


def _described_datasets() -> str:
    lines = []
    for name in words("pipelines.datasets.registry.NAMES")():
        load = import_attribute(f"pipelines.datasets.{name}.load")
        lines.append(f"{name}: {summary(load)}")
    lines.append(f"{_prefix()}NAME or {_prefix()}NAME:CONFIG: a dataset of tensorflow-datasets.")
    return "\n".join(lines)


def _backbones() -> str:
    own = words("keras_dml.models.backbones.BACKBONES")()
    return "\n".join(
        [
            f"Of this project: {', '.join(own)}.",
            "hub:NAME: a KerasHub preset (hub:dinov2_base), or a folder of Keras, Hugging Face, or "
            "timm (hub:FOLDER), which includes its weights.",
            "FILE.keras: a saved model from images in 0..255 to maps, tokens, or vectors.",
        ]
    )


def _poolings() -> str:
    poolings = import_attribute("keras_dml.layers.pooling.POOLINGS")
    return "\n".join(f"{name}: {summary(make)}" for name, make in poolings.items())


def _losses() -> str:
    return f"Loss: {', '.join(loss_flags.registered_names())}."


def flags_of_registry(
    path: str,
    group: str,
    prefix: str = "",
    optional: bool = False,
    common: bool = False,
    entry: str | None = None,
    light: bool = False,
) -> Any:
    """Declare a field of the flags of a registry's entries.

    Args:
        path: `MODULE.NAME` of the registry, or of its only entry.
        group, prefix, optional, common: As in `flags_of_entries`.
        entry: Description of the only entry. None for a registry.
        light: As in `flags_of`.
    """

    def read() -> tuple[Flag, ...]:
        found = import_attribute(path)
        entries = found if entry is None else {entry: found}
        return flags_of_entries(entries, group, prefix, optional, common)

    return flags_of(read, prefix, light)


def _normal_fold(text: str) -> str:
    """Return a fold K/N, and raise `UsageError` for other text."""
    numbers = re.fullmatch("([0-9]{1,9})/([0-9]{1,9})", text)
    which, folds = map(int, numbers.groups()) if numbers else (0, 0)
    if not (folds >= 2 and 1 <= which <= folds):
        raise UsageError(
            f"fold must be K/N, such as 1/4, but got {text}. It is part K of the training classes "
            "in N parts, with N of at least 2."
        )
    return f"{which}/{folds}"


def _normal_tracker(text: str) -> str:
    """Return TRACKER:TARGET, and raise `UsageError` for other text."""
    if text.partition(":")[0] not in ("mlflow", "wandb") or ":" not in text:
        raise UsageError(f"log_to must be mlflow:URI or wandb:PROJECT, but got {text}.")
    return text


def _for_the_choice(
    options: Options, choice: str, registry: str, values: Mapping[str, Any], prefix: str = ""
) -> dict[str, Any]:
    """Return the set values that the chosen entry of a registry takes.

    A value that the entry does not take is ignored if a recipe sets it and the command line chooses
    the entry, or if it is a default in the `flags.txt` of a run.

    Raises:
        UsageError: The entry does not take a value, or needs one that is not set.
    """
    entries, chosen = import_attribute(registry), getattr(options, choice)
    taken, declared = arguments(entries[chosen]), declarations(type(options))
    given = {name: value for name, value in values.items() if f"{prefix}{name}" in options.given}
    for name, argument in taken.items():
        if argument.required and given.get(name) is None:
            flag = f"{prefix}{name}"
            raise UsageError(
                f"{flag} must be set for {choice}={chosen}, but got none. Add --{flag}=N."
            )
    for name, value in given.items():
        flag = f"{prefix}{name}"
        overridden = choice in options.on_command_line or value == declared[flag][2].default
        if name in taken or (overridden and flag not in options.on_command_line):
            continue
        takers = [entry for entry, maker in entries.items() if name in arguments(maker)]
        raise UsageError(f"{choice} must be {' or '.join(takers)} with --{flag}, but got {chosen}.")
    return {name: value for name, value in given.items() if name in taken}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageLimitOptions(Options):
    """The limit of an image file.

    Attributes:
        max_pixels: Largest number of pixels of an image file. A larger image is never decoded: a
            file of 17 KB can need 5 GB. A file of more than 256 MB, or of more than 5 bytes for
            each of these pixels if that is more, is never opened.
    """

    group = DATA

    max_pixels: int = option(MOST_PIXELS, lower_bound=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataOptions(Options):
    """The images of a run.

    Attributes:
        data_dir: Folder with the dataset's files. Default for tfds: ~/tensorflow_datasets.
        train_classes: Number of training classes, from the first. The next classes test. Default:
            the dataset's split; for a folder, half of the classes. tfds: combines the dataset's
            splits first.
        test_classes: Number of test classes. Default: all other classes.
        class_split: Selection of the training classes. random_classes: random classes.
            within_classes: half of the images of each class train, and the others test.
            every_class: all images train, without a test. Not for sop, inshop, and digits.
        split_seed: Seed of the random selection of --class_split, independent of --seed.
        fold: K/N: divide the training classes into N parts, test on part K, and train on the
            others. The test classes stay unseen. keras-dml study --search uses folds.
        crop_to_box: cub, cars: crop every image to its bounding box. Most papers do not.
        outside_paths: table: also read images with absolute paths and paths out of the table's
            folder (..). Only for tables that you trust. Flag files cannot set it.
    """

    group = DATA

    dataset: str | None = option(None, text=_datasets, details=_described_datasets, common=True)
    data_dir: str | None = option(None, convert=normal_path, common=True)
    train_classes: int | None = option(None, lower_bound=1)
    test_classes: int | None = option(None, lower_bound=1)
    class_split: str = option("first_classes", choices=words("pipelines.split.SPLITS"))
    split_seed: int = option(0, lower_bound=0)
    fold: str | None = option(None, convert=_normal_fold)
    crop_to_box: bool = option(False)
    outside_paths: bool = option(False, command_line_only=True)

    @property
    def keeps_nothing_back(self) -> bool:
        """Whether every image trains, so that no image tests."""
        return self.class_split == "every_class" and self.fold is None


@dataclasses.dataclass(frozen=True, kw_only=True)
class BadImageOptions(DataOptions, ImageLimitOptions):
    """The images of a run, and the treatment of files that are not images.

    Attributes:
        skip_bad_images: Decode every image first, and leave out and list the files that are not
            images. Without it, the first bytes of the files are checked, and a folder can have 5 %
            of bad files.
    """

    group = DATA

    skip_bad_images: bool = option(False, common=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageSizeOptions(ImageLimitOptions):
    """Preprocessing of an image for evaluation.

    Attributes:
        image_size: Height and width of the model's input.
        resize: Size before the crop: N (shortest side) or HxW. Default: shortest side = image_size.
            --image_size on the command line scales the resize of a recipe.
    """

    group = IMAGES

    image_size: int = option(224, lower_bound=8, common=True)
    resize: str | None = option(None, common=True)

    @classmethod
    def followed(cls, in_files: Mapping[str, Any], on_line: Mapping[str, Any]) -> Mapping[str, Any]:
        """Scale the resize of a recipe with the image size of the command line."""
        resize = in_files.get("resize")
        if resize is None or "image_size" not in on_line or "resize" in on_line:
            return in_files
        factor = on_line["image_size"] / in_files.get("image_size", cls.image_size)
        return {**in_files, "resize": _scaled(resize, factor)}

    def at_size(self, image_size: int) -> Self:
        """Return the options with another image size, and the resize in proportion."""
        resize = self.resize and _scaled(self.resize, image_size / self.image_size)
        return dataclasses.replace(self, image_size=image_size, resize=resize)


def _scaled(resize: str, factor: float) -> str:
    return re.sub("[0-9]+", lambda side: str(round(int(side[0]) * factor)), resize)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AugmentationOptions(ImageSizeOptions):
    """Augmentation of a training image.

    Attributes:
        training_size: Height and width of a training image. A smaller size than image_size trains
            faster. Default: image_size.
        crop: Crop of a training image. area: random area and aspect. fixed: training_size pixels at
            a random place. none: the center.
        crop_from: Pixels of an area crop. original: the stored image, resampled once. resized: the
            resized image, as in the papers.
        crop_area: Lowest and highest fraction of the image in an area crop.
        crop_aspect: Lowest and highest ratio of width to height of an area crop.
        flip: Mirror half of the training images.
        jitter: Strengths of the changes of brightness, contrast, saturation, and hue.
    """

    group = IMAGES

    training_size: int | None = option(None, lower_bound=8, not_with=("cache_features",))
    crop: str = option("area", choices=words("pipelines.images.transform_settings.CROPS"))
    crop_from: str = option(
        "original", choices=words("pipelines.images.transform_settings.CROP_SOURCES")
    )
    crop_area: tuple[str, ...] = option(("0.16", "1"))
    crop_aspect: tuple[str, ...] = option(("0.75", "1.3333"))
    flip: bool = option(True)
    jitter: tuple[str, ...] = option(("0", "0", "0", "0"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingOptions(Options):
    """The images of a batch.

    Attributes:
        sampler: Sampler of the training batches.
        batch_size: Images of a batch, over all devices.
        of_samplers: Arguments of all samplers, with their defaults.
        refresh_every: hard_classes: number of epochs between two searches for the nearest classes,
            by the current embeddings of up to 8 training images of each class.
    """

    group = SAMPLING

    sampler: str = option("random", choices=words(SAMPLERS), common=True)
    batch_size: int = option(128, lower_bound=1, common=True)
    of_samplers: Mapping[str, Any] = flags_of_registry(SAMPLERS, SAMPLING, common=True, light=True)
    refresh_every: int = option(1, lower_bound=1, needs="sampler=hard_classes")

    @property
    def sampler_arguments(self) -> dict[str, Any]:
        """The arguments that are set for the chosen sampler.

        Raises:
            UsageError: The sampler does not take an argument.
        """
        return _for_the_choice(self, "sampler", SAMPLERS, self.of_samplers)

    @property
    def batches_by_class(self) -> bool:
        """Whether a batch has `images_per_class` images of each of its classes."""
        return "images_per_class" in arguments(import_attribute(SAMPLERS)[self.sampler])


@dataclasses.dataclass(frozen=True, kw_only=True)
class CodeOptions(Options):
    """Third-party code that a saved model needs. Flag files cannot set these options.

    Attributes:
        import_modules: Python modules to import first, which register the custom classes of a
            .keras file. Flag files cannot set it.
        trust_code: Run the Python code in the Lambda layers of a .keras file. Only for files that
            you trust. Flag files cannot set it.
    """

    group = MODEL

    import_modules: tuple[str, ...] = option((), command_line_only=True)
    trust_code: bool = option(False, command_line_only=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BackboneOptions(CodeOptions):
    """The backbone and its pooling.

    Attributes:
        filters: small_convnet: widths of its stages, with two convolutions each. Default:
            32,64,128.
        levels: Layers of the backbone, each with its pooling and projection. The embedding
            concatenates them, and losses over pairs are summed over them. Default: the last layer.
    """

    group = MODEL

    backbone: str = option(
        "resnet50",
        text="Backbone: a keras.applications model, or one of this project, such as small_convnet.",
        details=_backbones,
        common=True,
    )
    filters: tuple[str, ...] | None = option(None)
    weights: str = option(
        "imagenet",
        text="Weights of the backbone: imagenet, none, packaged, or a file.\n"
        "imagenet: of keras.applications, or of torchvision for resnet50_v1_5. packaged: ImageNet "
        "weights of efficientnet_lite0 from an installed package. A file: weights of the backbone; "
        "for bn_inception, resnet50_v1_5, and efficientnet_lite0 also the public PyTorch "
        "checkpoint, .pth or .npz. hub:NAME and FILE.keras include their weights; none: random "
        "weights for hub:NAME.",
        common=True,
    )
    pooling: str = option(
        "average",
        text="Pooling of the backbone's maps or tokens to one vector.",
        details=_poolings,
        choices=words("keras_dml.layers.pooling.POOLINGS"),
    )
    levels: tuple[str, ...] | None = option(None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelOptions(BackboneOptions):
    """The embedding model.

    Attributes:
        frozen_batch_norm: Use the stored statistics of the backbone's batch norm in training.
            Default: true with trained weights.
        freeze_backbone: Freeze the backbone and train only the head.
        lora_rank: Train only low-rank additions (LoRA) of this rank to the queries and values of
            the backbone's attention. Exported models contain the merged weights. Default: no
            additions.
        lora_layers: lora_rank: names of the layers with additions, instead of the queries and
            values.
        rematerialize: Recompute the activations in a transformer's blocks in the backward pass:
            less memory, about a third more time.
        feature_batch_norm: Apply batch norm without scale and offset to the pooled features.
        embedding_size: Size of the embedding. Default: no projection, the pooled features are the
            embedding.
        dropout: Dropout before the classifier (ce, center).
    """

    group = MODEL

    frozen_batch_norm: bool | None = option(None)
    freeze_backbone: bool = option(
        False, common=True, not_with=("lora_rank", "head_epochs", "layer_decay", "rematerialize")
    )
    lora_rank: int | None = option(None, lower_bound=1, not_with=("layer_decay",))
    lora_layers: tuple[str, ...] | None = option(None, needs="lora_rank")
    rematerialize: bool = option(False)
    feature_batch_norm: bool = option(False)
    embedding_size: int | None = option(None, lower_bound=1, common=True)
    dropout: float = option(0.0, lower_bound=0.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RelationOptions(Options):
    """The positives and negatives of an image.

    Attributes:
        relation: losses over pairs: positives and negatives by coarse class (category) and class
            (product). Needs a dataset with coarse classes: groceries, sop, or a folder of nested
            class folders. hierarchy: products of one category are not negatives of each other.
            shares_label: both classes are tags. The table of scores gets rows in which the
            positives of a query are its matches. Default: images of one class are positives.
        of_relations: Arguments of all relations.
    """

    group = LOSS

    relation: str | None = option(None, choices=words(RELATIONS), not_with=("also",))
    of_relations: Mapping[str, Any] = flags_of_registry(
        RELATIONS, LOSS, loss_flags.RELATION, optional=True
    )

    @property
    def relation_arguments(self) -> dict[str, Any]:
        """The arguments that are set for the chosen relation.

        Raises:
            UsageError: The relation does not take an argument.
        """
        return _for_the_choice(self, "relation", RELATIONS, self.of_relations, loss_flags.RELATION)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossOptions(RelationOptions):
    """The loss.

    Attributes:
        given_for_loss: Loss arguments that are set, including arguments that the loss refuses.
        also: Second loss over pairs of embeddings, next to ce or to another loss over pairs, such
            as tcm. Default: none.
        also_weight: also: weight of the second loss.
        also_flags: also: its arguments, ARGUMENT=VALUE. Default: the defaults of the loss.
        track: Losses over embeddings, and ce, to evaluate on the first 8 training batches after
            each epoch. They do not train. The run then embeds all training images.
        track_flags: track: arguments, LOSS/ARGUMENT=VALUE. Default: the defaults of the losses.
        objective: ce: alternating fits the classifier before each epoch, on all training images and
            with weight_decay, and does not change it in the epoch. Default: train both together.
        classifier_steps: objective: largest number of iterations of a fit.
        center_weight: center: weight of the loss next to the cross-entropy.
        classifier: pce: take p from a classifier of the embeddings. A cross-entropy trains the
            classifier without changing the embedding. Default: p from the scores of spce.
        classifier_factor: classifier: factor on the learning rate of the classifier.
        proxies: Arguments of `keras_dml.layers.ProxyHead` that are set.
        proxies_factor: losses over proxies: factor on the learning rate of the proxies. Default: 1.
        proxies_merging: losses with several proxies per class: weight of the regularizer that
            merges proxies that are not needed (SoftTriple: 0.2). Default: 0.
        mining: losses over pairs: strategies that select the pairs, one after the other.
            easy_positive,semi_hard are easy positives and semi-hard negatives. Default: all pairs
            (triplet: see --triplets, too).
        memory: Arguments of `keras_dml.models.CrossBatchMemory` that are set. `memory_size` has the
            name `size`.
        compatible_with: losses over pairs: folder of a finished run or of an index, whose model's
            embeddings stay searchable by this run's model. The loss also compares the first numbers
            of the embeddings with the old embeddings of the batch. The report has the scores of
            searches with both models.
        compatible_weight: compatible_with: weight of the comparison with the old embeddings.
        compatible_alignment: compatible_with: weight of the cosine distance between each image and
            its own old embedding.
        compatible_start: compatible_with=RUN: start from the old model's weights instead of
            --weights. The layers must be the old ones; only embedding_size may be larger.
        candidates: losses over pairs: images that a training image is compared with. batch: the
            batch. catalog: a catalog picture of the class of each image in the batch, in both
            directions. Needs a dataset with a catalog: groceries.
        candidate_backbone: candidates=catalog: backbone of a second encoder, which embeds the
            catalog pictures. --backbone then embeds the photographs; all other flags of the model
            apply to both encoders. Default: one encoder embeds both. With --texts: hub:NAME or
            hub:FOLDER of a text encoder, such as hub:all_minilm_l6_v2_en.
        candidate_weights: candidate_backbone: its weights, as for --weights. Default: the value of
            --weights; hub:NAME and FILE.keras include their weights.
        texts: CSV file with the columns class and text. The texts of the classes replace the
            catalog pictures.
        text_length: texts: number of tokens. Longer texts are cut off.
        statistics: The arguments of `keras_dml.models.StatisticsNetwork`.
        statistics_learning_rate: rankmi's statistics network: learning rate. Default:
            learning_rate.
    """

    group = LOSS

    loss: str = option("multi_similarity", text=_losses, common=True)
    given_for_loss: Mapping[str, Any] = flags_of(loss_flags.flags_of_losses)
    also: str | None = option(None, not_with=("levels", "matryoshka", "chunk_size", "classifier"))
    also_weight: float = option(1.0, lower_bound=0.0)
    also_flags: tuple[str, ...] = option((), needs="also")
    track: tuple[str, ...] = option(())
    track_flags: tuple[str, ...] = option(())
    objective: str | None = option(None, choices=("alternating",), not_with=("also",))
    classifier_steps: int = option(500, lower_bound=1, needs="objective")
    center_weight: float = option(0.1, lower_bound=0.0)
    classifier: bool = option(False, not_with=("matryoshka",))
    classifier_factor: float = option(1.0, lower_bound=0.0)
    proxies: Mapping[str, Any] = flags_of_registry(
        "keras_dml.layers.ProxyHead",
        LOSS,
        loss_flags.PROXIES,
        optional=True,
        entry="losses over proxies, some with another default",
    )
    proxies_factor: float | None = option(None, lower_bound=0.0)
    proxies_merging: float | None = option(None, lower_bound=0.0)
    mining: tuple[str, ...] | None = option(None, choices=words("keras_dml.mining.STRATEGIES"))
    memory: Mapping[str, Any] = flags_of_registry(
        "keras_dml.models.CrossBatchMemory",
        LOSS,
        loss_flags.MEMORY,
        optional=True,
        entry="losses over pairs",
    )
    compatible_with: str | None = option(
        None,
        convert=normal_path,
        not_with=(
            "levels", "matryoshka", "also", "objective", "classifier", "candidates=catalog",
            "crop_to_box", "strategy=multi_worker",
        ),
    )  # fmt: skip
    compatible_weight: float = option(1.0, lower_bound=0.0, needs="compatible_with")
    compatible_alignment: float = option(0.0, lower_bound=0.0, needs="compatible_with")
    compatible_start: bool = option(False, needs="compatible_with")
    candidates: str = option(
        "batch",
        choices=("batch", "catalog"),
        not_with=("levels", "cache_features", "also", "objective"),
    )
    candidate_backbone: str | None = option(None, needs="candidates=catalog")
    candidate_weights: str | None = option(None, needs="candidate_backbone", can_be_unset=False)
    texts: str | None = option(None, convert=normal_path, needs="candidate_backbone")
    text_length: int = option(64, lower_bound=1, needs="texts")
    statistics: Mapping[str, Any] = flags_of_registry(
        "keras_dml.models.StatisticsNetwork",
        LOSS,
        loss_flags.STATISTICS,
        entry="rankmi's statistics network",
    )
    statistics_learning_rate: float | None = option(None, lower_bound=0.0)

    @property
    def loss_arguments(self) -> dict[str, Any]:
        """The arguments that are set for the loss.

        Raises:
            UsageError: The loss does not exist, or does not take an argument.
        """
        return loss_flags.checked(self.loss, self.given_for_loss)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerOptions(Options):
    """The optimizer and its learning rates.

    Attributes:
        optimizer: Optimizer.
        learning_rate: Learning rate.
        of_optimizers, of_schedules: Arguments of all optimizers and schedules, with their defaults.
        weight_decay: Weight decay. The decay of adamw is decoupled. The others add it to the
            gradient.
        decayed: Variables that weight_decay changes: convolution and dense kernels, or all
            variables.
        pretrained_factor: Factor on the learning rate of the backbone.
        layer_decay: Transformers: factor on the learning rate from each block to the block before
            it, and from the first block to the embedding of the patches.
        schedule: Learning-rate schedule over the steps.
        global_clipnorm: Largest norm of the whole gradient. A longer gradient is scaled down.
            Default: no limit.
        ema: Momentum, such as 0.999, of an exponential moving average of the weights, which is
            evaluated and exported. Default: no average.
    """

    group = OPTIMIZER

    optimizer: str = option("sgd", choices=words(OPTIMIZERS), common=True)
    learning_rate: float = option(0.01, lower_bound=0.0, common=True)
    of_optimizers: Mapping[str, Any] = flags_of_registry(OPTIMIZERS, OPTIMIZER)
    weight_decay: float = option(0.0, lower_bound=0.0, common=True)
    decayed: str = option("kernels", choices=("kernels", "all"))
    pretrained_factor: float = option(1.0, lower_bound=0.0)
    layer_decay: float | None = option(None, lower_bound=0.0, upper_bound=1.0)
    schedule: str = option("warm_cosine", choices=words(SCHEDULES), common=True)
    of_schedules: Mapping[str, Any] = flags_of_registry(SCHEDULES, OPTIMIZER)
    global_clipnorm: float | None = option(None, lower_bound=0.0)
    ema: float | None = option(None, lower_bound=0.0, upper_bound=1.0)

    @property
    def optimizer_arguments(self) -> dict[str, Any]:
        """The arguments that are set for the chosen optimizer.

        Raises:
            UsageError: The optimizer does not take an argument.
        """
        return _for_the_choice(self, "optimizer", OPTIMIZERS, self.of_optimizers)

    @property
    def schedule_arguments(self) -> dict[str, Any]:
        """The arguments that are set for the chosen schedule.

        Raises:
            UsageError: The schedule does not take an argument.
        """
        return _for_the_choice(self, "schedule", SCHEDULES, self.of_schedules)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingOptions(Options):
    """The training loop, its evaluations, and the epoch whose model is kept.

    Attributes:
        epochs: Number of epochs.
        head_epochs: Train only the head for the first N epochs, then the whole model with a new
            optimizer and schedule. Default: train the whole model from the start.
        patience: With --fold: stop if MAP@R (cosine) on the held-out classes has not risen in N
            evaluations. Not with schedule=warm_cosine, which needs the last step. 0: never stop.
        cache_features: With freeze_backbone: compute the features of all images once. The head
            trains on them.
        cached_views: cache_features: number of augmented views of each image. Default: the image as
            in evaluation.
        cache_dir: cache_features: folder of features that runs share. Default: in the run's folder,
            during the training.
        chunk_size: Compute each batch in parts of N images per device, with the loss and the
            gradients of the whole batch: the memory of one part, and one more forward pass. Not for
            rankmi. Default: compute the batch at once.
        chunk_statistics: chunk_size: allow batch norm, with the statistics of each part.
        steps_per_epoch: Steps between checkpoints. Default: training images / batch_size.
        logical_devices: Number of devices that the CPU is split into, to try mirrored without GPUs.
        mixed_precision: Compute in half precision: float16 on a GPU, bfloat16 on a CPU.
        jit_compile: Compile the training step with XLA.
        raw_pixels: First evaluate the nearest neighbors of raw pixels, as a baseline.
        eval_every: Evaluate every N epochs, and after the last.
        keep: Epoch whose model is scored and exported. last. best_test: best R@1 on the test
            images, which flatters the score. best_fold: best R@1 (with patience: MAP@R) on the
            classes that --fold holds out. Default: last; with --fold, best_fold.
    """

    group = TRAINING

    epochs: int = option(30, lower_bound=1, common=True)
    head_epochs: int | None = option(None, lower_bound=1)
    patience: int = option(0, lower_bound=0, needs="fold")
    cache_features: bool = option(
        False, common=True, needs="freeze_backbone", not_with=("levels", "strategy=multi_worker")
    )
    cached_views: int | None = option(None, lower_bound=1, needs="cache_features")
    cache_dir: str | None = option(None, convert=normal_path, needs="cache_features")
    chunk_size: int | None = option(None, lower_bound=1)
    chunk_statistics: bool = option(False, needs="chunk_size")
    steps_per_epoch: int | None = option(None, lower_bound=1)
    strategy: str = option(
        "auto",
        text="Devices: auto, one, mirrored, or multi_worker.\n"
        "auto: the largest number of GPUs that divides the batch, otherwise one device. mirrored: "
        "all devices of this machine. multi_worker: all devices of the machines of TF_CONFIG or of "
        "a Slurm job.",
        choices=("auto", "one", "mirrored", "multi_worker"),
        common=True,
    )
    logical_devices: int = option(1, lower_bound=1, needs="strategy=mirrored")
    mixed_precision: bool = option(False, common=True)
    jit_compile: bool = option(False)
    raw_pixels: bool = option(False, EVALUATION)
    eval_every: int = option(1, EVALUATION, lower_bound=1, common=True)
    keep: str | None = option(
        None, EVALUATION, choices=("last", "best_test", "best_fold"), common=True
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoringOptions(Options):
    """The evaluation of embeddings.

    Attributes:
        recall_at: Values of K for recall at K.
        information: At the end, compute the entropies and the mutual information on every image,
            fit a linear probe and a statistics network, and print all of them. Default: without
            fits, on at most 4,096 images, and only on the report.
        neighbors: Search for the neighbors of the retrieval scores. auto: ScaNN, if it is
            installed, compares all images below 200,000, and uses its tree above. exact: NumPy
            compares all images. scann: ScaNN's tree. Next to each score by a tree is its exact
            value on a sample of queries.
        eval_batch_size: Images per batch of the evaluation, on each device.
        matryoshka: Increasing lengths such as 32,64,128: report the recall of each prefix of the
            embedding. In training, the last length is embedding_size, and the loss is summed over
            the prefixes.
    """

    group = EVALUATION

    recall_at: tuple[str, ...] = option(("1", "2", "4", "8"), common=True)
    information: bool = option(False)
    neighbors: str = option("auto", choices=words("keras_dml._common.types.NEIGHBORS"))
    eval_batch_size: int = option(64, lower_bound=1)
    matryoshka: tuple[str, ...] | None = option(None, not_with=("levels",))


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationOptions(ScoringOptions, CodeOptions, ImageSizeOptions, BadImageOptions):
    """The options of a run that the evaluation of a model needs."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputOptions(Options):
    """The output of a run, and the processes that train.

    Attributes:
        output_dir: Output folder. Default: runs/RECIPE-seedSEED.
        refit: After evaluation, retrain on all classes and save the model to `refit/`. Also for a
            finished run.
        measured_in: class_split=every_class: folder of a finished run with the same settings, whose
            scores the report and the model card quote. --refit sets it.
        log_to: mlflow:URI or wandb:PROJECT: also send the flags, and the scores of each
            evaluation, to MLflow or Weights & Biases (extra mlflow or wandb). Flag files cannot set
            it.
        engine: local: train in this process. ray: train with workers on the Ray cluster of
            RAY_ADDRESS, or on this machine. Ray restarts the workers after a failure.
        workers: Number of workers for --engine=ray. Default: one for each machine.
        deterministic: Give bit-identical results in every run. Needs the same number of threads on
            the same kind of machine, and is slower.
        seed: Random seed.
    """

    group = RUN

    output_dir: str | None = option(None, common=True, recorded=False)
    refit: bool = option(
        False,
        common=True,
        recorded=False,
        not_with=("class_split=every_class", "strategy=multi_worker"),
    )
    measured_in: str | None = option(
        None, convert=normal_path, needs="class_split=every_class", recorded=False
    )
    log_to: str | None = option(
        None, convert=_normal_tracker, command_line_only=True, recorded=False
    )
    engine: str = option("local", choices=("local", "ray"), recorded=False)
    workers: int | None = option(None, lower_bound=1, needs="engine=ray", recorded=False)
    deterministic: bool = option(False, common=True)
    seed: int = option(0, lower_bound=0, upper_bound=2**32 - 1, common=True)


# Fields come in the order of the groups from the last of these bases to the first. `flags.txt` has
# the same order.
@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions(
    OutputOptions,
    ScoringOptions,
    TrainingOptions,
    OptimizerOptions,
    LossOptions,
    ModelOptions,
    SamplingOptions,
    AugmentationOptions,
    BadImageOptions,
):
    """The options of a run."""

    command = "experiments.run"
    intro = """Train an embedding model, evaluate it on unseen classes, and write a report and a
SavedModel.

  keras-dml run --flagfile=RECIPE.flags [--flag=value ...]

keras-dml recipes lists the recipes. Flags on the command line override the recipe. --noNAME turns a
switch off, and --NAME=none unsets a value. After a kill, the same command resumes the run."""

    @property
    def name(self) -> str:
        """Name of the run: its recipe's or its dataset's."""
        return self.recipe or self.dataset or "run"

    @property
    def folder(self) -> pathlib.Path:
        """Folder of the run."""
        return pathlib.Path(
            os.path.expanduser(self.output_dir or f"runs/{self.name}-seed{self.seed}")
        )


def given_for_run(options: Options, left_out: Collection[str] = ()) -> list[str]:
    """Return the flags of a run that are set, except its folder, as words of a command line.

    Args:
        options: Options with the flags of a run.
        left_out: Further names to leave out.
    """
    not_passed_on = {
        "output_dir",
        *left_out,
        *(field.name for field in dataclasses.fields(Options)),
    }
    return given_words(
        options, [name for name in declarations(RunOptions) if name not in not_passed_on]
    )
