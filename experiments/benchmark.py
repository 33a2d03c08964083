"""`python -m experiments.benchmark BENCHMARK`: speed and memory, each beside a yardstick."""

import dataclasses
import importlib.util
import itertools
import os
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from experiments.benchmarks.process import json_rows
from experiments.options import (
    HelpRequested,
    Options,
    RunOptions,
    UsageError,
    declarations,
    help_text,
    option,
    parse,
    run_command,
    wants_help,
)
from experiments.options.command_line import RunError
from experiments.options.run_options import (
    AugmentationOptions,
    DataOptions,
    SamplingOptions,
    SeedOptions,
)
from experiments.options.values import whole_numbers
from experiments.recipes import is_flagfile

if TYPE_CHECKING:
    from pipelines import ImageTable, TrainTransform
    from pipelines.samplers import Sampler

INTRO = "Speed and memory, each beside a yardstick measured in the same run."
_MEASURED = "Measured"
BACKENDS = ("tensorflow", "jax", "torch")


class _Benchmark(Options):
    """A benchmark's options; what it does not take it answers by what it takes."""

    @classmethod
    def own_flags(cls) -> list[str]:
        """The names of its own flags."""
        return [name for name in declarations(cls) if name not in declarations(Options)]

    @classmethod
    def refusal(cls, name: str | None, received: str) -> str:
        """Names the flags that there are."""
        taken = ", ".join(f"--{flag}" for flag in cls.own_flags()) or "no flags"
        return f"{cls.command.split()[-1]} takes {taken}. Received: {received}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossesOptions(_Benchmark):
    """Of `benchmark losses`."""

    command = "experiments.benchmark losses"
    intro = """  python -m experiments.benchmark losses [--losses=A,B] [--sizes=120,512,2048]

Value and gradient with respect to the embeddings, float32, d = --dimensions, 4 images a class; for
each loss and n:

  ms       median milliseconds of a call
  XLA      the same compiled by XLA, as `model.compile` does where it chooses so
  passes   what its operations but the products read and write of n x n, in additions of two such
  / floor  over the time of two n x n x d products, called in turns with it
  / peer   over pytorch-metric-learning's time for the same loss, where it is installed and has it
  MB       peak memory above what the process held before the first call

addition and transposition stand for a pass over n x n: what one takes of the floor, times the
passes of a loss, is about what the loss takes beyond it.
"""

    losses: tuple[str, ...] = option((), _MEASURED, "Which losses. Default: all.")
    sizes: tuple[str, ...] = option(("120", "512", "2048"), _MEASURED, "Batch sizes n.")
    dimensions: int = option(512, _MEASURED, "Length d of the embeddings.", lower_bound=1)
    xla: bool = option(True, _MEASURED, "Measure them compiled by XLA as well.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GpuOptions(_Benchmark):
    """Of `benchmark gpu`."""

    command = "experiments.benchmark gpu"
    intro = """  KERAS_BACKEND=jax python -m experiments.benchmark gpu

Value and gradient with respect to the embeddings on JAX's first device, float32, d = --dimensions,
4 images a class, beside pytorch-metric-learning on the same GPU in the same process:

  ms       median milliseconds of a call
  / floor  over the time of two n x n x d products of full float32, called in turns with it
  / peer   over pytorch-metric-learning's time for the same loss
  MB       the most that the device held above what it held before; the peer's beside it
  off      at the first n: relative difference of the gradient from one in float64 on the CPU

Then training steps of --backbone in bfloat16 (128 numbers, SGD), images in the device's memory:
images a second, and the share of the step that is the loss's: what it takes more than one without.
"""

    losses: tuple[str, ...] = option((), _MEASURED, "Which losses. Default: those with a peer.")
    sizes: tuple[str, ...] = option(("512", "4096", "16384"), _MEASURED, "Batch sizes n.")
    dimensions: int = option(512, _MEASURED, "Length d of the embeddings.", lower_bound=1)
    backbone: str = option("resnet50", _MEASURED, "Which backbone.")
    image_size: int = option(224, _MEASURED, "Height and width of the images.", lower_bound=8)
    batch_size: int = option(120, _MEASURED, "Images of a training step.", lower_bound=2)
    training: tuple[str, ...] = option(
        ("contrastive", "multi_similarity", "ice"), _MEASURED, "Losses of the training steps."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingOptions(_Benchmark):
    """Of `benchmark training`."""

    command = "experiments.benchmark training"
    intro = """  python -m experiments.benchmark training

A training step of 120 images: contrastive loss, and the two kinds of steps of RankMI on the same
model (goals: an embedding step within 1.25 of contrastive, a statistics step below 0.5 of that).
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChunksOptions(_Benchmark):
    """Of `benchmark chunks`."""

    command = "experiments.benchmark chunks"
    intro = """  python -m experiments.benchmark chunks [--batch_size=512] [--chunk_size=32]

Peak memory of one training step of a large batch computed in pieces (--chunk_size of a run), beside
a plain step of as many images as a piece has; random weights, batch norm on stored statistics, each
in a process of its own:

  s        seconds of the step, with the making of its graph
  before   megabytes that the process held before the step: TensorFlow, the model, the images
  MB       the most that it held in all
"""

    backbone: str = option("resnet50", _MEASURED, "Which backbone.")
    image_size: int = option(224, _MEASURED, "Height and width of the images.", lower_bound=8)
    batch_size: int = option(512, _MEASURED, "Images of the large batch.", lower_bound=2)
    chunk_size: int = option(32, _MEASURED, "Images of a piece.", lower_bound=2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PipelineOptions(SeedOptions, SamplingOptions, AugmentationOptions, DataOptions, _Benchmark):
    """Of `benchmark pipeline`: those of a run that say what a training batch is."""

    command = "experiments.benchmark pipeline"
    intro = """  python -m experiments.benchmark pipeline --data_dir=FOLDER [--flagfile=cub.flags]

Images a second of a recipe's training batches (read, decode the crop, resize, jitter, flip, batch),
with its jitter and without, on all cores. Medians of rounds in turns.

  / decoding  over reading files, drawing the same crops and decoding them, and nothing else
  / PIL       over torchvision's transforms on Pillow, in as many processes as there are cores

(Goals on 2 cores with CUB: 0.75 of decoding and 2.3 times Pillow, 1.5 times with jitter.) Then, for
as many made-up paths as Stanford Online Products has, the time and memory until batches are asked
for and the time of a balanced batch's rows (goals: 3 s, 200 MB, 1 ms).
"""

    @classmethod
    def of_flag_files(cls) -> type[Options]:
        """A recipe's."""
        return RunOptions

    @classmethod
    def refusal(cls, name: str | None, received: str) -> str:
        """Names the flags that there are."""
        return (
            f"{cls.command.split()[-1]} takes --flagfile and those flags that say what a batch is: "
            f"{', '.join(cls.own_flags())}. Received: {received}"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeedingOptions(PipelineOptions):
    """Of `benchmark feeding`."""

    command = "experiments.benchmark feeding"
    intro = """  python -m experiments.benchmark feeding --data_dir=FOLDER [--flagfile=cub.flags]

Images a second of a recipe's training batches that `fit` takes in on each backend, with a model
that only averages pixels; each backend in a process of its own, medians of rounds in turns:

  tf.data    the library's pipeline, which feeds every backend
  threads    a keras.utils.PyDataset of the same files, with torchvision's transforms on Pillow, by
             as many workers as there are cores
  processes  the same with use_multiprocessing
"""

    backends: tuple[str, ...] = option(BACKENDS, _MEASURED, "Which of Keras' backends.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RetrievalOptions(_Benchmark):
    """Of `benchmark retrieval`."""

    command = "experiments.benchmark retrieval"
    intro = """  python -m experiments.benchmark retrieval [--size=sop|million|changes|all]

Evaluation and search beside faiss (pip install 'keras-dml[benchmark]') on made-up embeddings, and
an index of a million of them that changes, by ScaNN's ways to reorder.
"""

    size: str = option(
        "all",
        _MEASURED,
        "How many embeddings; changes: a million, which change.",
        choices=("sop", "million", "changes", "all"),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class VerificationOptions(_Benchmark):
    """Of `benchmark verification`."""

    command = "experiments.benchmark verification"
    intro = """  python -m experiments.benchmark verification [--embeddings=FILE.npz]

Thresholds of false match rates over all pairs of 60,502 made-up embeddings of 512 numbers (goal: 60
seconds on 2 cores), and scikit-learn's roc_curve on as many pairs as fit, beside ours. With
--embeddings=FILE in place of that: thresholds of half of the classes tried on the other half, and
how often the false match rate there lies in the interval that was promised.
"""

    embeddings: pathlib.Path | None = option(
        None, _MEASURED, "A file of numpy.savez with the arrays embeddings [n, d] and labels [n]."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditOptions(DataOptions, _Benchmark):
    """Of `benchmark audit`."""

    command = "experiments.benchmark audit"
    intro = """  python -m experiments.benchmark audit --dataset=groceries --data_dir=FOLDER

Copies a dataset's photographs, 5 % of them under another class, 50 of them twice (re-encoded,
resized, cropped, mirrored, all four), trains on that by a recipe, audits the run, and says how much
of what was planted experiments.audit finds. The same command goes on where it stopped.
"""

    training: str = option("cached_groceries.flags", _MEASURED, "The recipe that trains.")
    output_dir: str = option("runs/planted", _MEASURED, "Where to.")


def main(argv: list[str]) -> None:
    """Print a line for each measurement."""
    for line in _chosen(argv):
        print(line, flush=True)


def help_of_all() -> str:
    """The help of all benchmarks."""
    return "\n".join([INTRO, *(f"\n{help_text(options)}" for options, _ in BENCHMARKS.values())])


def _chosen(argv: list[str]) -> Iterable[str]:
    """The lines of the benchmark that the command line names."""
    if len(argv) > 1 and argv[1] in BENCHMARKS:
        options, measure = BENCHMARKS[argv[1]]
        words = argv[2:]
        if issubclass(options, PipelineOptions) and not any(map(is_flagfile, words)):
            words = ["--flagfile=cub.flags", *words]
        return measure(parse(options, [options.command, *words]))
    if wants_help(argv):
        raise HelpRequested(help_of_all())
    raise UsageError(
        f"name a benchmark first: {', '.join(BENCHMARKS)}. "
        f"Received: {' '.join(argv[1:]) or 'nothing'}"
    )


def _losses(options: LossesOptions) -> Iterator[str]:
    sizes = _sizes(options.sizes)
    from experiments.benchmarks.loss import names

    _check_losses("losses", options.losses, known := names())
    return _rows_of_losses(options.losses or known, sizes, options)


def _sizes(received: tuple[str, ...]) -> list[int]:
    """Batch sizes, rising: the most memory so far is that of the last."""
    sizes = sorted(set(whole_numbers("sizes", received)))
    if not sizes or sizes[0] < 2:
        raise UsageError(f"sizes must be at least 2. Received: sizes={','.join(received)}")
    return sizes


def _check_losses(flag: str, names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            raise UsageError(f"{flag} must be of {', '.join(known)}. Received: {flag}={name}")


def _each(names: Iterable[str], rows: Callable[[str], Iterator[str]]) -> Iterator[str]:
    """The rows of each; every one is measured in a process of its own, for its memory.

    Raises:
        RunError: one of them failed (no memory, say); after the rows of the others.
    """
    failed: list[str] = []
    for name in names:
        try:
            yield from rows(name)
        except RunError as error:
            failed.append(name)
            yield f"{name:<24}{error}"
    if failed:
        raise RunError(f"{', '.join(failed)} could not be measured; why stands above")


def _rows_of_losses(
    names: Iterable[str], sizes: Iterable[int], options: LossesOptions
) -> Iterator[str]:
    words = [str(options.dimensions), str(int(options.xla)), *map(str, sizes)]
    columns = f"{'ms':>10}{'XLA':>10}{'passes':>8}{'/ floor':>9}{'/ peer':>8}{'MB':>8}"
    yield f"{'loss':<24}{'n':>6}{columns}"

    def rows(name: str) -> Iterator[str]:
        for row in json_rows("experiments.benchmarks.loss", name, *words):
            peer = f"{row['ms'] / row['peer']:.2f}" if row["peer"] else "–"
            xla = f"{row['xla']:.2f}" if row["xla"] else "–"
            yield (
                f"{name:<24}{row['n']:>6}{row['ms']:>10.2f}{xla:>10}{row['passes']:>8.1f}"
                f"{row['ms'] / row['floor']:>9.2f}{peer:>8}{row['mb']:>8.0f}"
            )

    yield from _each(names, rows)


def _gpu(options: GpuOptions) -> Iterator[str]:
    sizes = _sizes(options.sizes)
    if (backend := os.environ.get("KERAS_BACKEND")) != "jax":
        raise UsageError(
            "gpu is measured on JAX: KERAS_BACKEND=jax python -m experiments.benchmark gpu. "
            f"Received: KERAS_BACKEND={backend or ''}"
        )
    from experiments.benchmarks.measured import PAIRWISE, WITH_PEERS

    _check_losses("losses", options.losses, PAIRWISE)
    _check_losses("training", options.training, PAIRWISE)
    return itertools.chain(
        _losses_on_gpu(options.losses or WITH_PEERS, sizes, options), _training_on_gpu(options)
    )


def _losses_on_gpu(
    names: Iterable[str], sizes: Iterable[int], options: GpuOptions
) -> Iterator[str]:
    columns = f"{'ms':>10}{'/ floor':>9}{'/ peer':>8}{'MB':>8}{'peer MB':>9}{'off':>9}"
    yield f"{'loss':<24}{'n':>6}{columns}"
    words = [str(options.dimensions), *map(str, sizes)]

    def rows(name: str) -> Iterator[str]:
        for row in json_rows("experiments.benchmarks.gpu", "loss", name, *words):
            over_peer = row["peer"] and row["ms"] / row["peer"]
            yield (
                f"{name:<24}{row['n']:>6}{row['ms']:>10.2f}{row['ms'] / row['floor']:>9.2f}"
                f"{_or_dash(over_peer, '.2f'):>8}{_or_dash(row['mb'], '.0f'):>8}"
                f"{_or_dash(row['peer_mb'], '.0f'):>9}{_or_dash(row['off'], '.1e'):>9}"
                f"  {row['device']}"
            )

    yield from _each(names, rows)


def _training_on_gpu(options: GpuOptions) -> Iterator[str]:
    size = f"{options.backbone} {options.image_size}, bfloat16"
    yield f"{size:<34}{'ms':>10}{'images/s':>10}{'loss, %':>9}"
    words = (options.backbone, str(options.image_size), str(options.batch_size))

    def rows(name: str) -> Iterator[str]:
        for row in json_rows("experiments.benchmarks.gpu", "training", *words, name):
            took = row["ms"]
            yield (
                f"{name:<34}{took:>10.1f}{1000 * options.batch_size / took:>10.0f}"
                f"{100 * (1 - row['without'] / took):>9.1f}  {row['device']}"
            )

    yield from _each(options.training, rows)


def _or_dash(number: float | None, form: str) -> str:
    return "–" if number is None else format(number, form)


def _training(options: TrainingOptions) -> Iterator[str]:
    return _rows_of_training()


def _rows_of_training() -> Iterator[str]:
    from experiments.benchmarks.training import BACKBONES, measure

    yield f"{'backbone':<18}{'step':<22}{'ms':>10}{'/ contrastive':>15}"
    for backbone, size in BACKBONES.items():
        for step, milliseconds in (rows := dict(measure(backbone))).items():
            ratio = milliseconds / rows["contrastive"]
            yield f"{backbone + f' {size}':<18}{step:<22}{milliseconds:>10.1f}{ratio:>15.2f}"


def _chunks(options: ChunksOptions) -> Iterator[str]:
    yield f"{'batch':>6}{'in pieces of':>14}{'s':>8}{'before':>8}{'MB':>8}"
    chunk = options.chunk_size
    for batch_size, chunk_size in ((chunk, 0), (options.batch_size, chunk)):
        words = (options.backbone, options.image_size, batch_size, chunk_size)
        for row in json_rows("experiments.benchmarks.chunks", *map(str, words)):
            pieces = chunk_size or "–"
            yield (
                f"{batch_size:>6}{pieces:>14}{row['seconds']:>8.1f}"
                f"{row['before']:>8.0f}{row['peak']:>8.0f}"
            )


def _pipeline(options: PipelineOptions) -> Iterator[str]:
    from experiments.benchmarks import pipeline as benchmark_pipeline

    table, sampler, transform = _batches_of(options)
    return itertools.chain(
        benchmark_pipeline.measure(table, sampler, transform, options.seed),
        benchmark_pipeline.measure_startup(),
    )


def _batches_of(options: PipelineOptions) -> "tuple[ImageTable, Sampler, TrainTransform]":
    """What training batches are made of, as `pipelines.training_batches` takes it."""
    from experiments.options import data
    from pipelines import find_bad_images

    table = data.load(options).train
    if table.arrays is not None:
        raise UsageError(
            "dataset must be of image files, not of pixels in memory. "
            f"Received: dataset={options.dataset}"
        )
    if bad := find_bad_images(table, decode=False):
        raise UsageError(data.not_an_image("training", table, bad))
    sampler = data.sampler(options, table, options.seed)
    transform = data.training_transform(options)
    print(f"{table.num_classes:,} classes, {len(table):,} images; batches of {sampler.batch_size}")
    return table, sampler, transform


def _feeding(options: FeedingOptions) -> Iterator[str]:
    for backend in options.backends:
        if backend not in BACKENDS:
            raise UsageError(
                f"backends must be of {', '.join(BACKENDS)}. Received: backends={backend}"
            )
        if importlib.util.find_spec(backend) is None:
            raise UsageError(
                f"backends={backend} is not installed: pip install 'keras-dml[{backend}]', or "
                "name others"
            )
    return _rows_of_feeding(options)


def _rows_of_feeding(options: FeedingOptions) -> Iterator[str]:
    from experiments.benchmarks.feeding import FEEDS, Fed, fed_images
    from experiments.benchmarks.pil import as_pil
    from experiments.benchmarks.pipeline import images_of

    table, sampler, transform = _batches_of(options)
    fed = Fed(table, sampler, transform, options.seed, images_of(table), as_pil(transform))
    yield f"{'images/s':<12}" + "".join(f"{feed:>12}" for feed in FEEDS)

    def rows(backend: str) -> Iterator[str]:
        for row in fed_images(backend, fed):
            yield f"{backend:<12}" + "".join(f"{row[feed]:>12,.0f}" for feed in FEEDS)

    yield from _each(options.backends, rows)


def _retrieval(options: RetrievalOptions) -> Iterator[str]:
    if options.size != "changes" and importlib.util.find_spec("faiss") is None:
        raise UsageError("retrieval is measured beside faiss: pip install 'keras-dml[benchmark]'")
    from experiments.benchmarks import changes, retrieval

    sizes = ("sop", "million", "changes") if options.size == "all" else (options.size,)
    return (
        line
        for size in sizes
        for line in (changes.measure() if size == "changes" else retrieval.measure(size))
    )


def _verification(options: VerificationOptions) -> Iterator[str]:
    if options.embeddings is not None:
        from experiments.benchmarks import halves
        from experiments.evaluation.labeled_embeddings import embeddings_from_file

        embedded = embeddings_from_file(options.embeddings.expanduser()).queries
        return halves.measure(embedded.embeddings, embedded.labels)
    from experiments.benchmarks.verification import measure

    return measure()


def _audit(options: AuditOptions) -> Iterator[str]:
    from experiments.benchmarks.planted import measure
    from experiments.options import data

    return measure(data.load(options), pathlib.Path(options.output_dir), options.training)


BENCHMARKS: dict[str, tuple[type[Options], Callable[[Any], Iterable[str]]]] = {
    "losses": (LossesOptions, _losses),
    "gpu": (GpuOptions, _gpu),
    "training": (TrainingOptions, _training),
    "chunks": (ChunksOptions, _chunks),
    "pipeline": (PipelineOptions, _pipeline),
    "feeding": (FeedingOptions, _feeding),
    "retrieval": (RetrievalOptions, _retrieval),
    "verification": (VerificationOptions, _verification),
    "audit": (AuditOptions, _audit),
}

if __name__ == "__main__":
    sys.exit(run_command(main))
