"""One process at a time in a folder."""

import pytest

from experiments.embedding.held_folder import held
from experiments.options.errors import UsageError


def test_the_second_is_refused_and_the_third_comes_after_the_first(tmp_path):
    with held(tmp_path, "output"):
        second = held(tmp_path, "output")
        with pytest.raises(UsageError, match=r"output '.*' is in use by another running process"):
            second.__enter__()
    with held(tmp_path, "output"):
        pass
