"""Store addresses: `KIND:PLACE#TABLE`."""

from __future__ import annotations

import importlib
import os
import re
from typing import TYPE_CHECKING, NamedTuple

from experiments.options.errors import UsageError

if TYPE_CHECKING:
    from experiments.searching.store import Store

__all__ = [
    "FORMS",
    "KINDS",
    "PARQUET",
    "TABLE",
    "Address",
    "is_address",
    "open_store",
    "parsed_address",
]

PARQUET = "parquet"
# The default table.
TABLE = "images"
# Module, class, and form of the place of each kind.
_STORES = {
    "lancedb": ("experiments.searching.lancedb_store", "LanceStore", "FOLDER"),
    "qdrant": ("experiments.searching.qdrant_store", "QdrantStore", "URL"),
    "pgvector": ("experiments.searching.pgvector_store", "PostgresStore", "DSN"),
}
KINDS = (*_STORES, PARQUET)
FORMS = ", ".join(f"{kind}:{place}" for kind, (_, _, place) in _STORES.items())
"""The forms of store addresses, for help texts."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,47}")


class Address(NamedTuple):
    """The parts of a store address."""

    kind: str
    place: str
    table: str


def is_address(text: str) -> bool:
    """Return whether a text is a store address and not a folder."""
    return text.partition(":")[0] in KINDS and ":" in text


def parsed_address(text: str, name: str) -> Address:
    """Parse a store address.

    Args:
        text: an address such as "lancedb:photos.lance" or "qdrant:http://localhost:6333#shoes".
        name: the name of the argument, for messages.

    Raises:
        UsageError: if the text is not an address.
    """
    kind, _, place = text.partition(":")
    place, hash_sign, table = place.rpartition("#") if "#" in place else (place, "", TABLE)
    has_table = not (kind == PARQUET and hash_sign) and _NAME.fullmatch(table)
    if kind not in KINDS or not place.strip() or not has_table:
        raise UsageError(
            f"{name} must be {FORMS}, or {PARQUET}:FOLDER. #NAME after a store names a table other "
            f"than {TABLE}, with at most 48 letters, digits, and _. Received: {name}={text}"
        )
    return Address(kind, os.path.expanduser(place), table)


def open_store(address: Address) -> Store:
    """Open the store of an address. Does not create a table.

    Raises:
        MissingExtraError: if the store's client is not installed.
        StoreError: if the store does not answer.
        UsageError: for Parquet files, which other programs read.
    """
    if address.kind == PARQUET:
        raise UsageError(
            "index must be lancedb, qdrant, or pgvector, because Parquet files are for other "
            f"programs, but got index={PARQUET}:{address.place}."
        )
    module, name, _ = _STORES[address.kind]
    return getattr(importlib.import_module(module), name)(address.place, address.table)
