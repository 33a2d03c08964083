"""`KIND:PLACE#TABLE`: which store, where it is, and what the images are called there."""

from __future__ import annotations

import importlib
import os
import re
from typing import TYPE_CHECKING, NamedTuple

from experiments.options.errors import UsageError

if TYPE_CHECKING:
    from experiments.searching.store import Store

__all__ = ["KINDS", "PARQUET", "TABLE", "Address", "is_address", "open_store", "parsed_address"]

PARQUET = "parquet"
# What the images are called where nobody says otherwise.
TABLE = "images"
# By kind: module, class and what its place is called.
_STORES = {
    "lancedb": ("experiments.searching.lancedb_store", "LanceStore", "FOLDER"),
    "qdrant": ("experiments.searching.qdrant_store", "QdrantStore", "URL_or_FOLDER"),
    "pgvector": ("experiments.searching.pgvector_store", "PostgresStore", "DSN"),
}
KINDS = (*_STORES, PARQUET)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,47}")


class Address(NamedTuple):
    """The parts of an address."""

    kind: str
    place: str
    table: str


def is_address(text: str) -> bool:
    """Whether a text names a store, and not a folder."""
    return text.partition(":")[0] in KINDS and ":" in text


def parsed_address(text: str, name: str) -> Address:
    """The parts of an address.

    Args:
        text: such as "lancedb:photos.lance" or "qdrant:http://localhost:6333#shoes".
        name: what it was given as, for messages.

    Raises:
        UsageError: it is none.
    """
    kind, _, place = text.partition(":")
    place, hash_sign, table = place.rpartition("#") if "#" in place else (place, "", TABLE)
    if kind not in KINDS or not place.strip():
        forms = [f"{one}:{what}" for one, (_, _, what) in _STORES.items()]
        raise UsageError(
            f"{name} must be {', '.join(forms)} or {PARQUET}:FOLDER, with #NAME behind it for "
            f"another table than {TABLE}. Received: {name}={text}"
        )
    if kind == PARQUET and hash_sign:
        raise UsageError(f"{name}={PARQUET}:FOLDER has no table. Received: {name}={text}")
    if not _NAME.fullmatch(table):
        raise UsageError(
            f"{name} must have a table's name of letters, digits and _ behind #, at most 48 that "
            f"begin with no digit. Received: {name}={text}"
        )
    return Address(kind, os.path.expanduser(place), table)


def open_store(address: Address) -> Store:
    """The store of an address; no table is made yet.

    Raises:
        MissingExtraError: its client is not installed.
        StoreError: it does not answer.
        UsageError: Parquet files, which are read by others.
    """
    if address.kind == PARQUET:
        raise UsageError(
            "Parquet files are for other programs to read; a search reads lancedb, qdrant or "
            f"pgvector. Received: {PARQUET}:{address.place}"
        )
    module, name, _ = _STORES[address.kind]
    return getattr(importlib.import_module(module), name)(address.place, address.table)
