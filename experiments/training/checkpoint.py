"""A checkpoint as a file: all that the rest of a run depends on, under one SHA-256."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import pathlib
import re
import struct
from collections.abc import Mapping, Sequence
from typing import IO, Any

import numpy as np

from experiments.options import UsageError

_RECORDS = "records"
# The comment of the zip archive that NumPy writes: its readers pass over it.
_CHECKSUM = re.compile(rb"sha256:([0-9a-f]{64})")
_LENGTH = len("sha256:") + 64
_CHUNK = 1 << 20


class DamagedError(UsageError):
    """A file of a run that is no longer what was written."""


@dataclasses.dataclass(frozen=True)
class State:
    """How far a run has come: finished epochs and steps, seconds spent in training steps."""

    epoch: int = 0
    step: int = 0
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class Records:
    """What a run has found so far, beside its variables.

    Attributes:
        flags: the resolved flags as text.
        history: the objects of `metrics.jsonl`.
        best: SHA-256 of the best model's file; None before the first evaluation.
        files: small files that follow from the flags, name -> text.
        threads: how many threads computed it; None where nobody asked.
    """

    flags: str
    history: Sequence[Mapping[str, float]] = ()
    best: str | None = None
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    threads: int | None = None


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint's file holds.

    Attributes:
        state: how far the run had come.
        records: None in one of version 0.1.0, which has no checksum either.
        variables: of model and optimizers, in their order; none where they were not asked for.
    """

    state: State
    records: Records | None
    variables: Sequence[np.ndarray] = ()


def write_checkpoint(
    stream: io.BufferedRandom, variables: Sequence[np.ndarray], state: State, records: Records
) -> None:
    """Write it into a stream that can be read too, and onto the disk."""
    text = json.dumps(dataclasses.asdict(records)).encode()
    arrays: dict[str, Any] = {f"variable_{i}": array for i, array in enumerate(variables)}
    arrays |= {f"state_{name}": value for name, value in dataclasses.asdict(state).items()}
    arrays[_RECORDS] = np.frombuffer(text, np.uint8)
    np.savez(stream, **arrays)
    # The archive ends with the length of its comment.
    stream.seek(-2, os.SEEK_END)
    stream.write(struct.pack("<H", _LENGTH))
    stream.flush()
    stream.seek(0)
    digest = hashlib.file_digest(stream, "sha256").hexdigest()
    stream.seek(0, os.SEEK_END)
    stream.write(f"sha256:{digest}".encode())
    stream.flush()
    os.fsync(stream.fileno())


def read_checkpoint(path: pathlib.Path, variables: bool = True) -> Checkpoint:
    """The checkpoint of a file, whose checksum is right.

    Args:
        path: of the file.
        variables: whether to read these too, which may be large.

    Raises:
        DamagedError: it is no longer what was written.
    """
    with open(path, "rb") as stream:
        has_checksum = _check(path, stream)
        stream.seek(0)
        try:
            found = _read(stream, variables)
        except Exception as error:  # zipfile and NumPy raise anything at a damaged file
            raise DamagedError(f"{path} is damaged ({type(error).__name__})") from error
    if found.records is not None and not has_checksum:
        raise DamagedError(f"{path} is damaged (it has no checksum)")
    return found


def _check(path: pathlib.Path, stream: IO[bytes]) -> bool:
    """Whether there is a checksum; DamagedError if it is another one."""
    left = max(stream.seek(0, os.SEEK_END) - _LENGTH, 0)
    stream.seek(left)
    match = _CHECKSUM.fullmatch(stream.read())
    if match is None:
        return False
    digest = hashlib.sha256()
    stream.seek(0)
    while left:
        chunk = stream.read(min(left, _CHUNK))
        digest.update(chunk)
        left -= len(chunk)
    if digest.hexdigest() != match[1].decode():
        raise DamagedError(f"{path} is damaged (its SHA-256 is another one)")
    return True


def _read(stream: IO[bytes], variables: bool) -> Checkpoint:
    with np.load(stream, allow_pickle=False) as saved:
        names = [field.name for field in dataclasses.fields(State)]
        state = State(**{name: saved[f"state_{name}"].item() for name in names})
        records = None
        if _RECORDS in saved.files:
            records = Records(**json.loads(saved[_RECORDS].tobytes()))
        count = sum(name.startswith("variable_") for name in saved.files) if variables else 0
        return Checkpoint(state, records, [saved[f"variable_{i}"] for i in range(count)])
