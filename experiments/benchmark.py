"""`python -m experiments.benchmark losses|training`: speed and memory beside a yardstick."""

import json
import subprocess
import sys

from absl import flags

from experiments.command_line import RunError, quiet_tensorflow, run_command, usage_errors
from experiments.flags import forget, wants_help, whole_numbers

FLAGS = flags.FlagValues()
flags.DEFINE_list("losses", [], "Which; default all.", flag_values=FLAGS)
flags.DEFINE_list("sizes", ["120", "512", "2048"], "Batch sizes n, rising.", flag_values=FLAGS)

HELP = """Speed and memory, each beside a yardstick measured in the same run.

  python -m experiments.benchmark losses [--losses=A,B] [--sizes=120,512,2048]

Value and gradient with respect to the embeddings, float32, d = 512, 4 images a class; for each loss
and n:

  ms       median milliseconds of a call
  / floor  over the time of two n x n x d products, measured beside it
  / peer   over pytorch-metric-learning's time for the same loss, where it is installed and has it
  MB       peak memory above what the process held before the first call

  python -m experiments.benchmark training

A training step of 120 images: contrastive loss, and the two kinds of steps of RankMI on the same
model (goals: an embedding step within 1.25 of contrastive, a statistics step below 0.5 of that).
"""
BENCHMARKS = ("losses", "training")


def main(argv):
    """Print a line for each measurement."""
    if wants_help(argv):
        print(HELP)
        return
    with usage_errors():
        which, names, sizes = _parse(argv)
    if which == "training":
        _training()
    else:
        _losses(names, sizes)


def _losses(names, sizes):
    """A row for each loss and size; every loss in a process of its own, for its memory."""
    print(f"{'loss':<24}{'n':>6}{'ms':>10}{'/ floor':>9}{'/ peer':>8}{'MB':>8}")
    for name in names:
        command = [sys.executable, "-m", "experiments.benchmark_loss", name, *map(str, sizes)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout:
                row = json.loads(line)
                peer = f"{row['ms'] / row['peer']:.2f}" if row["peer"] else "–"
                print(
                    f"{name:<24}{row['n']:>6}{row['ms']:>10.2f}{row['ms'] / row['floor']:>9.2f}"
                    f"{peer:>8}{row['mb']:>8.0f}",
                    flush=True,
                )
        if process.returncode:
            raise RunError(f"{name} ended with code {process.returncode}; what it said is above")


def _training():
    from experiments.benchmark_training import BACKBONES, measure

    print(f"{'backbone':<18}{'step':<22}{'ms':>10}{'/ contrastive':>15}")
    for backbone, size in BACKBONES.items():
        for step, milliseconds in (rows := dict(measure(backbone))).items():
            ratio = milliseconds / rows["contrastive"]
            print(f"{backbone + f' {size}':<18}{step:<22}{milliseconds:>10.1f}{ratio:>15.2f}")


def _parse(argv):
    forget(FLAGS)
    left_over = FLAGS(argv)[1:]
    sizes = sorted(set(whole_numbers("sizes", FLAGS.sizes)))
    if len(left_over) != 1 or left_over[0] not in BENCHMARKS:
        raise ValueError(
            f"name a benchmark: {' or '.join(BENCHMARKS)}. "
            f"Received: {' '.join(left_over) or 'nothing'}"
        )
    if not sizes or sizes[0] < 2:
        raise ValueError(f"sizes must be at least 2. Received: sizes={','.join(FLAGS.sizes)}")
    quiet_tensorflow()
    from experiments.benchmark_loss import names

    known = names()
    for name in FLAGS.losses:
        if name not in known:
            raise ValueError(f"losses must be of {', '.join(known)}. Received: losses={name}")
    return left_over[0], FLAGS.losses or known, sizes


if __name__ == "__main__":
    sys.exit(run_command(main))
