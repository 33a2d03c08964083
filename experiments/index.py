"""`python -m experiments.index --images=FOLDER --output=INDEX`: make a folder searchable."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import shutil
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from experiments.options import (
    UsageError,
    option,
    parse,
    registries,
    run_command,
)
from experiments.options.run_options import ImageLimitOptions
from experiments.options.values import absolute, absolute_place
from experiments.searching.addresses import Address, parsed_address
from experiments.searching.index_settings import (
    EMBEDDINGS,
    INDEX,
    SETTINGS,
    SKIPPED,
    Settings,
    how_to_search,
    open_folder,
    write_settings,
)

if TYPE_CHECKING:
    import numpy as np

    from experiments.searching.folder_embeddings import Embedded
    from experiments.searching.image_files import ImageFile
    from experiments.searching.store_update import StoreTarget
    from keras_dml._common.types import Metric
    from keras_dml.retrieval import Index, TreeAH

# Up to so many items an exact search takes some ten milliseconds and has nothing to tune.
EXACT_ITEMS = 100_000
# Of the true nearest, the share that a tree must find unless told otherwise.
TARGET_RECALL = 0.95

_WHAT, _HOW = "What", "How a query is answered"
_METRICS = registries.words("keras_dml._common.types", "METRICS")
_REORDER_DTYPES = registries.words("keras_dml.retrieval.tree", "REORDER_DTYPES")


@dataclasses.dataclass(frozen=True, kw_only=True)
class IndexOptions(ImageLimitOptions):
    """Which images, by which model, and how they are searched."""

    command = "experiments.index"
    intro = f"""Embed all images of a folder and build an index, to find images by an image.

  python -m experiments.index --saved_model=RUN/saved_model --images=FOLDER --output=INDEX
  python -m experiments.search --index=INDEX --query=photo.jpg      or --serve

All images in FOLDER and below are taken. Those that cannot be read, or have more than --max_pixels,
are skipped and listed in INDEX/{SKIPPED}: name, tab, reason (a name with control characters is
a JSON string). A killed command continues where it stopped when it runs again. Later runs embed new
and changed images (by size or time of change), drop deleted ones, and print how many of each.

Up to {EXACT_ITEMS:,} images a query is compared with all of them; beyond that, ScaNN's tree and
asymmetric hashing find almost the same neighbours in less time.

A search can be limited to a class, which is an image's folder, to a folder, and to what --columns
says: python -m experiments.search --where=class=Milk.

--to=lancedb:FOLDER | qdrant:URL_or_FOLDER | pgvector:DSN | parquet:FOLDER puts the images into a
store beside that: id, path, class, folder, columns and embedding of each. The same command brings
it up to date; experiments.search --index=lancedb:FOLDER searches there.

INDEX holds {INDEX}/, {SETTINGS} (which model, which images), {SKIPPED}, and {EMBEDDINGS}
(`embeddings` float32 [n, d], `paths` [n]) for numpy.load. Images and model stay where they are.
"""

    saved_model: pathlib.Path | None = option(
        None,
        _WHAT,
        "What embeds the images: a SavedModel, as a run leaves it behind. It is code that runs "
        "with your rights: only of those you trust.",
    )
    images: str | None = option(
        None, _WHAT, "Their folder; with --engine=ray also s3://BUCKET/FOLDER, gs://… and the like."
    )
    output: pathlib.Path | None = option(None, _WHAT, "Where to.")
    columns: pathlib.Path | None = option(
        None,
        _WHAT,
        "A CSV with what is known of the images, to search by: a row an image, its path from "
        "FOLDER in the column `path` or the first. Kept in OUTPUT until another is given.",
    )
    class_column: str | None = option(
        None,
        _WHAT,
        "columns: which of them is the class. Default: `class`, and the images' folders where "
        "there is none or it is empty.",
    )
    to: str | None = option(
        None,
        _WHAT,
        "A store that gets the images, too: lancedb:FOLDER, qdrant:URL_or_FOLDER, pgvector:DSN or "
        "parquet:FOLDER; #NAME behind it names another table than `images`. A server's password or "
        "key comes from where its client looks for it (PGPASSWORD, QDRANT_API_KEY).",
    )
    batch_size: int = option(64, _WHAT, "Images embedded at once.", lower_bound=1)
    engine: str = option(
        "local",
        _WHAT,
        "local: in this process. ray: by many workers at once, on the cluster of RAY_ADDRESS or on "
        "this machine, into --to alone: OUTPUT gets no index, but the list of what is done and of "
        "what is skipped.",
        choices=("local", "ray"),
    )
    workers: int | None = option(
        None,
        _WHAT,
        "engine: how many. Default: one for each GPU, or for each core where there are none.",
        lower_bound=1,
    )
    metric: str = option("cosine", _HOW, "What is near.", choices=_METRICS)
    approximate: bool | None = option(
        None,
        _HOW,
        "With tree and hashing (from 20,000 images on), or (--noapproximate) exactly, whatever the "
        "number. Each of the next six means the former.",
    )
    target_recall: float | None = option(
        None,
        _HOW,
        "The share of the true nearest to find: how many leaves that takes is tried on a sample. "
        f"Default: {TARGET_RECALL}.",
    )
    num_leaves: int | None = option(None, _HOW, "Leaves of the tree.")
    leaves_to_search: int | None = option(None, _HOW, "How many of the leaves a query looks into.")
    reorder: int | None = option(
        None, _HOW, "How many of the nearest by hashing are compared again exactly."
    )
    soar_lambda: float | None = option(
        None,
        _HOW,
        "Put each image into two leaves, which differ by so much (SOAR, 1 to 1.5; cosine alone): "
        "fewer leaves to search, for more memory. New images mean that the tree is trained again.",
    )
    reorder_dtype: str | None = option(
        None,
        _HOW,
        "The numbers that are compared again: bfloat16 and int8 take a half or a quarter of the "
        "memory. Default: float32.",
        choices=_REORDER_DTYPES,
    )
    prefix: int | None = option(
        None,
        _HOW,
        "Compare the first so many numbers of an embedding with all images, then all numbers with "
        "the nearest: for models that were trained with --matryoshka.",
        lower_bound=1,
    )
    candidates: int = option(200, _HOW, "prefix: how many are compared again.", lower_bound=1)


_REQUIRED = ("saved_model", "images", "output")
_OF_THE_TREE = (
    "target_recall", "num_leaves", "leaves_to_search", "reorder", "soar_lambda", "reorder_dtype",
)  # fmt: skip


def main(argv: list[str]) -> None:
    """List, embed, build, save."""
    start = time.monotonic()
    options = parse(IndexOptions, argv)
    asked = _asked_of_the_tree(options)
    saved_model, output = (getattr(options, name) for name in ("saved_model", "output"))
    images = _place(options)
    address = None if options.to is None else parsed_address(options.to, "to")
    if options.engine == "ray" and address is not None:
        _by_ray(options, address)
        return
    from experiments.embedding.saved_model import fingerprint
    from experiments.searching.image_files import list_images

    files = list_images(images)
    with contextlib.ExitStack() as stack:
        target = None
        if address is not None:  # refused before anything is embedded
            from experiments.searching.store_update import StoreTarget

            target = StoreTarget(address)
            stack.enter_context(target.held())
            target.check(fingerprint(saved_model), images, options.metric)
        tree = None if asked is None else _tree(asked)
        settings = stack.enter_context(
            open_folder(output, saved_model, fingerprint(saved_model), images)
        )
        embedded = _update(options, settings, files, tree, start)
        if target is not None:
            print(_to_store(options, settings, embedded, target))


def _update(
    options: IndexOptions,
    settings: Settings,
    files: list[ImageFile],
    tree: TreeAH | None,
    start: float,
) -> Embedded:
    """Bring the opened folder up to date with the images, and say so."""
    saved_model, output = (getattr(options, name) for name in ("saved_model", "output"))
    images = pathlib.Path(_place(options))
    from experiments.embedding.saved_model import ImageEmbedder
    from experiments.searching.folder_embeddings import FolderEmbeddings, digest
    from experiments.searching.index_changes import changed_index, changes_since
    from keras_dml.retrieval import build_index, scann_loads

    known = _import_columns(options, files)
    folder = FolderEmbeddings(output, images, settings["fingerprint"], options.max_pixels)
    embedded, bad = folder.update(files, lambda: ImageEmbedder(saved_model), options.batch_size)
    _write_skipped(output / SKIPPED, bad)
    exactly = options.approximate is not None or options.prefix is not None
    if tree is None and not exactly and len(embedded.files) > EXACT_ITEMS:
        tree = _tree({})
    if tree is not None and not scann_loads():
        tree = None  # so that the same command builds it once ScaNN is installed
    built = {
        "images": digest(embedded.files),
        "metric": options.metric,
        "tree": tree and dataclasses.asdict(tree),
    }
    prefix = options.prefix and {"length": options.prefix, "candidates": options.candidates}
    if prefix:  # only then, so that an index from before is not built again
        built |= {"prefix": prefix}
    paths = [file.path for file in embedded.files]
    index = _loaded(output / INDEX)
    changes = changes_since(index, paths, embedded.embeddings)
    if settings["built"] != built or index is None or changes:
        asked = dict(settings["built"] or {}) | {"images": built["images"]}
        updated = None
        if asked == built:  # the same kind of index
            goal = None if tree is None else tree.target_recall
            updated = changed_index(index, changes, paths, embedded.embeddings, goal)
        metric = cast("Metric", options.metric)
        if updated is None:
            updated = (
                _prefix_index(embedded.embeddings, metric, paths, prefix)
                if prefix
                else build_index(embedded.embeddings, metric, paths, tree)
            )
        _save(updated, output / INDEX)
        settings |= {"built": built, "search": _how_searched(updated)}
        write_settings(output, settings)
    seconds = time.monotonic() - start
    print(f"{output}: {len(paths):,} images, {seconds:.1f} s: {changes}")
    print(settings["search"])
    for line in known:
        print(line)
    if bad:
        print(f"skipped {len(bad):,} files that cannot be embedded: {output / SKIPPED}")
    print(how_to_search(output))
    return embedded


def _to_store(
    options: IndexOptions, settings: Settings, embedded: Embedded, target: StoreTarget
) -> str:
    """Bring the store up to date; what is to be said of it."""
    from experiments.searching.columns import read_columns
    from experiments.searching.store import Description
    from experiments.searching.store_update import rows_to_store
    from keras_dml.retrieval.rows import prepared_rows

    output = cast("pathlib.Path", options.output)
    paths = [file.path for file in embedded.files]
    columns = read_columns(output, paths)
    metric = cast("Metric", options.metric)
    rows = rows_to_store(paths, prepared_rows(embedded.embeddings, "embeddings", metric), columns)
    described = Description(
        metric=metric,
        dimensions=rows.vectors.shape[1],
        saved_model=settings["saved_model"],
        fingerprint=settings["fingerprint"],
        images=_place(options),
        columns=tuple(columns.own_names),
    )
    return target.write(described, rows)


def _import_columns(options: IndexOptions, files: list[ImageFile]) -> list[str]:
    """Keep the columns that are given; what is to be said of them, in lines."""
    if options.columns is None:
        return []
    from experiments.searching.columns import import_csv
    from pipelines.visible import visible

    output, images = cast("pathlib.Path", options.output), pathlib.Path(_place(options))
    paths = [file.path for file in files]
    lines = import_csv(output, options.columns, options.class_column, images, paths)
    return list(map(visible, lines))


def _asked_of_the_tree(options: IndexOptions) -> dict[str, Any] | None:
    """What is asked of the tree: None for no tree, as far as is known."""
    missing = [f"--{name}=FOLDER" for name in _REQUIRED if not getattr(options, name)]
    if missing:
        raise UsageError(f"give {', '.join(missing)}")
    if options.class_column is not None and options.columns is None:
        raise UsageError(
            "class_column names a column of --columns=FILE.csv. Received: --class_column="
            f"{options.class_column} without it"
        )
    tree = {name: getattr(options, name) for name in _OF_THE_TREE}
    tree = {name: value for name, value in tree.items() if value is not None}
    if options.prefix is None and "candidates" in options.on_command_line:
        raise UsageError(
            f"candidates is how many --prefix compares again. Received: --candidates="
            f"{options.candidates} without --prefix"
        )
    if options.prefix is not None and (tree or options.approximate is not None):
        given = next(iter(tree), "approximate")
        raise UsageError(
            "prefix is a way of its own to answer a query, without a tree. "
            f"Received: --prefix={options.prefix} beside --{given}"
        )
    _check_engine(options, tree)
    if tree and options.approximate is False:
        raise UsageError(f"--noapproximate has no tree: leave out --{next(iter(tree))}")
    return tree if tree or options.approximate else None


def _check_engine(options: IndexOptions, tree: Mapping[str, Any]) -> None:
    """Refuse flags that do not go with the engine, or need one."""
    if options.engine == "local":
        if options.workers is not None:
            raise UsageError(f"leave out --workers={options.workers}, which is for --engine=ray")
        if "://" in (options.images or ""):
            raise UsageError(
                f"images must be a folder; --engine=ray reads others. "
                f"Received: images={options.images}"
            )
        return
    if options.to is None:
        raise UsageError(
            "--engine=ray makes no index: give --to=lancedb:FOLDER or parquet:FOLDER (or another)"
        )
    if tree or options.approximate is not None or options.prefix is not None:
        given = next(iter(tree), "approximate" if options.prefix is None else "prefix")
        raise UsageError(f"leave out --{given}: --engine=ray makes no index, it fills --to")


def _place(options: IndexOptions) -> str:
    """Of the images: a whole path, or a URI."""
    return absolute_place(options.images or "")


def _by_ray(options: IndexOptions, address: Address) -> None:
    """Embed by many workers, into a store."""
    from experiments.embedding.saved_model import fingerprint
    from experiments.searching.columns import read_columns
    from experiments.searching.image_batch import unusable_name
    from experiments.searching.ray_engine import RayJob, embed_by_ray
    from experiments.searching.ray_listing import list_anywhere
    from experiments.searching.store import Description
    from experiments.searching.store_update import StoreTarget, columns_to_store

    saved_model = cast("pathlib.Path", options.saved_model)
    output = cast("pathlib.Path", options.output)
    images, model = _place(options), fingerprint(saved_model)
    if "://" not in address.place and address.kind != "pgvector":
        # Workers have folders of their own.
        address = address._replace(place=str(absolute(address.place)))
    target = StoreTarget(address, by_many=True)
    with contextlib.ExitStack() as stack:
        stack.enter_context(target.held())
        target.check(model, images, options.metric)
        files = list_anywhere(images)
        settings = stack.enter_context(open_folder(output, saved_model, model, images))
        known = _import_columns(options, files)
        unusable = {file.path: why for file in files if (why := unusable_name(file.path))}
        files = [file for file in files if file.path not in unusable]
        if not files:
            raise UsageError(f"none of the names of the {len(unusable):,} images is UTF-8")
        columns = read_columns(output, [file.path for file in files])
        job = RayJob(
            saved_model=saved_model,
            images=images,
            files=files,
            columns=columns_to_store(columns),
            description=Description(
                metric=options.metric,
                dimensions=0,
                saved_model=str(saved_model),
                fingerprint=model,
                images=images,
                columns=tuple(columns.own_names),
            ),
            address=address,
            store=target.store,
            output=output,
            max_pixels=options.max_pixels,
            batch_size=options.batch_size,
            workers=options.workers,
        )
        done = embed_by_ray(job)
        bad = done.bad | unusable
        _write_skipped(output / SKIPPED, bad)
        write_settings(output, settings | {"store": str(target)})
    rate = done.embedded / max(done.seconds, 1e-9)
    print(
        f"{target}: {done.good:,} images; {done.embedded:,} embedded in {done.seconds:.1f} s, "
        f"{rate:,.0f} a second, by {done.workers} workers, which began in {done.beginning:.1f} s"
    )
    for line in known:
        print(line)
    if bad:
        print(f"skipped {len(bad):,} files that cannot be embedded: {output / SKIPPED}")
    if target.store is not None:
        print(how_to_search(target, images))
        target.store.close()


def _tree(given: Mapping[str, Any]) -> TreeAH:
    from keras_dml.retrieval import TreeAH

    if "leaves_to_search" not in given:
        given = {"target_recall": TARGET_RECALL, **given}
    return TreeAH(**given)


def _prefix_index(
    embeddings: np.ndarray, metric: Metric, paths: list[str], prefix: Mapping[str, int]
) -> Index:
    from keras_dml.retrieval import PrefixIndex

    dimensions = embeddings.shape[1]
    if prefix["length"] >= dimensions:
        raise UsageError(
            f"prefix must be less than the {dimensions} dimensions of the model's embeddings. "
            f"Received: prefix={prefix['length']}"
        )
    return PrefixIndex(embeddings, metric, paths, **prefix)


def _loaded(path: pathlib.Path) -> Index | None:
    """The index of before; None where it is damaged, or gone."""
    from keras_dml._common.errors import ArgumentError
    from keras_dml.retrieval import load_index

    try:
        return load_index(path)
    except ArgumentError:
        return None


def _save(index: Index, path: pathlib.Path) -> None:
    from keras_dml._common.errors import ArgumentError

    try:
        index.save(path)
    except ArgumentError:  # what is there is so damaged that it is not known as an index any more
        shutil.rmtree(path)
        index.save(path)


def _how_searched(index: Index) -> str:
    from keras_dml.retrieval import PrefixIndex

    if isinstance(index, PrefixIndex):
        return (
            f"a search compares {index.length:,} of {index.dimensions:,} numbers, then all of them "
            f"with the {index.candidates:,} nearest, and finds {100 * index.measured_recall:.1f} % "
            "of the 10 nearest"
        )
    # The index without ScaNN has neither.
    tree, recall = getattr(index, "tree", None), getattr(index, "measured_recall", None)
    if tree is None or recall is None:
        return "exact search"
    return (
        f"a search looks into {tree.leaves_to_search:,} of {tree.num_leaves:,} leaves and finds "
        f"{100 * recall:.1f} % of the 10 nearest"
    )


def _write_skipped(path: pathlib.Path, bad: Mapping[str, str]) -> None:
    """Write one line for each bad image (see `bad_image_line`); without any, remove the file."""
    if not bad:
        path.unlink(missing_ok=True)
        return
    from experiments.options.data import bad_image_line
    from keras_dml._files.atomic import replacing

    with replacing(path) as temporary:
        lines = [f"{bad_image_line(name, reason)}\n" for name, reason in sorted(bad.items())]
        temporary.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(run_command(main, goes_on="the same command goes on where it stopped"))
