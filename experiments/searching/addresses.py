"""Store addresses: `KIND:PLACE#TABLE`."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
from typing import NamedTuple

from experiments.options.errors import UsageError
from experiments.options.held_folder import held_beside

PARQUET, _FOLDER = "parquet", "FOLDER"
# The default table.
TABLE = "images"
STORES = {
    "lancedb": ("lancedb_store", "LanceStore", _FOLDER),
    "qdrant": ("qdrant_store", "QdrantStore", "URL"),
    "pgvector": ("pgvector_store", "PostgresStore", "DSN"),
    PARQUET: ("parquet_files", "ParquetFiles", _FOLDER),
}
"""Module, class, and form of the place of each kind."""
FORMS = ", ".join(f"{kind}:{place}" for kind, (_, _, place) in STORES.items())
SEARCHED_FORMS = FORMS.replace(f", {PARQUET}:{_FOLDER}", "")
"""The forms of an address, and of the stores that a search reads, for a message or a help."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,47}")


class Address(NamedTuple):
    """The parts of a store address."""

    kind: str
    place: str
    table: str


def is_address(text: str) -> bool:
    """Return whether a text is a store address and not a folder."""
    return text.partition(":")[0] in STORES and ":" in text


def parsed_address(text: str, name: str) -> Address:
    """Parse a store address.

    Args:
        text: An address such as "lancedb:photos.lance" or "qdrant:http://localhost:6333#shoes".
        name: The name of the argument, "to" or "index".

    Raises:
        UsageError: The text is not an address, or names Parquet files, which only `to` can.
    """
    kind, _, place = text.partition(":")
    place, hash_sign, table = place.rpartition("#") if "#" in place else (place, "", TABLE)
    has_table = not (kind == PARQUET and hash_sign) and _NAME.fullmatch(table)
    if kind not in STORES or not place.strip() or not has_table:
        raise UsageError(
            f"{name} must be one of {FORMS}, but got {text}. #NAME after a store names a table "
            f"other than {TABLE}, with at most 48 letters, digits, and _."
        )
    if kind == PARQUET and name == "index":
        raise UsageError(
            f"index must be one of {SEARCHED_FORMS}, but got {text}. Parquet files are for other "
            "programs."
        )
    return Address(kind, os.path.expanduser(place), table)


def locked_store(address: Address) -> contextlib.AbstractContextManager[object]:
    """Return a context that locks a store in a local folder. Servers have their transactions.

    Raises:
        UsageError: Another process has the lock.
    """
    *_, place = STORES[address.kind]
    if place != _FOLDER or "://" in address.place:
        return contextlib.nullcontext()
    pathlib.Path(address.place).parent.mkdir(parents=True, exist_ok=True)
    return held_beside(pathlib.Path(address.place), "to", f"{address.kind}:{address.place}")
