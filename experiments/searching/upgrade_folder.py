"""Write an upgraded index folder: mapped, embedded again, or embedded again in stages.

Each function writes a complete folder under a temporary name and renames it. So a killed command
leaves the folder before or after it. The embeddings of a killed command stay in a hidden folder of
the index, and the same command continues from there.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import pathlib
import shlex
import shutil
from collections.abc import Collection, Mapping

import numpy as np

from experiments import typed
from experiments.evaluation.saved_model import ImageEmbedder
from experiments.options.errors import UsageError
from experiments.options.visible import visible
from experiments.searching.columns import COLUMNS
from experiments.searching.folder_embeddings import (
    Rows,
    embed_files,
    embedded_images,
    read_rows,
    write_rows,
)
from experiments.searching.gallery import FolderGallery
from experiments.searching.images import ImageFile, ImageFolder
from experiments.searching.index_building import new_index, search_line
from experiments.searching.index_folder import (
    EMBEDDINGS,
    INDEX,
    QUERIES,
    ROWS,
    SETTINGS,
    SKIPPED,
    Settings,
    locked_folder,
    read_settings,
    stored_place,
    write_settings,
    write_skipped,
)
from experiments.searching.index_map import MAPPED, QUERY_MAP, IndexMap
from experiments.searching.upgrade_options import UPGRADED, Stage
from keras_dml import retrieval
from keras_dml._files.atomic import read_folder, replace_folder, replacing_folder
from keras_dml._files.manifest import MANIFEST, Manifest
from keras_dml.export.load import fingerprint
from keras_dml.upgrade import EmbeddingMap

_WORK = ".upgrade"
# Queries that measure an approximate search. Each is compared with all rows.
_SAMPLE_QUERIES = 200
# The files of an index folder that belong to its rows, and are written again with them.
_OF_ROWS = (INDEX, SETTINGS, EMBEDDINGS, SKIPPED, MAPPED, QUERY_MAP, MANIFEST)


class NewModel:
    """The new model, and how it embeds images.

    Args:
        path: The folder of the SavedModel.
        batch_size: Images per batch.
        max_pixels: The largest number of pixels of an image.

    Attributes:
        path, batch_size, max_pixels: The arguments.
        fingerprint: The fingerprint of its files.

    Raises:
        UsageError: The folder is not a SavedModel.
    """

    def __init__(self, path: pathlib.Path, batch_size: int, max_pixels: int) -> None:
        self.path, self.batch_size, self.max_pixels = path, batch_size, max_pixels
        self.fingerprint = fingerprint(path)

    @functools.cached_property
    def embedder(self) -> ImageEmbedder:
        """The model."""
        return ImageEmbedder(self.path)

    def embed(
        self, known: Rows, work: pathlib.Path, images: ImageFolder, files: list[ImageFile]
    ) -> tuple[Rows, dict[str, str]]:
        """Embed the images that are not in `known`, as `embed_files` does."""
        work.mkdir(parents=True, exist_ok=True)
        return embed_files(
            known,
            work,
            lambda: self.embedder,
            images,
            files,
            batch_size=self.batch_size,
            max_pixels=self.max_pixels,
        )


def work_folder(folder: pathlib.Path, model: NewModel, step: str) -> pathlib.Path:
    """Return the hidden folder in an index that keeps the embeddings of a killed step."""
    return folder / _WORK / model.fingerprint / step


def files_of_index(gallery: FolderGallery, images: ImageFolder) -> list[ImageFile]:
    """List the images in the folder of an index.

    Raises:
        UsageError: The folder has no image of the index.
    """
    files = images.files()
    if set(gallery.paths).isdisjoint(file.path for file in files):
        raise UsageError(
            f"images must be the folder of the index's images, but got {images.place}, which has "
            f"none of them. One is {visible(gallery.paths[0])}."
        )
    return files


def write_mapped(
    gallery: FolderGallery,
    folder: pathlib.Path,
    target: pathlib.Path,
    model: NewModel,
    images: ImageFolder,
    to_new: EmbeddingMap,
    queries: np.ndarray,
) -> str:
    """Write the index with its rows mapped to the new model. Return lines for the terminal.

    Args:
        gallery, folder, target, model, images: The index, both folders, the model, and the images.
        to_new: The map.
        queries: Embeddings by the new model, `[q, d]`. They measure an approximate search.
    """
    settings = _settings(folder, images)
    paths, rows = gallery.paths, gallery.index.embeddings_of(gallery.paths)
    index = new_index(paths, to_new(rows), settings["built"])
    found = IndexMap(
        to_new.kind,
        ROWS,
        str(folder / settings["saved_model"]),
        str(model.path),
        model.fingerprint,
        mapped=np.ones(len(paths), bool),
    )
    _write(folder, target, _of_model(settings, model), index, [COLUMNS, SKIPPED], found)
    line = f"{target}: {found.in_words}"
    if settings["built"]["tree"] or settings["built"]["prefix"]:
        share = found_share(index, queries[:: max(1, len(queries) // _SAMPLE_QUERIES)])
        line += (
            f"\n{100 * share:.1f} % of the 10 nearest rows are found with queries of the new "
            f"model: {search_line(index)} with mapped rows as queries"
        )
    return line


def found_share(index: retrieval.Index, queries: np.ndarray) -> float:
    """Return the share of the 10 nearest rows that an approximate search finds.

    The recall that an index reports is of its rows as queries. Mapped rows vary in fewer directions
    than embeddings of the new model, so that queries of the new model find less.
    """
    k = min(10, index.num_items)
    exact = retrieval.ExactIndex(index.embeddings_of(index.ids), index.metric, index.ids)
    found, _ = index.search(queries, k)
    nearest, _ = exact.search(queries, k)
    return float((nearest[:, :, None] == found[:, None]).any(axis=2).mean())


def write_query_map(
    gallery: FolderGallery,
    folder: pathlib.Path,
    target: pathlib.Path,
    model: NewModel,
    images: ImageFolder,
    to_old: EmbeddingMap,
    kind: str,
) -> str:
    """Write the index with a map of the queries of the new model. Return a line.

    Args:
        gallery, folder, target, model, images: The index, both folders, the model, and the images.
        to_old: The map.
        kind: Its kind, or "prefix".
    """
    settings = _settings(folder, images)
    old = str(folder / settings["saved_model"])
    found = IndexMap(kind, QUERIES, old, str(model.path), model.fingerprint, of_queries=to_old)
    kept = [EMBEDDINGS, SKIPPED, *_other_names(folder)]
    _write(folder, target, settings, gallery.index, kept, found)
    return f"{target}: {found.in_words}"


def prefix_map(source: int, target: int) -> EmbeddingMap:
    """Return the map from embeddings to their first numbers, an orthogonal map without a turn.

    Args:
        source: Length of the embeddings.
        target: Number of the first numbers.
    """
    shapes = (target,), (source, 0), (0,), (0, target)
    empty = [np.zeros(shape, np.float32) for shape in shapes]
    return EmbeddingMap("orthogonal", 0, 0.0, np.eye(source, target, dtype=np.float32), *empty)


def write_again(
    gallery: FolderGallery,
    folder: pathlib.Path,
    target: pathlib.Path,
    model: NewModel,
    images: ImageFolder,
) -> str:
    """Write the index of all images in their folder by the new model. Return a line."""
    settings = _of_model(_settings(folder, images), model)
    files, work = files_of_index(gallery, images), work_folder(folder, model, "again")
    rows, bad = model.embed({}, work, images, files)
    embedded = embedded_images(files, rows, bad)
    index = new_index(embedded.paths, embedded.embeddings, settings["built"])
    rows = {file: rows[file] for file in embedded.files}
    _write(folder, target, settings, index, [COLUMNS], None, rows, images.left_out | bad)
    shutil.rmtree(work)
    return f"{target}: {index.num_items:,} images by {model.path}"


def write_stage(
    gallery: FolderGallery, folder: pathlib.Path, model: NewModel, images: ImageFolder, stage: Stage
) -> str:
    """Embed a share of the images in an index with mapped rows again. Replace the folder.

    The share has every `stage.shares`-th batch of the images in their folder. So the embeddings
    equal the embeddings of `keras-dml index` bit for bit. Images of the share that are missing in
    the index are added. Images that are deleted, or are in the share and cannot be embedded, are
    removed.

    Args:
        gallery: The index.
        folder: Its folder.
        model: The new model.
        images: The images' folder.
        stage: The share.

    Returns:
        A line for the terminal.

    Raises:
        UsageError: The index has no mapped rows, they are mapped to another model, or the folder
            has other images.
    """
    found = gallery.map
    if found is None:
        raise UsageError(
            f"index must have mapped rows for --stage, but got {folder}. --to=map writes such an "
            "index, and after the last stage no row is left to embed."
        )
    if found.mapped is None:
        raise UsageError(
            f"index must have mapped rows for --stage, but got {folder} with the rows of the old "
            f"model. Embed all images again: {found.how_to_finish(folder)}"
        )
    if model.fingerprint != found.fingerprint:
        raise UsageError(
            f"saved_model must be the model of the mapped index, {found.new_model}, but got "
            f"{model.path}."
        )
    settings = _of_model(_settings(folder, images), model)
    files = files_of_index(gallery, images)
    starts = range(0, len(files), model.batch_size)[stage.number - 1 :: stage.shares]
    share = [file for start in starts for file in files[start : start + model.batch_size]]
    known = read_rows(folder)
    # Rows of earlier shares, if the user has deleted a damaged file of embeddings.
    lost = set(itertools.compress(gallery.paths, ~found.mapped)) - {file.path for file in known}
    lost -= {file.path for file in share}
    share += [file for file in files if file.path in lost]
    rows, bad = model.embed(known, work_folder(folder, model, "stage"), images, share)
    in_share = {file.path for file in share}
    bad = {path: why for path, why in found.bad.items() if path not in in_share} | bad
    # Outside of the share, a changed image keeps the row of its earlier version.
    earlier = {file.path: file for file in rows if file.path not in in_share}
    versions = [file if file in rows else earlier.get(file.path) for file in files]
    new = {file: rows[file] for file in versions if file is not None}
    vectors = {file.path: row for file, row in new.items()}
    mapped = set(itertools.compress(gallery.paths, found.mapped)) - in_share - vectors.keys()
    kept = [file.path for file in files if file.path in mapped]
    vectors |= zip(kept, gallery.index.embeddings_of(kept))
    if not vectors:
        raise UsageError(f"images must be images of the index, but got {images.place}.")

    paths = sorted(vectors)  # the order of `files`
    index = new_index(paths, np.stack([vectors[path] for path in paths]), settings["built"])
    is_mapped = np.array([path in mapped for path in paths])
    after = None
    if kept:
        place = str(model.path)
        after = dataclasses.replace(found, mapped=is_mapped, bad=bad, new_model=place)
    others = _other_names(folder)
    _write(folder, folder, settings, index, others, after, new, images.left_out | bad)
    done = f"share {stage.number} of {stage.shares}: {len(paths) - len(kept):,} of {len(paths):,}"
    done += f" images are embedded by {model.path}"
    old = folder.with_name(folder.name.removesuffix(UPGRADED))
    return f"{done}\n{how_to_replace(old)}" if not kept and old != folder else done


def how_to_replace(folder: pathlib.Path) -> str:
    """Return a line with the command that replaces an index by its upgraded index."""
    command = typed(f"keras-dml upgrade {shlex.quote(f'--index={folder}')} --replace")
    return f"the old index stays until you replace it: {command}"


def replace(folder: pathlib.Path, upgraded: pathlib.Path) -> str:
    """Replace an index by its upgraded index, and delete it. Return a line for the terminal.

    Raises:
        UsageError: The upgraded index is missing or damaged, or another process uses it.
    """
    if not read_folder(upgraded, pathlib.Path.is_dir):
        raise UsageError(
            f"replace must come after --to, which writes {upgraded}, but it does not exist, or has "
            f"replaced {folder} already."
        )
    read_folder(upgraded, read_settings)  # refuse another folder before locking it
    with locked_folder(upgraded, "index"):
        FolderGallery(upgraded)  # checks its files before the old index is deleted
        replace_folder(upgraded, folder)
    return f"{folder}: replaced by {upgraded.name}"


def _settings(folder: pathlib.Path, images: ImageFolder) -> Settings:
    """Return the settings of an index, with the place where its images are now."""
    return read_settings(folder) | {"images": stored_place(images.place)}


def _of_model(settings: Settings, model: NewModel) -> Settings:
    return settings | {"saved_model": str(model.path), "fingerprint": model.fingerprint}


def _other_names(folder: pathlib.Path) -> list[str]:
    """Return the names in an index folder that do not belong to its rows, such as columns."""
    names = (path.name for path in folder.iterdir())
    return [name for name in names if name not in _OF_ROWS and not name.startswith(".")]


def _write(
    source: pathlib.Path,
    target: pathlib.Path,
    settings: Settings,
    index: retrieval.Index,
    kept: Collection[str],
    found: IndexMap | None,
    rows: Rows | None = None,
    bad: Mapping[str, str] | None = None,
) -> None:
    """Write an index folder in one rename.

    Args:
        source: The folder that has the kept files.
        target: The folder to write.
        settings: The settings, with any map.
        index: The index.
        kept: Names to copy.
        found: The map, if there is one.
        rows: The content of `embeddings.npz`.
        bad: The content of `skipped.txt`.
    """
    manifest = Manifest(source)
    checksums = manifest.checksums()
    with replacing_folder(target, SETTINGS, "an index") as folder:
        folder.mkdir()
        for name in kept:
            path = source / name
            if path.is_dir():
                shutil.copytree(path, folder / name, symlinks=True)
            elif not path.exists():  # the user has deleted it, for example because it was damaged
                continue
            elif name in checksums:
                shutil.copy2(manifest.check(name, "Put it back, or delete it"), folder / name)
                Manifest(folder).record([name])
            else:  # a link stays a link, as in a folder
                shutil.copy2(path, folder / name, follow_symlinks=False)
        index.save(folder / INDEX)
        if rows:
            write_rows(folder, rows)
        if bad is not None:
            write_skipped(folder / SKIPPED, bad)
        written = {name: value for name, value in settings.items() if name != "map"}
        written["search"] = search_line(index)
        if found is not None:
            written["map"] = found.write(folder)
        write_settings(folder, written)
