"""PostgreSQL with the extension vector."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from experiments.searching import store
from keras_dml._common.errors import without_passwords
from keras_dml._common.extras import needing

with needing("pgvector", "a store pgvector:DSN"):
    import pgvector.psycopg
    import psycopg
    from psycopg import sql

_READ = 10_000
_SECONDS = 10
# Follows the description in the comment of the table.
_FINISHED = "\nfinished"
# Operators of the extension. For embeddings of length 1, the inner product is the cosine.
_OPERATORS = {"cosine": "<#>", "l2": "<->"}


class PostgresStore(store.Store):
    """A table of PostgreSQL.

    The place is a DSN: postgresql://USER@HOST/DATABASE or KEY=VALUE words. The environment
    completes it as in libpq, with PGPASSWORD or ~/.pgpass.
    """

    kind = "pgvector"
    batch = 1_000
    errors = (psycopg.Error, OSError)

    def __init__(self, place: str, table: str) -> None:
        super().__init__(place, table)
        self._name = sql.Identifier(table)
        with self.asking(), self._connected():
            pass  # report a missing server now

    def _shown_place(self) -> str:
        with contextlib.suppress(psycopg.Error):
            words = psycopg.conninfo.conninfo_to_dict(self.place)
            known = [f"{name}={value}" for name, value in words.items()]
            return " ".join(word for word in known if without_passwords(word) == word)
        return "DSN"

    @contextlib.contextmanager
    def _connected(self, vectors: bool = False) -> Iterator[Any]:
        """Open a connection that commits at its end."""
        with psycopg.connect(self.place, connect_timeout=_SECONDS) as connection:
            if vectors:
                pgvector.psycopg.register_vector(connection)
            yield connection

    def _stored(self) -> tuple[str, bool] | None:
        with self._connected() as connection:
            comment = self._comment(connection)
        if comment is None:
            return None
        return comment.removesuffix(_FINISHED), comment.endswith(_FINISHED)

    def _comment(self, connection: Any) -> str | None:
        """Return the comment of the table, or None if the table is missing."""
        query = (
            "SELECT coalesce(obj_description(oid, 'pg_class'), '') FROM pg_class "
            "WHERE oid = to_regclass(%s)"
        )
        found = connection.execute(query, [f'"{self.table}"']).fetchone()
        return None if found is None else found[0]

    def _set_comment(self, connection: Any, text: str) -> None:
        connection.execute(self._query("COMMENT ON TABLE {table} IS {comment}", comment=text))

    def _query(self, text: str, **parts: Any) -> sql.Composed:
        return sql.SQL(text).format(table=self._name, **parts)

    def create(self, description: store.Description) -> None:  # noqa: D102
        names = [store.PATH, store.CLASS, store.FOLDER, *description.columns, store.DIGEST]
        text = [sql.SQL("{} text NOT NULL").format(sql.Identifier(name)) for name in names]
        create = (
            'CREATE TABLE {table} (id uuid PRIMARY KEY, {columns}, "vector" vector({d}) NOT NULL)'
        )
        columns = sql.SQL(", ").join(text)
        with self._connected() as connection:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            connection.execute(self._query("DROP TABLE IF EXISTS {table}"))
            connection.execute(self._query(create, columns=columns, d=description.dimensions))
            self._set_comment(connection, description.text())

    def finish(self, images: int) -> None:  # noqa: D102
        with self._connected() as connection:
            # Until the transaction ends, no other process can write to the table or drop it.
            connection.execute(self._query("LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE"))
            count = connection.execute(self._query("SELECT count(*) FROM {table}")).fetchone()[0]
            self._check_count(count, images)
            comment = self._comment(connection) or ""
            if not comment.endswith(_FINISHED):
                self._set_comment(connection, comment + _FINISHED)

    def values(self, names: Sequence[str]) -> Iterator[list[tuple[str, ...]]]:  # noqa: D102
        with self._connected() as connection, connection.cursor("values") as cursor:
            cursor.execute(self._query("SELECT {names} FROM {table}", names=_listed(names)))
            while rows := cursor.fetchmany(_READ):
                yield [tuple(map(str, row)) for row in rows]

    def upsert(self, rows: store.Rows) -> None:  # noqa: D102
        names = [store.ID, *rows.columns, store.VECTOR]
        query = self._query(
            "INSERT INTO {table} ({names}) VALUES ({values}) "
            "ON CONFLICT (id) DO UPDATE SET ({names}) = ROW ({new})",
            names=_listed(names),
            values=sql.SQL(", ").join(sql.Placeholder() * len(names)),
            new=sql.SQL(", ").join(sql.Identifier("excluded", name) for name in names),
        )
        values = list(zip(rows.ids, *rows.columns.values(), rows.vectors))
        with self._connected(vectors=True) as connection, connection.cursor() as cursor:
            cursor.executemany(query, values)

    def remove(self, ids: Sequence[str]) -> None:  # noqa: D102
        query = self._query("DELETE FROM {table} WHERE id = ANY(%s::uuid[])")
        with self._connected() as connection:
            connection.execute(query, [list(ids)])

    def nearest(self, query: store.Vectors, k: int, metric: str, where: store.Where) -> store.Found:  # noqa: D102
        conditions = [sql.SQL("{} = ANY(%s)").format(sql.Identifier(name)) for name in where]
        select = self._query(
            'SELECT path, "vector" FROM {table} WHERE {where} '
            'ORDER BY "vector" {operator} %s LIMIT %s',
            where=sql.SQL(" AND ").join([*conditions, sql.SQL("true")]),
            operator=sql.SQL(_OPERATORS[metric]),
        )
        given = [*map(list, where.values()), query, k]
        with self._connected(vectors=True) as connection:
            # Ignore an approximate index of the user.
            connection.execute("SET LOCAL enable_indexscan = off")
            found = connection.execute(select, given).fetchall()
        vectors = np.array([vector.to_numpy() for _, vector in found], np.float32)
        return [path for path, _ in found], vectors.reshape(len(found), len(query))


def _listed(names: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))
