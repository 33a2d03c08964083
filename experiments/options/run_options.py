"""The options of a run, in groups that other commands take too."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import textwrap
from collections.abc import Mapping
from typing import Any

from experiments import recipes
from experiments.options import catalog, loss_flags, registries
from experiments.options.declaration import Options, flags_of, option
from experiments.options.values import normal_fold, normal_path

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
_POOLINGS = registries.words("keras_dml.models.pooling", "POOLINGS")
LOSS, OPTIMIZER, TRAINING = loss_flags.GROUP, "Optimizer", "Training"
EVALUATION, RUN = "Evaluation", "Run"


def _datasets() -> str:
    package = "pipelines.datasets"
    names = registries.words(f"{package}.registry", "NAMES")
    lines = [f"{name}: {registries.summary(f'{package}.{name}', 'load_split')}" for name in names]
    (prefix,) = registries.words(f"{package}.tfds", "PREFIX")
    lines.append(f"{prefix}NAME or {prefix}NAME:CONFIG: one of tensorflow-datasets.")
    return "\n".join(lines)


def _backbones() -> str:
    own = registries.words("keras_dml.models.backbones", "BACKBONES")
    return "\n".join(
        [
            f"{', '.join(own)}, or any keras.applications model.",
            "hub:NAME: a KerasHub preset (hub:dinov2_base), or a folder of Keras, Hugging Face or "
            "timm (hub:FOLDER), with its own weights.",
            "FILE.keras: any saved model from images in 0..255 to maps, tokens or vectors.",
        ]
    )


def _poolings() -> str:
    lines = ["From the backbone's maps or tokens to one vector."]
    for name in _POOLINGS:
        said = registries.summary("keras_dml.models.pooling", f"{name}_pooling")
        lines.append(f"{name}: {said}")
    return "\n".join(lines)


def _losses() -> str:
    return f"{' | '.join(catalog.names())}."


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageLimitOptions(Options):
    """What an image may cost."""

    max_pixels: int = option(
        registries.number("pipelines.images.limits", "MOST_PIXELS"),
        DATA,
        "How many pixels an image file may have. One whose header announces more is never decoded: "
        "a file of 17 KB can take 5 GB.",
        lower_bound=1,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataOptions(Options):
    """Which images there are."""

    dataset: str | None = option(None, DATA, _datasets)
    data_dir: str | None = option(
        None,
        DATA,
        "Folder that holds the dataset's files. tfds: default ~/tensorflow_datasets.",
        convert=normal_path,
    )
    train_classes: int | None = option(
        None,
        DATA,
        "The first N classes train, those behind them test. Default: the dataset's own split; "
        "for a folder, half of the classes. tfds: pools the set's own splits first.",
        lower_bound=1,
    )
    test_classes: int | None = option(
        None, DATA, "How many classes test. Default: all that do not train.", lower_bound=1
    )
    class_split: str = option(
        "first_classes",
        DATA,
        "Which classes train. random_classes: drawn at random; within_classes: half of the images "
        "of each class train, the others test; every_class: all images train, and nothing is "
        "measured. Not of sop, inshop and digits.",
        choices=registries.words("pipelines.split", "SPLITS"),
    )
    split_seed: int = option(
        0, DATA, "Of what --class_split draws: the same whatever --seed is.", lower_bound=0
    )
    fold: str | None = option(
        None,
        DATA,
        "K/N: leave the test classes alone, train on the training classes but for part K of N, and "
        "measure on that part. For choices that no test class may see (experiments.study --search "
        "makes them).",
        convert=normal_fold,
    )
    crop_to_box: bool = option(
        False,
        DATA,
        "cub, cars: cut every image down to its bounding box first; most papers do not.",
    )

    @property
    def keeps_nothing_back(self) -> bool:
        """Whether every image trains, so that nothing is left to measure on."""
        return self.class_split == "every_class" and self.fold is None


@dataclasses.dataclass(frozen=True, kw_only=True)
class BadImageOptions(DataOptions, ImageLimitOptions):
    """Which images there are, and what becomes of files that are none."""

    skip_bad_images: bool = option(
        False,
        DATA,
        "First try to decode every image; leave out and list the files that are no images.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageSizeOptions(ImageLimitOptions):
    """How an evaluation sees an image."""

    image_size: int = option(224, IMAGES, "Height and width that the model sees.", lower_bound=8)
    resize: str | None = option(
        None,
        IMAGES,
        "Before the crop: N (shortest side) or HxW (exactly). Default: shortest side = image_size.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class AugmentationOptions(ImageSizeOptions):
    """How a training sees an image."""

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
        "Training crop: area = random area and aspect; fixed = training_size pixels at a random "
        "place; none = the centre.",
        choices=("area", "fixed", "none"),
    )
    crop_area: tuple[str, ...] = option(
        ("0.16", "1"), IMAGES, "Share of the image that an area crop covers."
    )
    crop_aspect: tuple[str, ...] = option(
        ("0.75", "1.3333"), IMAGES, "Width over height of an area crop."
    )
    flip: bool = option(True, IMAGES, "Mirror half of the training images.")
    jitter: tuple[str, ...] = option(
        ("0", "0", "0", "0"),
        IMAGES,
        "Strength of brightness, contrast, saturation and hue changes.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingOptions(Options):
    """Which images make a batch."""

    sampler: str = option(
        "random",
        SAMPLING,
        "random = each image once an epoch; balanced = batch_size/images_per_class classes a "
        "batch.",
        choices=("random", "balanced"),
    )
    batch_size: int = option(128, SAMPLING, "Images in a batch, over all devices.", lower_bound=1)
    images_per_class: int = option(
        4, SAMPLING, "Images of each class in a balanced batch.", lower_bound=1
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class CodeOptions(Options):
    """Third-party code that a saved model needs. Flag files cannot set these options."""

    import_modules: tuple[str, ...] = option(
        (),
        MODEL,
        "Python modules to import first, which register the custom classes of a .keras file. Only "
        "on the command line: flag files cannot set it.",
        command_line_only=True,
    )
    trust_code: bool = option(
        False,
        MODEL,
        "Run the Python code in the Lambda layers of a .keras file: only for files you trust, and "
        "only on the command line.",
        command_line_only=True,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelOptions(CodeOptions):
    """From images to embeddings."""

    backbone: str = option("resnet50", MODEL, _backbones)
    filters: tuple[str, ...] | None = option(
        None,
        MODEL,
        "small_convnet: widths of its stages, two convolutions each. Default: 32,64,128.",
    )
    weights: str = option(
        "imagenet",
        MODEL,
        "imagenet (keras.applications, and torchvision's of resnet50_v1_5) | none | packaged "
        "(efficientnet_lite0: ImageNet weights from an installed package, no network) | a weights "
        "file of the backbone; bn_inception, resnet50_v1_5, efficientnet_lite0: also their public "
        "PyTorch checkpoint, .pth or .npz. hub:NAME and FILE.keras have their own; none: hub:NAME "
        "with random ones.",
    )
    frozen_batch_norm: bool | None = option(
        None,
        MODEL,
        "Backbone batch norm keeps its stored statistics in training. Default: with trained "
        "weights.",
    )
    freeze_backbone: bool = option(
        False, MODEL, "Train what lies behind the backbone alone; the backbone stays as it is."
    )
    lora_rank: int | None = option(
        None,
        MODEL,
        "Of the backbone train low-rank additions of this rank to its attention's queries and "
        "values alone; merged in all that is exported. Default: none.",
        lower_bound=1,
    )
    lora_layers: tuple[str, ...] | None = option(
        None,
        MODEL,
        "lora_rank: names of the layers that get them, in place of the attention's.",
    )
    rematerialize: bool = option(
        False,
        MODEL,
        "Compute what lies within a transformer's block anew in the backward pass: less memory, "
        "about a third more time.",
    )
    pooling: str = option(
        "average",
        MODEL,
        _poolings,
        choices=_POOLINGS,
    )
    feature_batch_norm: bool = option(
        False, MODEL, "Batch norm without scale and offset on the pooled features."
    )
    embedding_size: int | None = option(
        None,
        MODEL,
        "Size of a dense projection. Default: none, the pooled features are the embedding.",
        lower_bound=1,
    )
    levels: tuple[str, ...] | None = option(
        None,
        MODEL,
        "Layers of the backbone, each with a pooling and a projection of its own; the embedding "
        "is all of them in a row. Losses over pairs are summed over the levels. Default: the "
        "last layer.",
    )
    dropout: float = option(
        0.0, MODEL, "Dropout before the classifier (ce, center).", lower_bound=0.0
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossOptions(Options):
    """What is minimised.

    Attributes:
        given_for_loss: what was given for the loss alone, whether it takes it or not.
        proxies: arguments of `keras_dml.models.ProxyHead` that were given.
        memory: arguments of `keras_dml.models.CrossBatchMemory` that were given, its memory_size by
            the name size.
        statistics: the arguments of `keras_dml.models.StatisticsNetwork`.
    """

    loss: str = option("multi_similarity", LOSS, _losses)
    given_for_loss: Mapping[str, Any] = flags_of(loss_flags.flags_of_losses)
    center_weight: float = option(
        0.1,
        LOSS,
        "center: its weight beside the cross-entropy that it is trained with.",
        lower_bound=0.0,
    )
    classifier: bool = option(
        False,
        LOSS,
        "pce: take p from a classifier of the embeddings, which a cross-entropy trains without "
        "changing the embedding. Default: p from the scores of spce.",
    )
    classifier_factor: float = option(
        1.0,
        LOSS,
        "classifier: its learning rate, as a factor on learning_rate.",
        lower_bound=0.0,
    )
    proxies: Mapping[str, Any] = flags_of(loss_flags.flags_of_proxies, prefix=loss_flags.PROXIES)
    proxies_factor: float | None = option(
        None,
        LOSS,
        "losses over proxies: their learning rate, as a factor on learning_rate. Default: 1.",
        lower_bound=0.0,
    )
    proxies_merging: float | None = option(
        None,
        LOSS,
        "losses over several proxies a class: weight of the regulariser that merges those that are "
        "not needed (SoftTriple: 0.2). Default: 0.",
        lower_bound=0.0,
    )
    miners: tuple[str, ...] | None = option(
        None,
        LOSS,
        "losses over pairs: which pairs they see, one strategy after the other: "
        f"{', '.join(registries.words('keras_dml.mining', 'STRATEGIES'))}. easy_positive,semi_hard "
        "are easy positives against semi-hard negatives. Default: all pairs (triplet: --mining).",
    )
    memory: Mapping[str, Any] = flags_of(loss_flags.flags_of_memory, prefix=loss_flags.MEMORY)
    statistics: Mapping[str, Any] = flags_of(
        loss_flags.flags_of_statistics, prefix=loss_flags.STATISTICS
    )
    statistics_learning_rate: float | None = option(
        None,
        LOSS,
        "rankmi's statistics network: its learning rate. Default: learning_rate.",
        lower_bound=0.0,
    )

    @property
    def loss_arguments(self) -> dict[str, Any]:
        """What was given for the loss alone.

        Raises:
            UsageError: no such loss, or an argument that it does not take.
        """
        return loss_flags.checked(self.loss, self.given_for_loss)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerOptions(Options):
    """How it is minimised."""

    optimizer: str = option(
        "sgd",
        OPTIMIZER,
        "Optimizer.",
        choices=registries.words("keras_dml.optimizers", "OPTIMIZERS"),
    )
    learning_rate: float = option(0.01, OPTIMIZER, "Learning rate.", lower_bound=0.0)
    momentum: float = option(
        0.0, OPTIMIZER, "sgd, rmsprop: momentum.", lower_bound=0.0, upper_bound=1.0
    )
    nesterov: bool = option(False, OPTIMIZER, "sgd: Nesterov momentum.")
    velocity: str = option(
        "keras",
        OPTIMIZER,
        "sgd: form of the momentum. keras: each past gradient keeps the learning rate of its step; "
        "torch: the current learning rate applies to all, as in PyTorch.",
        choices=registries.words("keras_dml.optimizers", "VELOCITIES"),
    )
    weight_decay: float = option(
        0.0,
        OPTIMIZER,
        "Weight decay: adamw's is decoupled, the others' coupled (added to the gradient).",
        lower_bound=0.0,
    )
    decayed: str = option(
        "kernels",
        OPTIMIZER,
        "What weight_decay acts on: convolution and dense kernels, or every variable.",
        choices=("kernels", "all"),
    )
    pretrained_factor: float = option(
        1.0,
        OPTIMIZER,
        "Learning rate of the backbone, as a multiple of the new layers'.",
        lower_bound=0.0,
    )
    layer_decay: float | None = option(
        None,
        OPTIMIZER,
        "Of a transformer's backbone: each block's learning rate is this multiple of that of the "
        "block behind it, and the embedding of the patches comes before the first.",
        lower_bound=0.0,
        upper_bound=1.0,
    )
    schedule: str = option(
        "warm_cosine",
        OPTIMIZER,
        "Learning rate over the steps.",
        choices=registries.words("experiments.training.optimizer", "SCHEDULES"),
    )
    warmup_steps: int = option(
        100, OPTIMIZER, "warm_cosine: steps of linear warm-up.", lower_bound=1
    )
    decay_steps: int | None = option(
        None, OPTIMIZER, "step: steps between two decays of the learning rate.", lower_bound=1
    )
    decay_factor: float = option(
        0.1, OPTIMIZER, "step: what the learning rate is multiplied by.", lower_bound=0.0
    )
    global_clipnorm: float | None = option(
        None,
        OPTIMIZER,
        "Scale the whole gradient down to this length where it is longer. Default: no clipping.",
        lower_bound=0.0,
    )
    ema: float | None = option(
        None,
        OPTIMIZER,
        "Evaluate and export an exponential moving average of the weights of this momentum, such "
        "as 0.999. Default: the weights themselves.",
        lower_bound=0.0,
        upper_bound=1.0,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingOptions(Options):
    """How long, and on what."""

    epochs: int = option(30, TRAINING, "Epochs.", lower_bound=1)
    head_epochs: int | None = option(
        None,
        TRAINING,
        "In the first N epochs train what lies behind the backbone alone, then all of it with a "
        "fresh optimizer and schedule. Default: all from the start.",
        lower_bound=1,
    )
    patience: int = option(
        0,
        TRAINING,
        "With --fold: stop once MAP@R (cosine) on the held-out classes has not risen in N "
        "evaluations. Not with schedule=warm_cosine, which counts on the last step. 0: never.",
        lower_bound=0,
    )
    cache_features: bool = option(
        False,
        TRAINING,
        "With freeze_backbone: all images go through the backbone once, to disk; then the head "
        "trains on that, in seconds an epoch.",
    )
    cached_views: int | None = option(
        None,
        TRAINING,
        "cache_features: train on N augmented views of each image. Default: on the image as an "
        "evaluation sees it.",
        lower_bound=1,
    )
    cache_dir: str | None = option(
        None,
        TRAINING,
        "cache_features: a folder for them that several runs share. Default: in the run's folder, "
        "while it trains.",
        convert=normal_path,
    )
    chunk_size: int | None = option(
        None,
        TRAINING,
        "Compute a batch in pieces of N images on each device, with the loss and the weights of "
        "the whole: the memory of a piece, one more forward pass. Not for rankmi. Default: all at "
        "once.",
        lower_bound=1,
    )
    chunk_statistics: bool = option(
        False,
        TRAINING,
        "chunk_size: let batch norm take the statistics of each piece, in place of refusing it.",
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
        "Devices: one; mirrored = all of this machine; auto = mirrored where there is a GPU, else "
        "one; multi_worker = all of several machines, from TF_CONFIG or a Slurm job.",
        choices=("one", "auto", "mirrored", "multi_worker"),
    )
    logical_devices: int = option(
        1,
        TRAINING,
        "Split the CPU into this many devices, to try mirrored without GPUs.",
        lower_bound=1,
    )
    mixed_precision: bool = option(
        False, TRAINING, "Compute in half precision: float16 on a GPU, bfloat16 on a CPU."
    )
    jit_compile: bool = option(False, TRAINING, "Compile the training step with XLA.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class IntervalOptions(Options):
    """How often a training is evaluated, and which epoch is kept."""

    eval_every: int = option(
        1, EVALUATION, "Evaluate every N epochs, and after the last.", lower_bound=1
    )
    keep: str | None = option(
        None,
        EVALUATION,
        "Epoch whose model is scored and exported. last; best_test: the best R@1 on the test "
        "images, which flatters the score; best_fold: the best R@1 (with patience: MAP@R) on the "
        "classes that --fold holds out. Default: last; with --fold, best_fold.",
        choices=("last", "best_test", "best_fold"),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoringOptions(Options):
    """How embeddings are evaluated."""

    recall_at: tuple[str, ...] = option(("1", "2", "4", "8"), EVALUATION, "The K of recall at K.")
    eval_batch_size: int = option(
        64, EVALUATION, "Images embedded at once, on each device.", lower_bound=1
    )
    matryoshka: tuple[str, ...] | None = option(
        None,
        EVALUATION,
        "Increasing lengths such as 32,64,128: recall is measured for each prefix of the embedding "
        "too. In training the last is embedding_size, and the loss is summed over the prefixes.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationOptions(ScoringOptions, CodeOptions, ImageSizeOptions, BadImageOptions):
    """What the evaluation of a model's embeddings takes of what a run takes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PixelOptions(Options):
    """What embeddings are measured against."""

    raw_pixels: bool = option(
        False,
        EVALUATION,
        "First evaluate nearest neighbours of the pixels themselves, as the floor to beat.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputOptions(Options):
    """Where to."""

    output_dir: str | None = option(None, RUN, "The run's folder. Default: runs/RECIPE-seedSEED.")
    refit: bool = option(
        False,
        RUN,
        "Measured on what is kept back, train once more on every class, with the same steps, for a "
        "final model: in the run's folder, refit. Of a finished run too.",
    )
    measured_in: str | None = option(
        None,
        RUN,
        "class_split=every_class: the folder of a finished run that measured the same settings, "
        "whose scores report and model card give. --refit sees to it.",
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
    """What chance follows from."""

    seed: int = option(0, RUN, "Seed of everything random.", lower_bound=0, upper_bound=2**32 - 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RepetitionOptions(Options):
    """How alike two runs are."""

    deterministic: bool = option(
        False,
        RUN,
        "Bit-identical results from one run to the next, with the same number of threads on the "
        "same kind of machine, at some cost in speed.",
    )


# Fields come in the order of the groups from the last of these bases to the first: the order of
# `flags.txt`, in which folders of earlier versions have it too.
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
    """Everything that a run takes."""

    command = "experiments.run"
    intro = "\n".join(
        [
            "Train an embedding, evaluate it on classes never seen in training, write a report and",
            "a SavedModel.",
            "",
            "  python -m experiments.run --flagfile=RECIPE.flags [--flag=value ...]",
            "",
            *textwrap.wrap(f"Recipes: {', '.join(recipes.names())}.", 88),
            "A flag given here overrides the recipe's; a recipe may name another by --flagfile.",
            "--noNAME turns a switch off. A killed run goes on where it stopped when the same "
            "command is",
            "given again.",
        ]
    )

    @property
    def name(self) -> str:
        """The run's name: its recipe's or its dataset's."""
        return self.recipe or self.dataset or "run"

    @property
    def folder(self) -> pathlib.Path:
        """The run's folder."""
        return pathlib.Path(
            os.path.expanduser(self.output_dir or f"runs/{self.name}-seed{self.seed}")
        )
