"""`PostgresStore` with a stand-in for the client, and with a server."""

import numpy as np
import pytest
import stores

from experiments.options.errors import UsageError
from experiments.searching.addresses import Address, open_store
from experiments.searching.store import StoreError

psycopg = pytest.importorskip("psycopg")
pytest.importorskip("pgvector")
DSN = "postgresql://me:secret@there/photos"


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
    with pytest.raises(StoreError, match="permission denied") as caught, guest.asking():
        guest.create(stores.description())
    assert "\n" not in str(caught.value)
    store = open_store(Address("pgvector", dsn, "images"))
    store.create(stores.description())
    rows = stores.rows()
    shorter = stores.made_rows(rows.columns["path"], rows.vectors[:, :5], {"brand": [""] * 24})
    for wrong, said in ((shorter, "expected 6 dimensions"), (stores.rows(brand="\0"), "NUL")):
        with pytest.raises(StoreError, match=said) as caught, store.asking():
            store.upsert(wrong)
        assert "\n" not in str(caught.value)
    assert not [row for block in store.values(["id"]) for row in block]
