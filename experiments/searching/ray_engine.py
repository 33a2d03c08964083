"""Embed the images of a folder by many workers at once, on a cluster of Ray or on this machine."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import os
import pathlib
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from experiments.embedding.held_folder import delete_abandoned
from experiments.options.child import child_environment
from experiments.options.errors import RunError, UsageError, one_line
from experiments.options.progress import progress_bar
from experiments.searching.addresses import Address
from experiments.searching.image_files import ImageFile
from experiments.searching.shard_worker import MODELS, ShardWorker
from experiments.searching.shards import (
    JOURNAL,
    EmbeddedShard,
    Journal,
    Shard,
    number_of_shards,
    part_name,
    shard_digest,
    shard_number,
    shards_of,
)
from experiments.searching.store import Description, Store, item_id
from keras_dml._common.extras import needing

with needing("ray", "--engine=ray"):
    import ray

__all__ = ["RayJob", "RayRun", "embed_by_ray"]

# So often a shard is given to another worker when its own has ended.
_RETRIES = 4
# Shards that wait for each worker beside the one that it is at.
_AHEAD = 1
# Seconds after which an idle worker is given the shard of another, too; between looks for such.
_LATE, _LOOK = 300.0, 10.0
# Seconds within which the head of a cluster answers a call.
_ANSWERS_WITHIN = 10.0


class RayRun(NamedTuple):
    """What was done: images that are good now, those embedded by this command, the bad ones with
    the reason, the workers, and the seconds till they had begun and from then on."""

    good: int
    embedded: int
    bad: dict[str, str]
    workers: int
    beginning: float
    seconds: float


@dataclasses.dataclass(frozen=True)
class RayJob:
    """What is to be embedded, and where it goes.

    Attributes:
        saved_model: the model's folder.
        images: the images' folder or URI.
        files: in it, those whose names can be kept.
        columns: class, folder and one's own columns of text, in the order of `files`.
        description: of the images; the number of dimensions is not known yet.
        address: of a folder of Parquet files or of a store.
        store: that of the address, None for Parquet.
        output: the folder that the journal is kept in.
        max_pixels: how many pixels an image may have.
        batch_size: images that a worker embeds at once.
        workers: how many; None: one for each GPU, or where there are none for each core.
    """

    saved_model: pathlib.Path
    images: str
    files: Sequence[ImageFile]
    columns: Mapping[str, Sequence[str]]
    description: Description
    address: Address
    store: Store | None
    output: pathlib.Path
    max_pixels: int
    batch_size: int
    workers: int | None = None


def embed_by_ray(job: RayJob) -> RayRun:
    """Embed what is new or has changed, and write it.

    A shard is the unit: it is written whole, under its own name or by its images' ids, and entered
    in the journal when it is; so none is lost and none is there twice, whoever is killed.

    Raises:
        RunError: a shard's workers end again and again.
        UsageError: no cluster at RAY_ADDRESS, a model or a store that refuses.
    """
    delete_abandoned(MODELS)  # of commands before that were killed, on this machine
    with _cluster():
        return _Driver(job).run()


@contextlib.contextmanager
def _cluster() -> Iterator[None]:
    """Within it Ray is there: the cluster of RAY_ADDRESS, or one of this machine alone."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Or it warns that this will be so one day.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    address = os.environ.get("RAY_ADDRESS")
    _check_answer(address)
    given: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        path = child_environment().get("PYTHONPATH", "")
        given |= {"include_dashboard": False, "runtime_env": {"env_vars": {"PYTHONPATH": path}}}
    try:
        ray.init(address=address, **given)
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        where, hint = "Ray on this machine", ""
        if address:
            where = f"the cluster of RAY_ADDRESS={address}"
            # Of which Ray's own error says nothing.
            hint = ". One that asks for a token needs RAY_AUTH_MODE=token here, and its token"
        raise UsageError(f"{where} cannot be used: {one_line(error)[:300]}{hint}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _check_answer(address: str | None) -> None:
    """UsageError where nothing answers: Ray itself would try for five minutes."""
    host, colon, port = (address or "").rpartition("://")[2].rpartition(":")
    if not (host and colon and port.isascii() and port.isdigit()):
        return  # of this machine, or none that Ray takes: it says so at once
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWERS_WITHIN).close()
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"nothing answers at RAY_ADDRESS={address} ({one_line(error)}): name the head of a "
            "cluster, HOST:PORT, or unset it for this machine alone"
        ) from error


class _Driver:
    """Gives the shards to workers, and keeps what they have done."""

    def __init__(self, job: RayJob) -> None:
        self._job = job
        described = dataclasses.asdict(job.description) | {"max_pixels": job.max_pixels}
        del described["dimensions"], described["saved_model"]
        header = {"to": job.address, "of": described}
        # As JSON has them.
        self._journal = Journal(
            job.output / JOURNAL, json.loads(json.dumps(header)), number_of_shards(len(job.files))
        )
        self._held: set[int] = set()

    def run(self) -> RayRun:
        job = self._job
        shards = shards_of(job.files, job.columns, self._journal.shards)
        digests = {shard.number: shard_digest(shard) for shard in shards}
        there = self._there()
        todo = [shard for shard in shards
                if self._journal.done.get(shard.number, {}).get("digest") != digests[shard.number]
                or shard.number not in there]  # fmt: skip
        waiting = sum(len(shard.files) for shard in todo)
        began = start = time.monotonic()
        workers = 0
        if todo:
            with progress_bar(
                "embedding", len(job.files), len(job.files) - waiting, leave=True
            ) as bar:
                pool, workers = self._workers(len(todo))
                began = time.monotonic()
                for done in _results(pool, todo):
                    self._keep(done)
                    self._journal.add(done, digests[done.number])
                    bar.update(done.good + len(done.bad))
        for number in set(self._journal.done) - set(digests):
            del self._journal.done[number]
        lines = self._journal.done.values()
        bad = {path: reason for line in lines for path, reason in line["bad"].items()}
        self._finish(bad)
        good = sum(line["good"] for line in lines)
        if not good:
            path, reason = next(iter(bad.items()))
            raise UsageError(
                f"none of the {len(bad):,} images can be embedded. The first, {path}: {reason}"
            )
        end = time.monotonic()
        return RayRun(good, waiting, bad, workers, began - start, end - began)

    def _workers(self, shards: int) -> tuple[list[Any], int]:
        """Actors that hold the model, and how many they are."""
        job = self._job
        resources = ray.cluster_resources()
        gpus, cores = (int(resources.get(name, 0)) for name in ("GPU", "CPU"))
        count = min(job.workers or gpus or max(1, cores), shards)
        root = job.saved_model
        # Kept, and within a list, for workers that are brought back: what is an argument itself is
        # forgotten when the first ones have begun.
        self._model = ray.put(
            {
                path.relative_to(root).as_posix(): path.read_bytes()
                for path in sorted(root.rglob("*"))
                if path.is_file()
            }
        )
        threads = None if gpus else max(1, cores // count)
        actor = ray.remote(ShardWorker).options(
            num_cpus=0 if gpus else min(1, cores / count), num_gpus=min(1, gpus / count),
            max_restarts=-1, max_task_retries=_RETRIES,
        )  # fmt: skip
        parquet = job.address.place if job.store is None else None
        given = dataclasses.asdict(job.description)
        pool = [
            actor.remote(
                [self._model], job.images, given, parquet, job.max_pixels, job.batch_size, threads
            )
            for _ in range(count)
        ]
        begun, _ = ray.wait([worker.dimensions.remote() for worker in pool], num_returns=1)
        try:
            with _causes():
                dimensions = ray.get(begun[0])
        except ray.exceptions.RayError as error:
            raise RunError(f"no worker begins: {one_line(error)[:300]}") from error
        self._begin(dataclasses.replace(job.description, dimensions=dimensions))
        return pool, count

    def _begin(self, description: Description) -> None:
        store = self._job.store
        if store is None:
            from experiments.searching.file_systems import opened_folder

            opened_folder(self._job.address.place).make()
        elif not self._has_table():
            store.create(description)

    def _has_table(self) -> bool:
        """Whether the store has one with the same columns: of other columns it is made anew."""
        before = None if self._job.store is None else self._job.store.description()
        return before is not None and before.columns == self._job.description.columns

    def _there(self) -> set[int]:
        """Return the numbers of the shards that are written completely."""
        store, count = self._job.store, self._journal.shards
        if store is None:
            from experiments.searching.file_systems import opened_folder

            names = opened_folder(self._job.address.place).names()
            return {number for number in range(count) if part_name(number) in names}
        if not self._has_table():
            return set()
        store.remove_repeated()
        paths = (path for block in store.values(["path"]) for (path,) in block)
        held = collections.Counter(shard_number(path, count) for path in paths)
        self._held = set(held)
        done = self._journal.done.items()
        return {number for number, line in done if held[number] == line["good"]}

    def _keep(self, done: EmbeddedShard) -> None:
        """Write a shard that its worker has not written."""
        if self._job.store is None or done.rows is None or not len(done.rows):
            return
        rows, batch = done.rows, self._job.store.batch
        for start in range(0, len(rows), batch):
            block = rows.taken(range(start, min(start + batch, len(rows))))
            if done.number in self._held:
                self._job.store.upsert(block)
            else:
                self._job.store.append(block)

    def _finish(self, bad: Mapping[str, str]) -> None:
        """Delete what is no image's any more."""
        job, store = self._job, self._job.store
        if store is not None:
            wanted = {item_id(file.path) for file in job.files if file.path not in bad}
            gone = [one for block in store.values(["id"]) for (one,) in block if one not in wanted]
            for start in range(0, len(gone), store.batch):
                store.remove(gone[start : start + store.batch])
            store.finish(sum(line["good"] for line in self._journal.done.values()))
            return
        from experiments.searching.file_systems import opened_folder
        from experiments.searching.parquet_files import finish_parts

        names = {part_name(number) for number in self._journal.done}
        described = {"shards": self._journal.shards, "parts": sorted(names)}
        finish_parts(opened_folder(job.address.place), names, described)


def _results(pool: Sequence[Any], shards: Sequence[Shard]) -> Iterator[EmbeddedShard]:
    """What the workers make of the shards, each once, as they are done with them.

    A worker gets shards when it has begun: of those that a busy cluster has no room for nobody
    waits. A shard whose worker is gone and does not come back goes to an idle one, too.
    """
    left, todo = collections.deque(shards), {shard.number for shard in shards}
    beginning = {worker.dimensions.remote(): worker for worker in pool}
    running: dict[Any, tuple[Any, Shard, float]] = {}
    idle: list[Any] = []

    def is_given(worker: Any) -> bool:
        """Whether there was a shard for a worker."""
        shard = left.popleft() if left else _late(running.values(), todo, worker)
        if shard is not None:
            running[worker.embed.remote(shard)] = worker, shard, time.monotonic()
        return shard is not None

    while todo:
        idle = [worker for worker in idle if not is_given(worker)]
        ready, _ = ray.wait([*running, *beginning], num_returns=1, timeout=_LOOK)
        for one in ready:
            if one in beginning:
                idle += [beginning.pop(one)] * (1 + _AHEAD)
                continue
            worker, shard, _ = running.pop(one)
            idle.append(worker)
            try:
                with _causes():
                    done = ray.get(one)
            except ray.exceptions.RayError as error:
                another = any(other.number == shard.number for _, other, _ in running.values())
                if shard.number in todo and not another:
                    raise _given_up(shard, error) from error
                continue
            if done.number in todo:
                todo.remove(done.number)
                yield done


def _late(running: Iterable[tuple[Any, Shard, float]], todo: set[int], worker: Any) -> Shard | None:
    """A shard that one other worker has had for long, None if there is none."""
    given = [one for one in running if one[1].number in todo]
    times = collections.Counter(shard.number for _, shard, _ in given)
    for other, shard, since in given:
        is_long = time.monotonic() - since > _LATE
        if is_long and times[shard.number] == 1 and other is not worker:
            return shard
    return None


def _given_up(shard: Shard, error: Exception) -> RunError:
    return RunError(
        f"the worker of shard {shard.number} ended {_RETRIES + 1} times, with "
        f"{shard.files[0].path} and {len(shard.files) - 1:,} more images: {one_line(error)[:300]}. "
        "The same command goes on behind what is written"
    )


@contextlib.contextmanager
def _causes() -> Iterator[None]:
    """Within it what was raised in a worker is raised as it was there."""
    try:
        yield
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error
