"""Photos and a SavedModel, shared by the tests of index, search, and serve."""

import contextlib
import http.client
import json
import threading

import numpy as np
import tensorflow as tf
from image_files import encode
from PIL import Image
from tiny_run import command_of

from pipelines import EvaluationTransform

index_command = command_of("index")


class Colors(tf.Module):
    """An embedding that consists of the image's colors, reduced to 4×4 pixels."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="images")])
    def serve(self, images):
        pixels = tf.map_fn(
            EvaluationTransform(4), images, fn_output_signature=tf.TensorSpec([4, 4, 3])
        )
        return {"embeddings": tf.reshape(pixels - 127.5, [-1, 48])}


def save_color_model(path):
    """Save a SavedModel with the signature of `keras_dml.export`."""
    model = Colors()
    tf.saved_model.save(model, str(path), {"serving_default": model.serve})
    return path


def picture(seed, size=(20, 20)):
    """Return a different picture for each seed: large squares of random colors."""
    squares = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(squares).resize(size, Image.Resampling.NEAREST)


def png(seed, size=(20, 20)):
    """Return the bytes of `picture`."""
    return encode(picture(seed, size), "PNG")


def write_photos(root, names):
    """Write a picture for each name, with seeds 0, 1, 2, ..."""
    for seed, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        picture(seed).save(root / name)
    return root


def plain_embeddings(made, output):
    """Return path -> normalized embedding from the plain command on `photos` and `model`."""
    words = [f"--saved_model={made / 'model'}", f"--images={made / 'photos'}"]
    assert index_command(*words, f"--output_dir={output}", "--batch_size=64") == 0
    plain = np.load(output / "embeddings.npz")
    rows = plain["embeddings"] / np.linalg.norm(plain["embeddings"], axis=1, keepdims=True)
    return dict(zip(plain["paths"].tolist(), rows))


def make_index(folder, names=("a/0.png", "a/1.png", "b/c/2.bmp", "b/3.gif", "4.webp")):
    """Make photos, a model, and their index in `folder / "index"`."""
    photos = write_photos(folder / "photos", names)
    model = save_color_model(folder / "model")
    code = index_command(
        f"--saved_model={model}", f"--images={photos}", f"--output_dir={folder / 'index'}"
    )
    assert code == 0
    return folder / "index"


@contextlib.contextmanager
def answering(index):
    """Serve an index from threads of this process until the end of the block."""
    from experiments.searching import serve
    from experiments.searching.visual_search import VisualSearch

    server = serve.open_server(VisualSearch(index), "127.0.0.1", 0)
    threading.Thread(target=server.run, daemon=True).start()
    try:
        yield server
    finally:
        # Wait for waitress' threads. A late thread writes to the number of the closed pipe, and a
        # later test can have a file with this number.
        server.task_dispatcher.shutdown(timeout=60)
        server.close()


def send(port, data, name="photo.png"):
    """Upload an image as a browser does, over a new connection. Return the status and the JSON."""
    head = f'--x\r\nContent-Disposition: form-data; name="image"; filename="{name}"\r\n\r\n'
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=60)
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    connection.request("POST", "/search?k=3", head.encode() + data + b"\r\n--x--\r\n", headers)
    answer = connection.getresponse()
    found = answer.status, json.loads(answer.read())
    connection.close()
    return found
