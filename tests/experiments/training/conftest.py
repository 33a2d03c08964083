"""Runs of these tests have pages without pictures, which take a fifth of a short run."""

import pytest

from experiments.pages import report
from experiments.pages.retrieval import Shown


@pytest.fixture(autouse=True)
def _without_pictures(monkeypatch):
    monkeypatch.setattr(report, "shown_of_readable", lambda images: Shown())
