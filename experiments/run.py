"""`python -m experiments.run --flagfile=RECIPE.flags`: train, evaluate, export, report."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING

from experiments.options import RunOptions, check_together, parse, run_command
from experiments.training.cluster import read_cluster

if TYPE_CHECKING:
    from experiments.evaluation.result import Result
    from experiments.training.plan import RunPlan


def main(argv: list[str]) -> None:
    """Train here or on Ray, print the scores, and retrain on every class if `--refit` is set."""
    options = parse(RunOptions, argv)
    if options.engine == "ray":
        options = dataclasses.replace(options, strategy="multi_worker")
    check_together(options)
    # These modules import NumPy, which --help does not need.
    from experiments.training.refit import check_refit, refit
    from experiments.training.selection import check_selection
    from experiments.training.train import train

    check_refit(options)
    check_selection(options)
    if options.engine == "ray":
        from experiments.scale.training import train_on_ray

        text = train_on_ray(options, argv)
    else:
        text = train(options, read_cluster(options.strategy), _write_pages)
    if text:
        print(text)
    if options.refit:
        final = refit(options)
        from experiments.pages.run_pages import link_final_model

        link_final_model(options, final)
        print(f"\nfinal model, of every class: {final / 'saved_model'}")


def _write_pages(run: RunPlan, result: Result) -> None:
    from experiments.pages.run_pages import write_run_pages  # imports TensorFlow

    write_run_pages(run, result)


if __name__ == "__main__":
    sys.exit(run_command(main))
