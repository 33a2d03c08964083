"""Photos and a SavedModel that the tests of index, search and serve share."""

import contextlib
import io
import threading

import numpy as np
import tensorflow as tf
from PIL import Image

from experiments import index
from experiments.options.command_line import run_command
from pipelines import EvaluationTransform


class Colours(tf.Module):
    """An image's embedding: its colours, 4×4 pixels of them."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="images")])
    def serve(self, images):
        pixels = tf.map_fn(
            EvaluationTransform(4), images, fn_output_signature=tf.TensorSpec([4, 4, 3])
        )
        return {"embeddings": tf.reshape(pixels - 127.5, [-1, 48])}


def save_color_model(path):
    """A SavedModel with the signature that `keras_dml.export` gives."""
    model = Colours()
    tf.saved_model.save(model, str(path), {"serving_default": model.serve})
    return path


def picture(seed, size=(20, 20)):
    """A picture of its own for each seed: large squares of random colours."""
    squares = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(squares).resize(size, Image.Resampling.NEAREST)


def png(seed, size=(20, 20)):
    """The bytes of `picture`."""
    file = io.BytesIO()
    picture(seed, size).save(file, "PNG")
    return file.getvalue()


def write_photos(root, names):
    """A picture for each name, of seeds 0, 1, 2, ..."""
    for seed, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        picture(seed).save(root / name)
    return root


def index_command(*arguments):
    """The exit code of experiments.index."""
    return run_command(index.main, ["index", *map(str, arguments)])


def plain_embeddings(made, output):
    """Path -> what the plain command gives for `photos` by `model`, at length 1."""
    words = [f"--saved_model={made / 'model'}", f"--images={made / 'photos'}"]
    assert index_command(*words, f"--output={output}", "--batch_size=64") == 0
    plain = np.load(output / "embeddings.npz")
    rows = plain["embeddings"] / np.linalg.norm(plain["embeddings"], axis=1, keepdims=True)
    return dict(zip(plain["paths"].tolist(), rows))


def make_index(folder, names=("a/0.png", "a/1.png", "b/c/2.bmp", "b/3.gif", "4.webp")):
    """Photos, a model, and the index of them in `folder / "index"`."""
    photos = write_photos(folder / "photos", names)
    model = save_color_model(folder / "model")
    code = index_command(
        f"--saved_model={model}", f"--images={photos}", f"--output={folder / 'index'}"
    )
    assert code == 0
    return folder / "index"


@contextlib.contextmanager
def answering(index):
    """A server of an index, in threads of this process, until the end of the block."""
    from experiments.searching import serve
    from experiments.searching.visual_search import VisualSearch

    server = serve.open_server(VisualSearch(index), "127.0.0.1", 0)
    threading.Thread(target=server.run, daemon=True).start()
    try:
        yield server
    finally:
        # A thread of waitress that outlives this writes into the closed pipe's number: by then that
        # of any file that a later test is writing.
        server.task_dispatcher.shutdown(timeout=60)
        server.close()
