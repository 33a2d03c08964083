"""`PostgresStore` with a stand-in for the client, and with a server."""

import contextlib

import numpy as np
import pytest
import stores

from experiments.options.errors import UsageError
from experiments.searching.addresses import Address, open_store
from experiments.searching.store import StoreError

psycopg = pytest.importorskip("psycopg")
pytest.importorskip("pgvector")
DSN = "postgresql://me:secret@there/photos"


class Connection:
    """A stand-in for a connection that records queries and returns prepared answers."""

    def __init__(self):
        self.asked, self.answers = [], []

    def execute(self, query, given=()):
        text = query if isinstance(query, str) else query.as_string(None)
        self.asked.append((text, list(given)))
        return self

    executemany = execute

    def fetchone(self):
        return self.answers.pop(0)

    fetchall = fetchone

    def fetchmany(self, count):
        return self.answers.pop(0)

    @contextlib.contextmanager
    def cursor(self, *name):
        yield self

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


@pytest.fixture
def connection(monkeypatch):
    made = Connection()
    monkeypatch.setattr("psycopg.connect", lambda dsn, **more: made)
    monkeypatch.setattr("pgvector.psycopg.register_vector", lambda connection: None)
    return made


def test_queries(connection):
    store = open_store(Address("pgvector", DSN, "images"))
    assert "secret" not in str(store) and "there" in str(store)
    connection.answers = [None]
    assert store.description() is None
    store.create(stores.description(["Price (€)"]))
    extension, _, create, comment = (text for text, _ in connection.asked[-4:])
    assert extension == "CREATE EXTENSION IF NOT EXISTS vector"
    assert create == (
        'CREATE TABLE "images" ("id" uuid PRIMARY KEY, "path" text NOT NULL, "class" text NOT NULL,'
        ' "folder" text NOT NULL, "Price (€)" text NOT NULL, "digest" text NOT NULL, '
        '"vector" vector(6) NOT NULL)'
    )
    text = stores.description(["Price (€)"]).text()
    assert comment.startswith('COMMENT ON TABLE "images" IS ') and "Price" in comment
    connection.answers = [(text,), (text,), (f"{text}\nfinished",), ("theirs",)]
    assert store.description() == stores.description(["Price (€)"])
    assert not store.is_finished() and store.is_finished()
    with pytest.raises(UsageError, match="holds something else"):
        store.description()

    rows = stores.rows()
    store.upsert(rows)
    query, given = connection.asked[-1]
    assert query.startswith('INSERT INTO "images" ("id", "path", "class", "folder", "brand", "dig')
    assert ' ON CONFLICT ("id") DO UPDATE SET "path" = EXCLUDED."path"' in query
    assert len(given) == 24 and given[0][0] == rows.ids[0]
    np.testing.assert_array_equal(given[5][-1], rows.vectors[5])

    from pgvector import Vector

    connection.answers = [[("a/1.png", Vector(rows.vectors[1]))]]
    found, vectors = store.nearest(rows.vectors[1], 3, "l2", {"class": ["it's"]})
    assert connection.asked[-2][0] == "SET LOCAL enable_indexscan = off"
    assert connection.asked[-1][0] == (
        'SELECT "path", "vector" FROM "images" WHERE "class" = ANY(%s) ORDER BY "vector" <-> %s '
        "LIMIT %s"
    )
    assert connection.asked[-1][1][::2] == [["it's"], 3] and found == ["a/1.png"]
    np.testing.assert_array_equal(vectors, rows.vectors[1:2])


def test_a_missing_server():
    with pytest.raises(StoreError, match="cannot be used: .*refused") as caught:
        open_store(Address("pgvector", DSN.replace("there", "127.0.0.1:1"), "images"))
    assert "secret" not in str(caught.value)


@pytest.fixture
def dsn(postgres):
    """Address of an empty database on a running server."""
    return postgres.new_database()


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("metric", ["cosine", "l2"])
def test_a_third_party_approximate_index_is_not_used(metric, dsn):
    operators = {"cosine": "vector_ip_ops", "l2": "vector_l2_ops"}[metric]
    store = open_store(Address("pgvector", dsn, "It's"))
    rows = stores.rows([f"{number}.png" for number in range(3_000)], metric=metric)
    store.create(stores.description(metric=metric))
    store.upsert(rows)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f'CREATE INDEX ON "It\'s" USING hnsw ("vector" {operators})')
        connection.execute("SET hnsw.ef_search = 10")
        connection.execute("ANALYZE")
    far = rows.vectors @ rows.vectors[:20].T
    if metric == "l2":
        far = -np.linalg.norm(rows.vectors[:, None] - rows.vectors[None, :20], axis=2)
    for number in range(20):
        found, vectors = store.nearest(rows.vectors[number], 100, metric, {})
        best = np.sort(far[:, number])[-100:]
        places = [int(path.removesuffix(".png")) for path in found]
        np.testing.assert_allclose(np.sort(far[places, number]), best, rtol=1e-5)
        np.testing.assert_array_equal(vectors, rows.vectors[places])


@pytest.mark.slow
@pytest.mark.thorough
def test_errors_of_the_server_are_one_line(dsn):
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute('CREATE TABLE "theirs" (x integer)')
        connection.execute("CREATE ROLE guest LOGIN")
    with pytest.raises(UsageError, match="holds something else"):
        open_store(Address("pgvector", dsn, "theirs")).description()
    guest = open_store(Address("pgvector", dsn.replace("user=me", "user=guest"), "images"))
    with pytest.raises(StoreError, match="permission denied") as caught:
        guest.create(stores.description())
    assert "\n" not in str(caught.value)
    store = open_store(Address("pgvector", dsn, "images"))
    store.create(stores.description())
    rows = stores.rows()
    shorter = stores.made_rows(rows.columns["path"], rows.vectors[:, :5], {"brand": [""] * 24})
    for wrong, said in ((shorter, "expected 6 dimensions"), (stores.rows(brand="\0"), "NUL")):
        with pytest.raises(StoreError, match=said) as caught:
            store.upsert(wrong)
        assert "\n" not in str(caught.value)
    assert not [row for block in store.values(["id"]) for row in block]
