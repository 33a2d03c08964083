"""`python -m experiments.benchmark BENCHMARK`: speed and memory, each beside a yardstick."""

import importlib.util
import itertools
import sys

from absl import flags as absl_flags

from experiments import recipes
from experiments.benchmarks.process import json_rows
from experiments.options import flags
from experiments.options.command_line import quiet_tensorflow, run_command, usage_errors

HELP = """Speed and memory, each beside a yardstick measured in the same run.

  python -m experiments.benchmark losses [--losses=A,B] [--sizes=120,512,2048]

Value and gradient with respect to the embeddings, float32, d = 512, 4 images a class; for each loss
and n:

  ms       median milliseconds of a call
  XLA      the same compiled by XLA, as `model.compile` does where it chooses so
  / floor  over the time of two n x n x d products, measured beside it
  / peer   over pytorch-metric-learning's time for the same loss, where it is installed and has it
  MB       peak memory above what the process held before the first call

  python -m experiments.benchmark training

A training step of 120 images: contrastive loss, and the two kinds of steps of RankMI on the same
model (goals: an embedding step within 1.25 of contrastive, a statistics step below 0.5 of that).

  python -m experiments.benchmark pipeline --data_dir=FOLDER [--flagfile=cub.flags] [--flag=value]

Images a second of a recipe's training batches (read, decode the crop, resize, jitter, flip, batch),
with its jitter and without, on all cores; takes the flags of experiments.run that say what a batch
is. Medians of rounds in turns.

  / decoding  over reading files, drawing the same crops and decoding them, and nothing else
  / PIL       over torchvision's transforms on Pillow, in as many processes as there are cores

(Goals on 2 cores with CUB: 0.75 of decoding and 2.3 times Pillow, 1.5 times with jitter.) Then, for
as many made-up paths as Stanford Online Products has, the time and memory until batches are asked
for and the time of a balanced batch's rows (goals: 3 s, 200 MB, 1 ms).

  python -m experiments.benchmark retrieval [--size=sop|million|all]

Evaluation and search beside faiss (pip install 'keras-dml[benchmark]') on made-up embeddings.
"""

_LOSSES = absl_flags.FlagValues()
absl_flags.DEFINE_list("losses", [], "Which; default all.", flag_values=_LOSSES)
absl_flags.DEFINE_list("sizes", ["120", "512", "2048"], "Batch sizes n.", flag_values=_LOSSES)
_RETRIEVAL = absl_flags.FlagValues()
absl_flags.DEFINE_enum("size", "all", ["sop", "million", "all"], "What.", flag_values=_RETRIEVAL)

# Those of the runner's flags that say what a training batch is.
_OF_A_BATCH = [
    *(name for name in flags.GROUPS["Data"] if name != "skip_bad_images"),
    *flags.GROUPS["Images"],
    *flags.GROUPS["Sampling"],
    "seed",
    "flagfile",
]


def main(argv):
    """Print a line for each measurement."""
    if flags.wants_help(argv):
        print(HELP)
        return
    with usage_errors():
        benchmark, words = _chosen(argv)
        # TensorFlow is imported by what is measured, and must be quiet by then.
        quiet_tensorflow()
        lines = benchmark(words)
    for line in lines:
        print(line, flush=True)


def _chosen(argv):
    if len(argv) < 2 or argv[1] not in BENCHMARKS:
        raise ValueError(
            f"name a benchmark first: {', '.join(BENCHMARKS)}. "
            f"Received: {' '.join(argv[1:]) or 'nothing'}"
        )
    return BENCHMARKS[argv[1]], argv[2:]


def _losses(words):
    _parse("losses", _LOSSES, words)
    sizes = sorted(set(flags.whole_numbers("sizes", _LOSSES.sizes)))
    if not sizes or sizes[0] < 2:
        raise ValueError(f"sizes must be at least 2. Received: sizes={','.join(_LOSSES.sizes)}")
    from experiments.benchmarks.loss import names

    known = names()
    for name in _LOSSES.losses:
        if name not in known:
            raise ValueError(f"losses must be of {', '.join(known)}. Received: losses={name}")
    return _rows_of_losses(_LOSSES.losses or known, sizes)


def _rows_of_losses(names, sizes):
    """A row for each loss and size; every loss in a process of its own, for its memory."""
    yield f"{'loss':<24}{'n':>6}{'ms':>10}{'XLA':>10}{'/ floor':>9}{'/ peer':>8}{'MB':>8}"
    for name in names:
        for row in json_rows("experiments.benchmarks.loss", name, *map(str, sizes)):
            peer = f"{row['ms'] / row['peer']:.2f}" if row["peer"] else "–"
            yield (
                f"{name:<24}{row['n']:>6}{row['ms']:>10.2f}{row['xla']:>10.2f}"
                f"{row['ms'] / row['floor']:>9.2f}{peer:>8}{row['mb']:>8.0f}"
            )


def _training(words):
    _parse("training", absl_flags.FlagValues(), words)
    return _rows_of_training()


def _rows_of_training():
    from experiments.benchmarks.training import BACKBONES, measure

    yield f"{'backbone':<18}{'step':<22}{'ms':>10}{'/ contrastive':>15}"
    for backbone, size in BACKBONES.items():
        for step, milliseconds in (rows := dict(measure(backbone))).items():
            ratio = milliseconds / rows["contrastive"]
            yield f"{backbone + f' {size}':<18}{step:<22}{milliseconds:>10.1f}{ratio:>15.2f}"


def _pipeline(words):
    for word in words:
        name = word.lstrip("-").partition("=")[0]
        if word.startswith("-") and not {name, name.removeprefix("no")} & set(_OF_A_BATCH):
            raise ValueError(
                f"pipeline takes --flagfile and those flags that say what a batch is: "
                f"{', '.join(_OF_A_BATCH[:-1])}. Received: {word}"
            )
    recipe = [] if any(map(recipes.is_flagfile, words)) else ["--flagfile=cub.flags"]
    options, _ = flags.parse(["pipeline", *recipe, *words])
    from experiments.benchmarks import pipeline as benchmark_pipeline
    from experiments.training import build
    from pipelines import find_bad_images

    table = build.load(options).train
    if table.arrays is not None:
        raise ValueError(
            "dataset must be of image files, not of pixels in memory. "
            f"Received: dataset={options.dataset}"
        )
    if bad := find_bad_images(table, decode=False):
        raise ValueError(build.not_an_image("training", table, bad))
    sampler, (transform, _) = build.sampler(options, table), build.transforms(options)
    print(f"{table.num_classes:,} classes, {len(table):,} images; batches of {sampler.batch_size}")
    return itertools.chain(
        benchmark_pipeline.measure(table, sampler, transform, options.seed),
        benchmark_pipeline.measure_startup(),
    )


def _retrieval(words):
    _parse("retrieval", _RETRIEVAL, words)
    if importlib.util.find_spec("faiss") is None:
        raise ValueError("retrieval is measured beside faiss: pip install 'keras-dml[benchmark]'")
    from experiments.benchmarks.retrieval import measure

    sizes = ("sop", "million") if _RETRIEVAL.size == "all" else (_RETRIEVAL.size,)
    return (line for size in sizes for line in measure(size))


def _parse(benchmark, values, words):
    """Reads a benchmark's own flags; ValueError names those that it takes."""
    flags.forget(values)
    try:
        left_over = values([benchmark, *words])[1:]
    except absl_flags.UnrecognizedFlagError:
        left_over = words
    if left_over:
        taken = " and ".join(f"--{name}" for name in values) or "no flags"
        raise ValueError(f"{benchmark} takes {taken}. Received: {' '.join(left_over)}")


BENCHMARKS = {
    "losses": _losses,
    "training": _training,
    "pipeline": _pipeline,
    "retrieval": _retrieval,
}

if __name__ == "__main__":
    sys.exit(run_command(main))
