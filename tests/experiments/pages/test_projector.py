"""Files for TensorBoard's projector."""

import numpy as np
from PIL import Image

from experiments.evaluation.labeled_embeddings import EmbeddedSet
from experiments.pages.projector import write_projector
from pipelines import EvaluationTransform, ImageTable

COUNT, SIDE = 6, 8


def test_every_image_has_an_embedding_a_class_and_a_picture(tmp_path):
    arrays = np.stack([np.full((SIDE, SIDE, 3), 40 * number, np.uint8) for number in range(COUNT)])
    names = ["a\tb", "", "c\nd"]
    table = ImageTable.from_arrays(arrays, np.arange(COUNT) % 3, class_names=names)
    embeddings = np.random.default_rng(0).normal(size=(COUNT, 4)).astype("float32")
    folder = tmp_path / "tensorboard"
    write_projector(folder, EmbeddedSet(embeddings, table.labels, table), EvaluationTransform(SIDE))
    np.testing.assert_allclose(np.loadtxt(folder / "embeddings.tsv"), embeddings, rtol=1e-5)
    lines = (folder / "classes.tsv").read_text().splitlines()
    assert len(lines) == COUNT
    assert not any("\t" in line or not line for line in lines)
    with Image.open(folder / "pictures.png") as sheet:
        pixels = np.asarray(sheet)
    assert pixels.shape == (3 * 48, 3 * 48, 3)
    for number in range(COUNT):
        line, column = divmod(number, 3)
        assert (pixels[48 * line + 2, 48 * column + 2] == 40 * number).all()
    config = (folder / "projector_config.pbtxt").read_text()
    for path in ("embeddings.tsv", "classes.tsv", "pictures.png"):
        assert f'"{path}"' in config
    assert "single_image_dim: 48" in config
