"""A checkpoint as a file: the variables of a model and its optimizers, and the state of the run."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.training.manifest import DamagedError


@dataclasses.dataclass(frozen=True)
class State:
    """Progress of a run: finished epochs and steps, and seconds of training steps."""

    epoch: int = 0
    step: int = 0
    seconds: float = 0.0


def write_checkpoint(
    path: pathlib.Path, variables: Sequence[np.ndarray], state: State, threads: int | None
) -> None:
    """Write a checkpoint.

    Args:
        path: The file.
        variables: Values of the variables, in their order.
        state: Progress of the run.
        threads: Number of threads that computed the variables.
    """
    arrays: dict[str, Any] = {f"variable_{i}": array for i, array in enumerate(variables)}
    arrays |= {f"state_{name}": value for name, value in dataclasses.asdict(state).items()}
    with open(path, "wb") as stream:
        np.savez(stream, **arrays, threads=threads or 0)


def read_checkpoint(path: pathlib.Path) -> tuple[State, list[np.ndarray], int | None]:
    """Return the state, the variables, and the number of threads of a checkpoint.

    Raises:
        DamagedError: The file is not a checkpoint.
    """
    try:
        with np.load(path, allow_pickle=False) as saved:
            names = [field.name for field in dataclasses.fields(State)]
            state = State(**{name: saved[f"state_{name}"].item() for name in names})
            count = sum(name.startswith("variable_") for name in saved.files)
            variables = [saved[f"variable_{i}"] for i in range(count)]
            return state, variables, int(saved["threads"]) or None
    except PermissionError:
        raise
    except Exception as error:  # zipfile and NumPy raise any exception
        raise DamagedError(f"{path} must be a checkpoint of this version") from error
