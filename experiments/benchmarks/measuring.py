"""Time and memory of calls, and new processes to measure them in."""

import importlib
import json
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from experiments.options import RunError
from experiments.options.child_process import child_command, child_environment, end_with_parent

Step: TypeAlias = Callable[[], Any]
Row: TypeAlias = dict[str, Any]
"""One measurement: numbers and words by name."""

SECONDS = 4.0
AHEAD = 3
"""Batches that a pipeline prepares before they are requested."""
_ENVIRONMENT = {
    # The losses multiply in full float32, so the floor does, too.
    "JAX_DEFAULT_MATMUL_PRECISION": "highest",
    # Two libraries share a GPU, and reserved memory would raise the peak.
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    # Waiting threads of PyTorch would take cores from the next library.
    "OMP_WAIT_POLICY": "passive",
}


def milliseconds_in_turns(steps: Mapping[str, Step]) -> dict[str, float]:
    """Return the median milliseconds of each step.

    The steps run in turns, so that a slow phase of the machine slows all of them. Each step runs
    once to warm up and then at least five times, and all steps run for at least `SECONDS`.
    """
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
    start = time.perf_counter()
    while min(map(len, times.values())) < 5 or time.perf_counter() - start < SECONDS:
        for name, step in steps.items():
            times[name].append(1000 * seconds_of(step)[0])
    return {name: statistics.median(taken) for name, taken in times.items()}


def milliseconds_of_a_batch(next_batch: Step, batches: int) -> float:
    """Return the mean milliseconds of a batch of a data pipeline, without batches made ahead."""
    for _ in range(AHEAD):
        next_batch()
    return 1000 * seconds_of(lambda: [next_batch() for _ in range(batches)])[0] / batches


def seconds_of(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return the duration of a call and its result."""
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def resident_megabytes() -> float:
    """Return the memory of this process."""
    with open("/proc/self/statm") as status:
        return int(status.read().split()[1]) * resource.getpagesize() / 2**20


def peak_megabytes() -> float:
    """Return the highest memory of this process since its start."""
    # ru_maxrss of getrusage includes the memory of the parent process at the fork.
    with open("/proc/self/status") as status:
        [peak] = [line for line in status if line.startswith("VmHWM:")]
    return int(peak.split()[1]) / 1024


def child_rows(
    function: Callable[..., Iterator[Row]], *arguments: Any, backend: str | None = None
) -> Iterator[Row]:
    """Call a function of a module in a new process, and yield its rows.

    Args:
        function: Function that yields rows.
        arguments: Its arguments, which JSON can represent.
        backend: Backend of Keras in the process. None: the backend of this process.

    Raises:
        RunError: The process failed. Its message is on the terminal.
    """
    words = [function.__module__, function.__name__, json.dumps(arguments)]
    chosen = {} if backend is None else {"KERAS_BACKEND": backend}
    with subprocess.Popen(
        child_command("experiments.benchmarks.measuring", *words),
        env=_ENVIRONMENT | child_environment() | chosen,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        for line in process.stdout or ():
            yield json.loads(line)
    if process.returncode == -signal.SIGKILL:
        raise RunError("killed, probably because memory ran out")
    if process.returncode:
        raise RunError(f"failed with exit code {process.returncode}, see the message above")


if __name__ == "__main__":
    end_with_parent()
    module, name, arguments = sys.argv[1:]
    for row in getattr(importlib.import_module(module), name)(*json.loads(arguments)):
        print(json.dumps(row), flush=True)
