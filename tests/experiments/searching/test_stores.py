"""Third-party vector stores return the stored rows and the same neighbors as `ExactIndex`."""

import sys
from unittest import mock

import numpy as np
import pytest
import stores
import tiers
from stores import PATHS, WITH_POSTGRES

from experiments.options.errors import UsageError
from experiments.searching import gallery as galleries
from experiments.searching.addresses import (
    Address,
    is_address,
    locked_store,
    parsed_address,
)
from experiments.searching.gallery import StoreGallery
from experiments.searching.index_folder import how_to_search, opened_settings, write_settings
from experiments.searching.store import (
    StoreError,
    check_columns,
    check_store,
    item_id,
    open_store,
)
from keras_dml._common.extras import MissingExtraError
from keras_dml.retrieval import ExactIndex


@pytest.fixture(params=["memory", "lancedb", "qdrant", WITH_POSTGRES])
def opened(request, place_of):
    """A function that opens the same store at each call."""
    if request.param == "memory":
        store = stores.MemoryStore()
        return lambda: store
    address, before = Address(request.param, place_of(request.param), "images"), []

    def open_again():
        while before:
            before.pop().close()
        before.append(open_store(address))
        return before[0]

    return open_again


def test_messages_have_no_password(monkeypatch):
    store = stores.MemoryStore()
    store.place = "http://me:secret@host"
    assert str(store) == "memory:http://…@host"
    monkeypatch.setattr(store, "_stored", mock.Mock(side_effect=OSError("of http://a:secret@b")))
    with pytest.raises(StoreError, match=r"^memory:http://…@host cannot be used: of http://…@b$"):
        store.description()
    line = how_to_search(store, "s3://KEY:secret@bucket")
    assert "--images=s3://…@bucket" in line and "secret" not in line


def test_settings_and_stores_have_no_password(tmp_path):
    address, model = "s3://KEY:secret@bucket/photos?session_token=secret", tmp_path / "model"
    settings = opened_settings(tmp_path, model, "a", address)
    assert "secret" not in (tmp_path / "settings.json").read_text()
    # A version before 0.3 stored the password.
    write_settings(tmp_path, {**settings, "images": address})
    assert opened_settings(tmp_path, model, "a", address)["images"].startswith("s3://…@bucket/")
    assert "secret" not in (tmp_path / "settings.json").read_text()
    with pytest.raises(UsageError, match="images must be s3://…@bucket/photos"):
        opened_settings(tmp_path, model, "a", "s3://KEY:secret@other")
    store = stores.MemoryStore()
    store.write(stores.description(images=settings["images"]), stores.rows())
    check_store(store, stores.description().fingerprint, address, "cosine")
    # In the name of a folder, the words are no password.
    folder = str(tmp_path / "token=1")
    (tmp_path / "new").mkdir()
    assert opened_settings(tmp_path / "new", model, "a", folder)["images"] == folder


def expected(rows, query, k, metric, allowed):
    """Return paths and scores from `ExactIndex`."""
    # In the order of `StoreGallery`: by path.
    order = np.argsort(rows.columns["path"])
    paths = [rows.columns["path"][place] for place in order]
    index = ExactIndex(galleries.Items(rows.vectors[order], paths), metric)
    ids, scores = index.search(query[None], k, allowed)
    return ids[0].tolist(), scores[0].tolist()


@pytest.mark.parametrize("metric", ["cosine", "l2"])
def test_neighbors_equal_exact_index(opened, metric):
    rows = stores.rows(metric=metric)
    opened().write(stores.description(metric=metric), rows)
    gallery = StoreGallery(opened())
    assert gallery.paths == sorted(PATHS) and gallery.columns.own_names == ["brand"]
    queries = stores.rows(PATHS[:5], seed=1, metric=metric).vectors
    for where in ((), (("folder", "b"),), (("class", "c"), ("brand", "it's 1"))):
        mask = gallery.columns.mask(where)
        allowed = mask if mask is None else np.array(gallery.paths)[mask].tolist()
        for query in [*queries, rows.vectors[3]]:
            found = gallery.nearest(query[None], 4, where, mask)
            paths, scores = expected(rows, query, 4, metric, allowed)
            assert found.paths == paths and found.scores == scores
            row_of = dict(zip(rows.columns["path"], rows.vectors))
            np.testing.assert_array_equal(found.embeddings, [row_of[path] for path in paths])


def test_an_update_writes_only_changed_rows(opened):
    rows = stores.rows()
    assert opened().write(stores.description(), rows) == "added 24, changed 0, removed 0"
    assert opened().write(stores.description(), rows) == "added 0, changed 0, removed 0"
    # The remaining images have the same embeddings, and half of them have another brand.
    later = stores.rows([*PATHS[:-2], "new.png"], brand="other")
    assert opened().write(stores.description(), later) == "added 1, changed 11, removed 2"
    known = {row[0]: row[1:] for block in opened().values(["path", "brand", "id"]) for row in block}
    assert set(known) == {*PATHS[:-2], "new.png"}
    assert known["new.png"] == ("", item_id("new.png")) and known["a/3.png"][0] == "other"
    # With other columns, the table is created again.
    later.columns["price"] = ["1"] * 23
    opened().write(stores.description(["brand", "price"]), later)
    assert StoreGallery(opened()).columns.values_of("price") == ["1"] * 23


def after_block(number, store, act):
    """In the returned context, write blocks of five images, and call `act` after block `number`."""
    upsert, written = store.upsert, []

    def watched(block):
        upsert(block)
        written.append(block)
        if len(written) == number:
            act()

    return mock.patch.multiple(store, batch=5, upsert=watched)


def ids_of(store):
    return sorted(row[0] for block in store.values(["id"]) for row in block)


def test_a_killed_command_resumes(opened):
    def kill():
        raise KeyboardInterrupt

    rows, store = stores.rows(), opened()
    with after_block(2, store, kill), pytest.raises(KeyboardInterrupt):
        store.write(stores.description(), rows)
    with pytest.raises(UsageError, match="is not finished"):
        StoreGallery(store)
    assert opened().write(stores.description(), rows) == "added 14, changed 0, removed 0"
    assert ids_of(opened()) == sorted(rows.ids)


def test_a_second_writer_is_noticed(opened):
    """The second writer creates the table again and is killed."""
    rows, store = stores.rows(), opened()
    with (
        after_block(1, store, lambda: store.create(stores.description())),
        pytest.raises(StoreError, match="holds 19 images instead of 24: .*Repeat the command"),
    ):
        store.write(stores.description(), rows)
    assert not store.is_finished()
    assert store.write(stores.description(), rows) == "added 5, changed 0, removed 0"
    assert store.is_finished()


def test_duplicate_rows_are_repaired(tmp_path):
    lancedb = pytest.importorskip("lancedb")
    rows, address = stores.rows(), Address("lancedb", str(tmp_path), "images")
    open_store(address).write(stores.description(), rows)
    store = open_store(address)
    gallery = StoreGallery(store)
    table = lancedb.connect(tmp_path).open_table("images")
    table.add(table.to_arrow().slice(0, 10))
    store._opened = None  # read the table again
    found = gallery.nearest(rows.vectors[:1], 24, (), None)
    assert sorted(found.paths) == sorted(PATHS)
    with pytest.raises(UsageError, match="holds 34 images with 24 different paths"):
        StoreGallery(store)
    assert store.write(stores.description(), rows) == "added 0, changed 10, removed 0"
    assert ids_of(store) == sorted(rows.ids)
    assert StoreGallery(store).paths == sorted(PATHS)


def test_images_that_another_command_writes_are_ignored():
    store, rows = stores.MemoryStore(), stores.rows()
    rows.vectors[:] = rows.vectors[0]
    store.write(stores.description(), rows)
    gallery = StoreGallery(store)
    assert gallery.nearest(rows.vectors[:1], 2, (), None).paths == sorted(PATHS)[:2]
    store.remove([item_id("a/0.png")])
    store.upsert(stores.rows(["a/00.png"]))
    assert gallery.nearest(rows.vectors[:1], 2, (), None).paths == ["a/1.png", "a/2.png"]


def test_a_missing_table(opened):
    with pytest.raises(UsageError, match="does not exist: keras-dml index --to="):
        StoreGallery(opened())


def test_third_party_tables_are_not_changed(tmp_path):
    lancedb = pytest.importorskip("lancedb")
    lancedb.connect(tmp_path).create_table("theirs", [{"x": 1}])
    store = open_store(Address("lancedb", str(tmp_path), "theirs"))
    with pytest.raises(UsageError, match="holds something else than what keras-dml index"):
        store.description()
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="must be a folder"):
        open_store(Address("lancedb", str(tmp_path / "file"), "images"))
    missing = open_store(Address("lancedb", str(tmp_path / "none"), "images"))
    assert missing.description() is None and not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("kind", "place", "message"),
    [
        ("qdrant", "http://127.0.0.1:1", "qdrant:.* cannot be used: .*refused"),
        ("pgvector", "postgresql://me:secret@127.0.0.1:1/a", "pgvector:.* cannot be .*refused"),
        ("qdrant", "folder", "qdrant:URL must be the URL of a server"),
    ],
)
def test_a_missing_server(kind, place, message):
    pytest.importorskip({"qdrant": "qdrant_client", "pgvector": "pgvector"}[kind])
    with pytest.raises(UsageError, match=message) as caught:
        open_store(Address(kind, place, "images")).description()
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "text,parts",
    [
        ("lancedb:a/b c", ("lancedb", "a/b c", "images")),
        ("qdrant:http://host:6333#shoes", ("qdrant", "http://host:6333", "shoes")),
        ("lancedb:a#b#c", ("lancedb", "a#b", "c")),
    ],
)
def test_addresses(text, parts):
    assert is_address(text) and parsed_address(text, "to") == parts


@pytest.mark.parametrize(
    ("text", "name"),
    [
        *((text, "to") for text in ("", "lancedb:", "x:y", "lancedb:a#1", "parquet:a#b")),
        (f"lancedb:a#{'b' * 49}", "to"),
        ("parquet:somewhere", "index"),
    ],
)
def test_invalid_addresses(text, name):
    with pytest.raises(UsageError, match=f"{name} must be .*lancedb.* got {text}"):
        parsed_address(text, name)


def test_unsupported_columns():
    with pytest.raises(UsageError, match="other than id, .* but got the column vector"):
        check_columns(["Price (€)", "vector"])


@pytest.mark.parametrize("kind", ["lancedb", "qdrant", "pgvector"])
def test_a_missing_extra_is_named(kind, monkeypatch):
    for name in ("lancedb", "qdrant_client", "pgvector", "psycopg"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("lancedb_store", "qdrant_store", "pgvector_store"):
        monkeypatch.delitem(sys.modules, f"experiments.searching.{name}", raising=False)
    with pytest.raises(MissingExtraError, match=rf"pip install 'keras-dml\[{kind}\]'"):
        open_store(Address(kind, "somewhere", "images"))


@pytest.mark.parametrize("kind", ["lancedb", "parquet"])
def test_a_second_command_may_not_write_to_the_same_folder(kind, tmp_path):
    address = Address(kind, str(tmp_path / "new" / "store"), "images")
    in_use = pytest.raises(UsageError, match=f"to {kind}:.*in use by another")
    with locked_store(address), in_use, locked_store(address):
        pass
    with locked_store(address), locked_store(Address(kind, "s3://bucket/store", "images")):
        pass


@pytest.mark.slow
def test_parquet_files_have_the_rows_and_replace_no_other_files(tmp_path, monkeypatch):
    pq = pytest.importorskip("pyarrow.parquet")
    from experiments.searching import parquet_files

    folder, rows = tmp_path / "files", stores.rows()
    monkeypatch.setattr(parquet_files, "ROWS", 10)
    target = parquet_files.ParquetFiles(folder)
    assert target.write(stores.description(), rows) == "written"
    names = sorted(path.name for path in folder.glob("part-*"))
    assert names == [f"part-0000{number}.parquet" for number in range(3)]
    table = pq.read_table(folder).to_pydict()
    np.testing.assert_array_equal(np.array(table.pop("vector"), "f4"), rows.vectors)
    assert table == {"id": rows.ids, **rows.columns}
    assert target.write(stores.description(), stores.rows(PATHS[:5]))
    assert pq.read_table(folder)["path"].to_pylist() == PATHS[:5]
    (tmp_path / "theirs").mkdir()
    for place in ("theirs", "none/files"):
        with pytest.raises(UsageError, match="to=parquet:FOLDER must be a new folder"):
            parquet_files.ParquetFiles(tmp_path / place)


@tiers.thorough
@pytest.mark.parametrize("metric", ["cosine", "l2"])
def test_a_third_party_approximate_index_is_not_used(metric, new_database):
    import psycopg

    dsn = new_database()
    operators = {"cosine": "vector_ip_ops", "l2": "vector_l2_ops"}[metric]
    store = open_store(Address("pgvector", dsn, "It's"))
    rows = stores.rows([f"{number}.png" for number in range(3_000)], metric=metric)
    store.create(stores.description(metric=metric))
    store.upsert(rows)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f'CREATE INDEX ON "It\'s" USING hnsw ("vector" {operators})')
        connection.execute("SET hnsw.ef_search = 10")
        connection.execute("ANALYZE")
    for query in rows.vectors[:20]:
        _, vectors = store.nearest(query, 100, metric, {})
        far = vectors @ query if metric == "cosine" else np.linalg.norm(vectors - query, axis=1)
        _, scores = expected(rows, query, 100, metric, None)
        np.testing.assert_allclose(np.sort(far), np.sort(scores), rtol=1e-5, atol=1e-6)


@tiers.thorough
def test_errors_of_the_server_are_one_line(new_database):
    import psycopg

    dsn = new_database()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute('CREATE TABLE "theirs" (x integer)')
        connection.execute("CREATE ROLE guest LOGIN")
    with pytest.raises(UsageError, match="holds something else"):
        open_store(Address("pgvector", dsn, "theirs")).description()
    guest = open_store(Address("pgvector", dsn.replace("user=postgres", "user=guest"), "images"))
    with pytest.raises(StoreError, match="permission denied") as caught, guest.asking():
        guest.create(stores.description())
    assert "\n" not in str(caught.value)
