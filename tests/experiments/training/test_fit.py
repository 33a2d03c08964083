"""The embedding model from the flags."""

import pytest

from experiments.options import RunOptions, parse
from experiments.training import fit


@pytest.mark.parametrize("word", ["--levels=,", "--levels=stage9_conv2_relu"])
def test_invalid_levels(word):
    small = ["--backbone=small_convnet", "--filters=4,6", "--weights=none", "--image_size=16"]
    options = parse(RunOptions, ["run", *small, word])
    with pytest.raises(ValueError, match="levels must be different layers of the backbone"):
        fit.embedding_model(options)
