"""`python -m experiments.run --flagfile=RECIPE.flags`: train, evaluate, export, report."""

import dataclasses
import sys

from experiments.options import RunOptions, UsageError, parse, run_command
from experiments.training.cluster import read_cluster


def main(argv: list[str]) -> None:
    """Train here or on Ray, print the scores, and retrain on every class if `--refit` is set."""
    options = parse(RunOptions, argv)
    if options.engine == "ray":
        options = dataclasses.replace(options, strategy="multi_worker")
    elif options.workers is not None:
        raise UsageError(f"workers needs --engine=ray, but got workers={options.workers}.")
    # These modules import NumPy, which --help does not need.
    from experiments.training.kept import check_keep
    from experiments.training.patience import check_patience
    from experiments.training.refit import check_refit, refit
    from experiments.training.train import train

    check_refit(options)
    check_patience(options)
    check_keep(options)
    if options.engine == "ray":
        from experiments.scale.training import train_on_ray

        text = train_on_ray(options, argv)
    else:
        text = train(options, read_cluster(options.strategy))
    if text:
        print(text)
    if options.refit:
        refit(options)


if __name__ == "__main__":
    sys.exit(run_command(main))
