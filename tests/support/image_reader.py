"""A process that reads images in all places where the library does, because images may kill it.

    python image_reader.py FOLDER

makes an index in FOLDER. It answers each line of its input with a line, both JSON. For a path, the
answer is the result of each place; for a list of paths, the result of their batches.
"""

import io
import json
import pathlib
import sys
import time

import numpy as np
import tensorflow as tf
from photo_search import make_index
from PIL import Image

from experiments.evaluation.pictures import thumbnail
from experiments.searching.serve import create_app
from experiments.searching.visual_search import VisualSearch
from pipelines import (
    EvaluationTransform,
    ImageTable,
    RandomSampler,
    TrainTransform,
    evaluation_batches,
    find_bad_images,
    training_batches,
)
from pipelines.images.decode import decode_image

MAX_PIXELS = 100_000
SIDE = 12
_REFUSALS = (tf.errors.OpError, UnicodeDecodeError)
_WHOLE = EvaluationTransform(SIDE, (SIDE, SIDE), max_pixels=MAX_PIXELS)
_TRAINED = [
    TrainTransform(SIDE, crop="area", max_pixels=MAX_PIXELS),
    TrainTransform(SIDE, crop="fixed", resize=SIDE + 2, max_pixels=MAX_PIXELS),
]


def _traced(function, *more):
    return tf.function(
        function, input_signature=[tf.TensorSpec([], tf.string), *more], autograph=False
    )


_decoded = _traced(lambda encoded: decode_image(encoded, MAX_PIXELS))
_evaluated = _traced(_WHOLE)
_augmented = [_traced(transform, tf.TensorSpec([2], tf.int64)) for transform in _TRAINED]


def _peak(reset=False):
    """Return the peak memory of this process since the last reset, in megabytes."""
    if reset:
        pathlib.Path("/proc/self/clear_refs").write_text("5")
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def _reason(call):
    """Return None or the reason of a refusal; other exceptions are faults."""
    try:
        call()
    except _REFUSALS as error:
        return str(getattr(error, "message", "") or "damaged")[:200]
    return None


def _turned_otherwise(pixels, shown):
    """Return whether a thumbnail shows the image in another orientation."""
    ways = [np.rot90(side, turn) for side in (shown, shown[:, ::-1]) for turn in range(4)]
    differences = [
        np.abs(way.astype(int) - pixels).mean() if way.shape == pixels.shape else 255.0
        for way in ways
    ]
    return differences[0] > 10 and min(differences) < differences[0] / 2


def _looked_at(path, client):
    encoded = pathlib.Path(path).read_bytes()
    found = {}
    for name, table in (
        ("check", ImageTable.from_paths([path], [0])),
        ("check in memory", ImageTable.from_encoded([encoded], [0])),
    ):
        bad = find_bad_images(table, max_pixels=MAX_PIXELS)
        found[name] = bad[0][2] if bad else None
    first = find_bad_images(ImageTable.from_paths([path], [0]), decode=False)
    found["first bytes"] = first[0][2] if first else None
    kept = []
    found["whole"] = _reason(lambda: kept.append(_decoded(encoded).numpy()))
    found["evaluation"] = _reason(lambda: _evaluated(encoded))
    found["training"] = [
        _reason(lambda augment=augment, seed=seed: augment(encoded, [seed, 7]))
        for augment in _augmented
        for seed in range(2)
    ]
    form = {"image": (io.BytesIO(encoded), "photo.jpg")}
    answer = client.post("/search", data=form, content_type="multipart/form-data")
    found["upload"] = [answer.status_code, str(answer.json)[:200]]
    try:
        shown, _ = thumbnail(path, MAX_PIXELS)
        found["thumbnail"] = None
    except ValueError as error:
        found["thumbnail"] = str(error)
    else:
        if kept and max(kept[0].shape) <= 320:
            pixels = np.asarray(Image.open(io.BytesIO(shown)).convert("RGB"))
            found["turned otherwise"] = bool(_turned_otherwise(kept[0], pixels))
    return found


def _batches(paths):
    table = ImageTable.from_paths(paths, [0] * len(paths))
    batch = min(8, len(paths))
    seen = 0
    sampler = RandomSampler(len(paths), batch)
    for transform in _TRAINED:
        steps = sampler.steps_per_epoch
        for images, _ in training_batches(table, sampler, transform, num_steps=steps):
            seen += len(images)
    for images in evaluation_batches(table, _WHOLE, batch):
        seen += len(images)
    return {"images": seen}


def main(folder):
    folder = pathlib.Path(folder)
    search = VisualSearch(make_index(folder), max_pixels=MAX_PIXELS)
    client = create_app(search).test_client()
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        before, began = _peak(reset=True), time.process_time()
        try:
            found = _batches(asked) if isinstance(asked, list) else _looked_at(asked, client)
        except Exception as error:
            found = {"fault": f"{type(error).__name__}: {error}"[:500]}
        found |= {"seconds": time.process_time() - began, "megabytes": _peak() - before}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
