"""A PostgreSQL server for the tests of stores."""

import postgres_server
import pytest


@pytest.fixture(scope="session")
def postgres():
    """`postgres_server.Server`."""
    with postgres_server.running() as server:
        yield server
