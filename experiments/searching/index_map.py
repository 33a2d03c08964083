"""The map of an upgraded index folder: of its rows to the new model, or of queries to the old one.

`settings.json` describes the map. Of a map of rows, `mapped.npy` states which rows it gives. A map
of queries is in `query.map`.
"""

from __future__ import annotations

import dataclasses
import pathlib
import shlex
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.options.errors import UsageError
from experiments.options.visible import visible
from experiments.searching.index_folder import MAP_FORM, QUERIES, ROWS
from experiments.searching.upgrade_options import PREFIX
from keras_dml._common.errors import ArgumentError
from keras_dml._files.manifest import Manifest
from keras_dml.upgrade import KINDS, EmbeddingMap, load_map

MAPPED, QUERY_MAP = "mapped.npy", "query.map"


@dataclasses.dataclass(frozen=True)
class IndexMap:
    """The map between the two models of an upgraded index.

    Attributes:
        kind: The kind of the map, such as "affine", or "prefix": the first numbers.
        of: "rows" (from the old model to the new one) or "queries" (from the new model to the old
            one).
        old_model, new_model: Folders of the SavedModels.
        fingerprint: Fingerprint of the new model.
        bad: Reasons why images were left out while rows were embedded again, by path.
        mapped: Which rows are mapped, bool `[n]`. The others are of the new model. None for a map
            of queries.
        of_queries: The map, if it maps queries.
    """

    kind: str
    of: str
    old_model: str
    new_model: str
    fingerprint: str
    bad: Mapping[str, str] = dataclasses.field(default_factory=dict)
    mapped: npt.NDArray[np.bool_] | None = None
    of_queries: EmbeddingMap | None = None

    def space(self, row: int) -> str:
        """Return the origin of a row: "new", "mapped" (to the new model), or "old"."""
        if self.mapped is None:
            return "old"
        return "mapped" if self.mapped[row] else "new"

    @property
    def in_words(self) -> str:
        """The map, for a terminal and a page."""
        old, new = _short(self.old_model), _short(self.new_model)
        if self.kind == PREFIX:
            return f"prefix, the first numbers of queries by {new} in rows by {old}"
        if self.mapped is None:
            return f"{self.kind} map of the queries from {new} to {old}"
        counts = f"{np.count_nonzero(self.mapped):,} of {len(self.mapped):,} images"
        return f"{self.kind} map of {counts} from {old} to {new}"

    def how_to_finish(self, place: object) -> str:
        """Return the command that embeds all images of the index by the new model."""
        words = [f"--index={place}", "--stage=1/1"]
        if self.mapped is None:
            words[1:] = [f"--saved_model={self.new_model}", "--to=again", "--replace"]
        return f"keras-dml upgrade {shlex.join(words)}"

    def no_threshold(self, place: object) -> str:
        """Return the reason why no threshold is applied, and the next step."""
        return (
            "the threshold of a model is not applied to an index of two models, whose similarities "
            f"differ. Embed all images again ({self.how_to_finish(place)}), and then find the "
            f"threshold (keras-dml calibrate {shlex.quote(f'--index={place}')})"
        )

    @property
    def as_json(self) -> dict[str, Any]:
        """The map as JSON values, for the answers of a search."""
        found = {
            "kind": self.kind,
            "of": self.of,
            "old_model": self.old_model,
            "new_model": self.new_model,
        }
        if self.mapped is None:
            return found
        counts = {"mapped": int(np.count_nonzero(self.mapped)), "images": len(self.mapped)}
        return {**found, **counts}

    def write(self, folder: pathlib.Path) -> dict[str, Any]:
        """Write the file of the map into a new folder. Return the value for the settings."""
        name = MAPPED if self.of == ROWS else QUERY_MAP
        if self.of_queries is not None:
            self.of_queries.save(folder / name)
        elif self.mapped is not None:
            np.save(folder / name, self.mapped)
        Manifest(folder).record([name])
        return {name: getattr(self, name) for name in MAP_FORM}


def read_map(folder: pathlib.Path, settings: Mapping[str, Any], rows: int) -> IndexMap | None:
    """Read the map of an index folder. None if the index has no map.

    Args:
        folder: The folder.
        settings: Its settings.
        rows: The number of rows of its index.

    Raises:
        UsageError: The map is missing or damaged.
    """
    if settings.get("map") is None:
        return None
    try:
        found = {name: settings["map"][name] for name in MAP_FORM}
        if found["of"] not in (ROWS, QUERIES):
            raise ArgumentError(f"it maps {visible(found['of'])}")
        if found["kind"] not in (*KINDS, PREFIX):
            raise ArgumentError(f"its kind is {visible(found['kind'])}")
        path = Manifest(folder).check(MAPPED if found["of"] == ROWS else QUERY_MAP)
        if found["of"] == QUERIES:
            return IndexMap(**found, of_queries=load_map(path))
        mapped = np.asarray(np.load(path))
        if mapped.shape != (rows,) or mapped.dtype != bool:
            raise ArgumentError(f"{path} must have {rows:,} values, but got {mapped.shape}")
        return IndexMap(**found, mapped=mapped)
    except OSError:  # another user's file is not damaged
        raise
    except Exception as error:  # NumPy raises any exception for a damaged file
        raise UsageError(
            f"The map of the index in {folder} is damaged: {error}. Delete the folder, and write "
            "it again with keras-dml upgrade"
        ) from error


def _short(model: str) -> str:
    return visible("/".join(pathlib.PurePath(model).parts[-2:]))
