"""The options of a run, in groups that other commands share."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from experiments.options import loss_flags
from experiments.options.declaration import Flag, Options, flags_of, option
from experiments.options.registries import (
    arguments,
    flags_of_entries,
    import_attribute,
    summary,
    taken_arguments,
    words,
)
from experiments.options.values import normal_fold, normal_path
from pipelines.max_pixels import MOST_PIXELS

__all__ = [
    "AugmentationOptions",
    "BadImageOptions",
    "DataOptions",
    "ImageLimitOptions",
    "ImageSizeOptions",
    "RunOptions",
    "SamplingOptions",
    "ScoringOptions",
    "SeedOptions",
]

DATA, IMAGES, SAMPLING, MODEL = "Data", "Images", "Sampling", "Model"
LOSS, OPTIMIZER, TRAINING = loss_flags.GROUP, "Optimizer", "Training"
EVALUATION, RUN = "Evaluation", "Run"
SAMPLERS = "pipelines.samplers.SAMPLERS"
OPTIMIZERS, SCHEDULES = "keras_dml.optimizers.OPTIMIZERS", "keras_dml.optimizers.SCHEDULES"


def _datasets() -> str:
    names = words("pipelines.datasets.registry.NAMES")()
    prefix = import_attribute("pipelines.datasets.registry.PREFIX")
    lines = [f"Dataset: {', '.join(names)}, or {prefix}NAME."]
    for name in names:
        load_split = import_attribute(f"pipelines.datasets.{name}.load_split")
        lines.append(f"{name}: {summary(load_split)}")
    lines.append(f"{prefix}NAME or {prefix}NAME:CONFIG: a dataset of tensorflow-datasets.")
    return "\n".join(lines)


def _backbones() -> str:
    own = words("keras_dml.models.backbones.BACKBONES")()
    return "\n".join(
        [
            f"Backbone: {', '.join(own)}, or any keras.applications model.",
            "hub:NAME: a KerasHub preset (hub:dinov2_base), or a folder of Keras, Hugging Face, or "
            "timm (hub:FOLDER), which includes its weights.",
            "FILE.keras: a saved model from images in 0..255 to maps, tokens, or vectors.",
        ]
    )


def _poolings() -> str:
    poolings = import_attribute("keras_dml.models.pooling.POOLINGS")
    lines = ["Pooling of the backbone's maps or tokens to one vector."]
    return "\n".join([*lines, *(f"{name}: {summary(make)}" for name, make in poolings.items())])


def _mining() -> str:
    strategies = ", ".join(words("keras_dml.mining.STRATEGIES")())
    return (
        f"losses over pairs: strategies that select the pairs, one after the other: {strategies}. "
        "easy_positive,semi_hard are easy positives and semi-hard negatives. Default: all pairs "
        "(triplet: see --triplets, too)."
    )


def _losses() -> str:
    return f"Loss: {', '.join(loss_flags.loss_names())}."


def _entry_flags(registry: str, group: str) -> tuple[Flag, ...]:
    """Return the flags of a registry's entries, with the defaults of their signatures."""
    entries = import_attribute(registry)
    taken = {name: {each.name: each for each in arguments(entries[name])} for name in entries}
    return flags_of_entries(taken, group, optional=False)


def _sampler_flags() -> tuple[Flag, ...]:
    return tuple(
        dataclasses.replace(flag, common=True) for flag in _entry_flags(SAMPLERS, SAMPLING)
    )


def _optimizer_flags() -> tuple[Flag, ...]:
    return _entry_flags(OPTIMIZERS, OPTIMIZER)


def _schedule_flags() -> tuple[Flag, ...]:
    return _entry_flags(SCHEDULES, OPTIMIZER)


def _for_the_choice(
    options: Options, choice: str, registry: str, values: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the set values that the chosen entry of a registry takes.

    Raises:
        UsageError: The entry does not take a value.
    """
    given = {name: value for name, value in values.items() if name in options.given}
    chosen_on_line = choice in options.on_command_line
    overridable = set(given) - options.on_command_line if chosen_on_line else set()
    entries = import_attribute(registry)
    return taken_arguments(choice, entries, getattr(options, choice), given, overridable)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageLimitOptions(Options):
    """The limit of an image file."""

    max_pixels: int = option(
        MOST_PIXELS,
        DATA,
        "Largest number of pixels of an image file. A larger image is never decoded: a file of "
        "17 KB can need 5 GB.",
        lower_bound=1,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataOptions(Options):
    """The images of a run."""

    dataset: str | None = option(None, DATA, _datasets, common=True)
    data_dir: str | None = option(
        None,
        DATA,
        "Folder with the dataset's files. Default for tfds: ~/tensorflow_datasets.",
        convert=normal_path,
        common=True,
    )
    train_classes: int | None = option(
        None,
        DATA,
        "Number of training classes, from the first. The next classes test. Default: the dataset's "
        "split; for a folder, half of the classes. tfds: combines the dataset's splits first.",
        lower_bound=1,
    )
    test_classes: int | None = option(
        None, DATA, "Number of test classes. Default: all other classes.", lower_bound=1
    )
    class_split: str = option(
        "first_classes",
        DATA,
        "Selection of the training classes. random_classes: random classes. within_classes: half "
        "of the images of each class train, and the others test. every_class: all images train, "
        "without a test. Not for sop, inshop, and digits.",
        choices=words("pipelines.split.SPLITS"),
    )
    split_seed: int = option(
        0, DATA, "Seed of the random selection of --class_split, independent of --seed.",
        lower_bound=0,
    )  # fmt: skip
    fold: str | None = option(
        None,
        DATA,
        "K/N: divide the training classes into N parts, test on part K, and train on the others. "
        "The test classes stay unseen. experiments.study --search uses folds.",
        convert=normal_fold,
    )
    crop_to_box: bool = option(
        False,
        DATA,
        "cub, cars: crop every image to its bounding box. Most papers do not.",
    )

    @property
    def keeps_nothing_back(self) -> bool:
        """Whether every image trains, so that no image tests."""
        return self.class_split == "every_class" and self.fold is None


@dataclasses.dataclass(frozen=True, kw_only=True)
class BadImageOptions(DataOptions, ImageLimitOptions):
    """The images of a run, and the treatment of files that are not images."""

    skip_bad_images: bool = option(
        False,
        DATA,
        "Decode every image first, and leave out and list the files that are not images.",
        common=True,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageSizeOptions(ImageLimitOptions):
    """Preprocessing of an image for evaluation."""

    image_size: int = option(
        224, IMAGES, "Height and width of the model's input.", lower_bound=8, common=True
    )
    resize: str | None = option(
        None,
        IMAGES,
        "Size before the crop: N (shortest side) or HxW. Default: shortest side = image_size.",
        common=True,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class AugmentationOptions(ImageSizeOptions):
    """Augmentation of a training image."""

    training_size: int | None = option(
        None,
        IMAGES,
        "Height and width of a training image. A smaller size than image_size trains faster. "
        "Default: image_size.",
        lower_bound=8,
    )
    crop: str = option(
        "area",
        IMAGES,
        "Crop of a training image. area: random area and aspect. fixed: training_size pixels at a "
        "random place. none: the center.",
        choices=words("pipelines.images.transforms.CROPS"),
    )
    crop_area: tuple[str, ...] = option(
        ("0.16", "1"), IMAGES, "Lowest and highest fraction of the image in an area crop."
    )
    crop_aspect: tuple[str, ...] = option(
        ("0.75", "1.3333"), IMAGES, "Lowest and highest ratio of width to height of an area crop."
    )
    flip: bool = option(True, IMAGES, "Mirror half of the training images.")
    jitter: tuple[str, ...] = option(
        ("0", "0", "0", "0"),
        IMAGES,
        "Strengths of the changes of brightness, contrast, saturation, and hue.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingOptions(Options):
    """The images of a batch.

    Attributes:
        of_samplers: Arguments of all samplers, with their defaults.
    """

    sampler: str = option(
        "random",
        SAMPLING,
        "Sampler of the training batches.",
        choices=words(SAMPLERS),
        common=True,
    )
    batch_size: int = option(
        128, SAMPLING, "Images of a batch, over all devices.", lower_bound=1, common=True
    )
    of_samplers: Mapping[str, Any] = flags_of(_sampler_flags)

    @property
    def sampler_arguments(self) -> dict[str, Any]:
        """The arguments that are set for the chosen sampler.

        Raises:
            UsageError: The sampler does not take an argument.
        """
        return _for_the_choice(self, "sampler", SAMPLERS, self.of_samplers)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CodeOptions(Options):
    """Third-party code that a saved model needs. Flag files cannot set these options."""

    import_modules: tuple[str, ...] = option(
        (),
        MODEL,
        "Python modules to import first, which register the custom classes of a .keras file. Flag "
        "files cannot set it.",
        command_line_only=True,
    )
    trust_code: bool = option(
        False,
        MODEL,
        "Run the Python code in the Lambda layers of a .keras file. Only for files that you trust. "
        "Flag files cannot set it.",
        command_line_only=True,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class BackboneOptions(CodeOptions):
    """The backbone and its pooling."""

    backbone: str = option("resnet50", MODEL, _backbones, common=True)
    filters: tuple[str, ...] | None = option(
        None,
        MODEL,
        "small_convnet: widths of its stages, with two convolutions each. Default: 32,64,128.",
    )
    weights: str = option(
        "imagenet",
        MODEL,
        "Weights of the backbone: imagenet, none, packaged, or a file.\n"
        "imagenet: of keras.applications, or of torchvision for resnet50_v1_5. packaged: ImageNet "
        "weights of efficientnet_lite0 from an installed package. A file: weights of the backbone; "
        "for bn_inception, resnet50_v1_5, and efficientnet_lite0 also the public PyTorch "
        "checkpoint, .pth or .npz. hub:NAME and FILE.keras include their weights; none: random "
        "weights for hub:NAME.",
        common=True,
    )
    pooling: str = option(
        "average", MODEL, _poolings, choices=words("keras_dml.models.pooling.POOLINGS")
    )
    levels: tuple[str, ...] | None = option(
        None,
        MODEL,
        "Layers of the backbone, each with its pooling and projection. The embedding concatenates "
        "them, and losses over pairs are summed over them. Default: the last layer.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelOptions(BackboneOptions):
    """The embedding model."""

    frozen_batch_norm: bool | None = option(
        None,
        MODEL,
        "Use the stored statistics of the backbone's batch norm in training. Default: true with "
        "trained weights.",
    )
    freeze_backbone: bool = option(
        False, MODEL, "Freeze the backbone and train only the head.", common=True
    )
    lora_rank: int | None = option(
        None,
        MODEL,
        "Train only low-rank additions (LoRA) of this rank to the queries and values of the "
        "backbone's attention. Exported models contain the merged weights. Default: no additions.",
        lower_bound=1,
    )
    lora_layers: tuple[str, ...] | None = option(
        None,
        MODEL,
        "lora_rank: names of the layers with additions, instead of the queries and values.",
    )
    rematerialize: bool = option(
        False,
        MODEL,
        "Recompute the activations in a transformer's blocks in the backward pass: less memory, "
        "about a third more time.",
    )
    feature_batch_norm: bool = option(
        False, MODEL, "Apply batch norm without scale and offset to the pooled features."
    )
    embedding_size: int | None = option(
        None,
        MODEL,
        "Size of the embedding. Default: no projection, the pooled features are the embedding.",
        lower_bound=1,
        common=True,
    )
    dropout: float = option(
        0.0, MODEL, "Dropout before the classifier (ce, center).", lower_bound=0.0
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossOptions(Options):
    """The loss.

    Attributes:
        given_for_loss: Loss arguments that are set, including arguments that the loss refuses.
        proxies: Arguments of `keras_dml.models.ProxyHead` that are set.
        memory: Arguments of `keras_dml.models.CrossBatchMemory` that are set. `memory_size` has the
            name `size`.
        statistics: The arguments of `keras_dml.models.StatisticsNetwork`.
    """

    loss: str = option("multi_similarity", LOSS, _losses, common=True)
    given_for_loss: Mapping[str, Any] = flags_of(loss_flags.flags_of_losses)
    center_weight: float = option(
        0.1,
        LOSS,
        "center: weight of the loss next to the cross-entropy.",
        lower_bound=0.0,
    )
    classifier: bool = option(
        False,
        LOSS,
        "pce: take p from a classifier of the embeddings. A cross-entropy trains the classifier "
        "without changing the embedding. Default: p from the scores of spce.",
    )
    classifier_factor: float = option(
        1.0,
        LOSS,
        "classifier: factor on the learning rate of the classifier.",
        lower_bound=0.0,
    )
    proxies: Mapping[str, Any] = flags_of(loss_flags.flags_of_proxies, prefix=loss_flags.PROXIES)
    proxies_factor: float | None = option(
        None,
        LOSS,
        "losses over proxies: factor on the learning rate of the proxies. Default: 1.",
        lower_bound=0.0,
    )
    proxies_merging: float | None = option(
        None,
        LOSS,
        "losses with several proxies per class: weight of the regularizer that merges proxies that "
        "are not needed (SoftTriple: 0.2). Default: 0.",
        lower_bound=0.0,
    )
    mining: tuple[str, ...] | None = option(
        None,
        LOSS,
        _mining,
        former="miners",
    )
    memory: Mapping[str, Any] = flags_of(loss_flags.flags_of_memory, prefix=loss_flags.MEMORY)
    statistics: Mapping[str, Any] = flags_of(
        loss_flags.flags_of_statistics, prefix=loss_flags.STATISTICS
    )
    statistics_learning_rate: float | None = option(
        None,
        LOSS,
        "rankmi's statistics network: learning rate. Default: learning_rate.",
        lower_bound=0.0,
    )

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
        of_optimizers, of_schedules: Arguments of all optimizers and schedules, with their defaults.
    """

    optimizer: str = option("sgd", OPTIMIZER, "Optimizer.", choices=words(OPTIMIZERS), common=True)
    learning_rate: float = option(0.01, OPTIMIZER, "Learning rate.", lower_bound=0.0, common=True)
    of_optimizers: Mapping[str, Any] = flags_of(_optimizer_flags)
    weight_decay: float = option(
        0.0,
        OPTIMIZER,
        "Weight decay. The decay of adamw is decoupled. The others add it to the gradient.",
        lower_bound=0.0,
        common=True,
    )
    decayed: str = option(
        "kernels",
        OPTIMIZER,
        "Variables that weight_decay changes: convolution and dense kernels, or all variables.",
        choices=("kernels", "all"),
    )
    pretrained_factor: float = option(
        1.0,
        OPTIMIZER,
        "Factor on the learning rate of the backbone.",
        lower_bound=0.0,
    )
    layer_decay: float | None = option(
        None,
        OPTIMIZER,
        "Transformers: factor on the learning rate from each block to the block before it, and "
        "from the first block to the embedding of the patches.",
        lower_bound=0.0,
        upper_bound=1.0,
    )
    schedule: str = option(
        "warm_cosine",
        OPTIMIZER,
        "Learning-rate schedule over the steps.",
        choices=words(SCHEDULES),
        common=True,
    )
    of_schedules: Mapping[str, Any] = flags_of(_schedule_flags)
    global_clipnorm: float | None = option(
        None,
        OPTIMIZER,
        "Largest norm of the whole gradient. A longer gradient is scaled down. Default: no limit.",
        lower_bound=0.0,
    )
    ema: float | None = option(
        None,
        OPTIMIZER,
        "Momentum, such as 0.999, of an exponential moving average of the weights, which is "
        "evaluated and exported. Default: no average.",
        lower_bound=0.0,
        upper_bound=1.0,
    )

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
    """The training loop."""

    epochs: int = option(30, TRAINING, "Number of epochs.", lower_bound=1, common=True)
    head_epochs: int | None = option(
        None,
        TRAINING,
        "Train only the head for the first N epochs, then the whole model with a new optimizer and "
        "schedule. Default: train the whole model from the start.",
        lower_bound=1,
    )
    patience: int = option(
        0,
        TRAINING,
        "With --fold: stop if MAP@R (cosine) on the held-out classes has not risen in N "
        "evaluations. Not with schedule=warm_cosine, which needs the last step. 0: never stop.",
        lower_bound=0,
    )
    cache_features: bool = option(
        False,
        TRAINING,
        "With freeze_backbone: compute the features of all images once. The head trains on them.",
        common=True,
    )
    cached_views: int | None = option(
        None,
        TRAINING,
        "cache_features: number of augmented views of each image. Default: the image as in "
        "evaluation.",
        lower_bound=1,
    )
    cache_dir: str | None = option(
        None,
        TRAINING,
        "cache_features: folder of features that runs share. Default: in the run's folder, during "
        "the training.",
        convert=normal_path,
    )
    chunk_size: int | None = option(
        None,
        TRAINING,
        "Compute each batch in parts of N images per device, with the loss and the gradients of "
        "the whole batch: the memory of one part, and one more forward pass. Not for rankmi. "
        "Default: compute the batch at once.",
        lower_bound=1,
    )
    chunk_statistics: bool = option(
        False,
        TRAINING,
        "chunk_size: allow batch norm, with the statistics of each part.",
    )
    steps_per_epoch: int | None = option(
        None,
        TRAINING,
        "Steps between checkpoints. Default: training images / batch_size.",
        lower_bound=1,
    )
    strategy: str = option(
        "one",
        TRAINING,
        "Devices: one, mirrored, auto, or multi_worker.\n"
        "mirrored: all devices of this machine. auto: mirrored with a GPU, otherwise one. "
        "multi_worker: all devices of the machines of TF_CONFIG or of a Slurm job.",
        choices=("one", "auto", "mirrored", "multi_worker"),
        common=True,
    )
    logical_devices: int = option(
        1,
        TRAINING,
        "Number of devices that the CPU is split into, to try mirrored without GPUs.",
        lower_bound=1,
    )
    mixed_precision: bool = option(
        False,
        TRAINING,
        "Compute in half precision: float16 on a GPU, bfloat16 on a CPU.",
        common=True,
    )
    jit_compile: bool = option(False, TRAINING, "Compile the training step with XLA.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class IntervalOptions(Options):
    """The evaluations of a training, and the epoch whose model is kept."""

    eval_every: int = option(
        1,
        EVALUATION,
        "Evaluate every N epochs, and after the last.",
        lower_bound=1,
        common=True,
    )
    keep: str | None = option(
        None,
        EVALUATION,
        "Epoch whose model is scored and exported. last. best_test: best R@1 on the test images, "
        "which flatters the score. best_fold: best R@1 (with patience: MAP@R) on the classes that "
        "--fold holds out. Default: last; with --fold, best_fold.",
        choices=("last", "best_test", "best_fold"),
        common=True,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoringOptions(Options):
    """The evaluation of embeddings."""

    recall_at: tuple[str, ...] = option(
        ("1", "2", "4", "8"), EVALUATION, "Values of K for recall at K.", common=True
    )
    information: bool = option(
        False,
        EVALUATION,
        "At the end, compute the entropies and the mutual information on every image, and fit a "
        "linear probe and a statistics network. Default: without fits, on at most 4,096 images.",
    )
    eval_batch_size: int = option(
        64, EVALUATION, "Images per batch of the evaluation, on each device.", lower_bound=1
    )
    matryoshka: tuple[str, ...] | None = option(
        None,
        EVALUATION,
        "Increasing lengths such as 32,64,128: report the recall of each prefix of the embedding. "
        "In training, the last length is embedding_size, and the loss is summed over the prefixes.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationOptions(ScoringOptions, CodeOptions, ImageSizeOptions, BadImageOptions):
    """The options of a run that the evaluation of a model needs."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PixelOptions(Options):
    """The baseline of raw pixels."""

    raw_pixels: bool = option(
        False, EVALUATION, "First evaluate the nearest neighbors of raw pixels, as a baseline."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputOptions(Options):
    """The output of a run."""

    output_dir: str | None = option(
        None, RUN, "Output folder. Default: runs/RECIPE-seedSEED.", common=True
    )
    refit: bool = option(
        False,
        RUN,
        "After evaluation, retrain on all classes and save the model to `refit/`. Also for a "
        "finished run.",
        common=True,
    )
    measured_in: str | None = option(
        None,
        RUN,
        "class_split=every_class: folder of a finished run with the same settings, whose scores "
        "the report and the model card quote. --refit sets it.",
        convert=normal_path,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineOptions(Options):
    """The processes that train."""

    engine: str = option(
        "local",
        RUN,
        "local: train in this process. ray: train with workers on the Ray cluster of RAY_ADDRESS, "
        "or on this machine. Ray restarts the workers after a failure.",
        choices=("local", "ray"),
    )
    workers: int | None = option(
        None,
        RUN,
        "Number of workers for --engine=ray. Default: one for each machine.",
        lower_bound=1,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeedOptions(Options):
    """The seed."""

    seed: int = option(0, RUN, "Random seed.", lower_bound=0, upper_bound=2**32 - 1, common=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RepetitionOptions(Options):
    """Repeatability."""

    deterministic: bool = option(
        False,
        RUN,
        "Give bit-identical results in every run. Needs the same number of threads on the same "
        "kind of machine, and is slower.",
        common=True,
    )


# Fields come in the order of the groups from the last of these bases to the first. `flags.txt` has
# the same order.
@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions(
    RepetitionOptions,
    SeedOptions,
    EngineOptions,
    OutputOptions,
    PixelOptions,
    ScoringOptions,
    IntervalOptions,
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

  python -m experiments.run --flagfile=RECIPE.flags [--flag=value ...]

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
