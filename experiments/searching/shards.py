"""Images in shards, and the list of the shards that are done."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from experiments.searching.image_files import ImageFile
from experiments.searching.store import Rows

__all__ = [
    "JOURNAL",
    "EmbeddedShard",
    "Journal",
    "Shard",
    "number_of_shards",
    "part_name",
    "shard_digest",
    "shard_number",
    "shards_of",
]

JOURNAL = "shards.jsonl"
# Images of a shard: of few images many shards, so that each worker has some.
_MOST, _LEAST, _SHARDS = 5_000, 64, 64


class Shard(NamedTuple):
    """Images that are embedded and written together, and what is known of them: columns of text."""

    number: int
    files: list[ImageFile]
    columns: dict[str, list[str]]


class EmbeddedShard(NamedTuple):
    """What becomes of a shard: how many images are good, the reasons why others are bad, and the
    good ones themselves unless the worker has written them."""

    number: int
    good: int
    bad: dict[str, str]
    rows: Rows | None


def part_name(number: int) -> str:
    """The Parquet file of a shard."""
    return f"part-{number:05d}.parquet"


class Journal:
    """Which shards are written, a line each: a command that was killed goes on behind them.

    Args:
        path: of the file.
        header: what the shards are of; another one begins anew.

    Attributes:
        shards: how many shards there are: as many as before, also where there are more images.
        done: by shard its digest, how many images were good and the bad ones.
    """

    def __init__(self, path: pathlib.Path, header: Mapping[str, Any], shards: int) -> None:
        self._path = path
        self.shards, self.done = shards, dict[int, dict[str, Any]]()
        lines = _json_lines(path)
        first = next(lines, {})
        if {name: first.get(name) for name in header} == dict(header) and "shards" in first:
            self.shards = int(first["shards"])
            self.done = {int(line["shard"]): line for line in lines}
        # Without what a kill has cut.
        temporary = path.with_name(f".{path.name}")
        with open(temporary, "w", encoding="utf-8") as stream:
            for line in ({**header, "shards": self.shards}, *self.done.values()):
                stream.write(json.dumps(line) + "\n")
        os.replace(temporary, path)

    def add(self, shard: EmbeddedShard, digest: str) -> None:
        """A shard is written."""
        line = {"shard": shard.number, "digest": digest, "good": shard.good, "bad": shard.bad}
        self.done[shard.number] = line
        with open(self._path, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")
            stream.flush()
            os.fsync(stream.fileno())


def _json_lines(path: pathlib.Path) -> Iterator[dict[str, Any]]:
    """The objects of a file's lines, up to the first that is damaged."""
    with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as stream:
        for line in stream:
            found = json.loads(line)
            if not isinstance(found, dict) or not line.endswith("\n"):
                return
            yield found


def number_of_shards(images: int) -> int:
    """For so many images."""
    size = min(_MOST, max(_LEAST, -(-images // _SHARDS)))
    return max(1, -(-images // size))


def shards_of(
    files: Sequence[ImageFile], columns: Mapping[str, Sequence[str]], count: int
) -> list[Shard]:
    """The images in shards, each by its path alone: what comes or goes leaves the other shards.

    Args:
        files: the images.
        columns: class, folder and one's own, in their order.
        count: of shards.
    """
    shards = [Shard(number, [], {name: [] for name in columns}) for number in range(count)]
    for place, file in enumerate(files):
        shard = shards[shard_number(file.path, count)]
        shard.files.append(file)
        for name, values in columns.items():
            shard.columns[name].append(values[place])
    return [shard for shard in shards if shard.files]


def shard_number(path: str, count: int) -> int:
    """The shard of an image."""
    return zlib.crc32(path.encode()) % count


def shard_digest(shard: Shard) -> str:
    """Of its images and what is known of them: another one where any of that is another."""
    return hashlib.sha256(json.dumps([shard.files, shard.columns]).encode()).hexdigest()
