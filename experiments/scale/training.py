"""Train one run with several workers that Ray Train starts, watches, and restarts."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import logging
import os
import tempfile
from typing import Any

from experiments.options import RunOptions, parse, resolved
from experiments.options.command_line import REFUSALS
from experiments.options.errors import RunError, UsageError, one_line
from experiments.scale.connection import connected, where_logs_are
from experiments.training.run_folder import RunFolder
from keras_dml._common.extras import needing

with needing("ray", "--engine=ray"):
    import ray
    from ray.train import (
        ControllerError,
        FailureConfig,
        LoggingConfig,
        RunConfig,
        ScalingConfig,
        TrainingFailedError,
        UserCallback,
    )
    from ray.train.tensorflow import TensorflowTrainer

_RESTARTS = 20
_ENVIRONMENT = {
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # keep the user's current folder
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # it logs an error at each start
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",  # only the first worker prints
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


def train_on_ray(options: RunOptions, argv: list[str]) -> str:
    """Train with workers of Ray, and continue from the run's checkpoint after a failure.

    Args:
        options: the run's options, with `strategy=multi_worker`.
        argv: the command line that gives these options. Each worker reads it again, so the run's
            folder, the data, and the flag files must be on a file system that the machines share.

    Returns:
        The text to print at the end.

    Raises:
        UsageError: if the options do not fit each other, the data, the folder, or the cluster.
        RunError: if the run has to stop, or fails too often.
    """
    folder = RunFolder(options.folder, resolved(options))
    if folder.result is not None:
        return folder.finished_text
    os.environ.update(_ENVIRONMENT)
    logs = ray.LoggingConfig(log_level="ERROR")
    with connected(_ENVIRONMENT, logging_config=logs), tempfile.TemporaryDirectory() as storage:
        trainer = TensorflowTrainer(
            _train,
            train_loop_config={"argv": argv, "folder": os.getcwd()},
            scaling_config=_scaling(options.workers),
            run_config=RunConfig(
                name="run",
                storage_path=storage,
                failure_config=FailureConfig(max_failures=_RESTARTS),
                callbacks=[_StopOnMistake()],
                logging_config=LoggingConfig(log_level="ERROR"),
            ),
        )
        try:
            # In the main thread, Ray would replace the handler of Ctrl-C.
            with concurrent.futures.ThreadPoolExecutor(1) as thread:
                return _result(thread.submit(trainer.fit))
        except ControllerError as error:
            cause = error.controller_failure
            cause = getattr(cause, "controller_failure", cause)
            if isinstance(cause, UsageError | RunError):
                raise type(cause)(f"{cause} {where_logs_are()}") from error
            raise cause from error
        except TrainingFailedError as error:
            raise RunError(
                f"The workers failed {_RESTARTS + 1} times: {one_line(error)}. {where_logs_are()}"
            ) from error


def _result(training: concurrent.futures.Future[Any]) -> str:
    """Wait for the end of the training, and stop the workers after Ctrl-C."""
    try:
        return training.result().return_value
    except KeyboardInterrupt as error:
        ray.shutdown()
        raise KeyboardInterrupt("the same command resumes from the last checkpoint") from error


def _scaling(workers: int | None) -> ScalingConfig:
    """One worker per machine with all its GPUs, unless the number of workers is set."""
    machines = sum(bool(node["Alive"]) for node in ray.nodes())
    resources = ray.cluster_resources()
    count = workers or machines
    gpus = int(resources.get("GPU", 0)) // count
    needed: dict[str, float] = {"CPU": min(1, resources.get("CPU", 1) / count)}
    return ScalingConfig(
        num_workers=count,
        use_gpu=gpus > 0,
        resources_per_worker=needed | ({"GPU": gpus} if gpus else {}),
        placement_strategy="SPREAD",
    )


def _train(config: dict[str, Any]) -> str:
    """Train as one of the workers."""
    from experiments.pages.run_pages import write_run_pages
    from experiments.training.cluster import read_cluster
    from experiments.training.train import train

    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    if os.path.isdir(config["folder"]):
        os.chdir(config["folder"])
    options = dataclasses.replace(parse(RunOptions, config["argv"]), strategy="multi_worker")
    try:
        return train(options, read_cluster("multi_worker"), write_run_pages)
    except REFUSALS as error:
        _log_only_to_files()
        raise UsageError(one_line(error)) from error


class _StopOnMistake(UserCallback):
    """A callback that ends the run after an error that a restart would repeat."""

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """Raise a worker's `UsageError` or `RunError` in Ray's controller."""
        for error in worker_exceptions.values():
            cause = getattr(error, "_base_exc", error)
            if isinstance(cause, UsageError | RunError):
                _log_only_to_files()
                raise cause


def _log_only_to_files() -> None:
    """Keep Ray's tracebacks of a mistake off the terminal, where the command prints one line.

    Ray's files in the folder of its session still have them.
    """
    for name in ["", *logging.root.manager.loggerDict]:
        for handler in logging.getLogger(name).handlers:
            if not isinstance(handler, logging.FileHandler):
                handler.setLevel(logging.CRITICAL + 1)
