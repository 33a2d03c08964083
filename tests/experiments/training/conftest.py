"""Runs of these tests have pages without pictures."""

import pytest


@pytest.fixture(autouse=True)
def _without_pictures(without_pictures):
    pass
