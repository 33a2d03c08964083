"""Damaged images: all readers agree to read them, or to refuse them in one line."""

import io
import pathlib
import sys

import mutated_images
import numpy as np
import pytest
import tensorflow as tf
from photo_search import make_index
from PIL import Image
from trial_process import run_trials, trials_of_this_process
from trials import Tally, seeds

pytest.importorskip("flask")
pytest.importorskip("waitress")

from experiments.evaluation.pictures import thumbnail
from experiments.searching.serve import create_app
from experiments.searching.visual_search import VisualSearch
from pipelines import EvaluationTransform, ImageTable, TrainTransform, find_bad_images
from pipelines.images.decode import decode_image

MAX_PIXELS = 100_000
SIDE = 12
REFUSALS = (tf.errors.OpError, UnicodeDecodeError)


def traced(function, *more):
    return tf.function(
        function, input_signature=[tf.TensorSpec([], tf.string), *more], autograph=False
    )


DECODED = traced(lambda encoded: decode_image(encoded, MAX_PIXELS))
EVALUATED = traced(EvaluationTransform(SIDE, (SIDE, SIDE), max_pixels=MAX_PIXELS))
AUGMENTED = [
    traced(transform, tf.TensorSpec([2], tf.int64))
    for transform in (
        TrainTransform(SIDE, crop="area", max_pixels=MAX_PIXELS),
        TrainTransform(SIDE, crop="fixed", resize=SIDE + 2, max_pixels=MAX_PIXELS),
    )
]


def reason(call):
    """Return None or the reason of a refusal; other exceptions are faults."""
    try:
        call()
    except REFUSALS as error:
        return str(getattr(error, "message", "") or "damaged")[:200]
    return None


def turned_otherwise(pixels, shown):
    """Return whether a thumbnail shows the image in another orientation."""
    ways = [np.rot90(side, turn) for side in (shown, shown[:, ::-1]) for turn in range(4)]
    differences = [
        np.abs(way.astype(int) - pixels).mean() if way.shape == pixels.shape else 255.0
        for way in ways
    ]
    return differences[0] > 10 and min(differences) < differences[0] / 2


def looked_at(path, client):
    """Return the answers of all readers of an image."""
    encoded = path.read_bytes()
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
    found["whole"] = reason(lambda: kept.append(DECODED(encoded).numpy()))
    found["evaluation"] = reason(lambda: EVALUATED(encoded))
    found["training"] = [
        reason(lambda augment=augment, seed=seed: augment(encoded, [seed, 7]))
        for augment in AUGMENTED
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
            found["turned otherwise"] = turned_otherwise(kept[0], pixels)
    return found


def fault_of(found):
    """Return the fault of a reader on this image, or None."""
    reasons = [found[name] for name in ("check", "check in memory", "first bytes", "thumbnail")]
    if any(
        "\n" in reason or not reason or "Graph" in reason
        for reason in reasons
        if reason is not None
    ):
        return f"no line: {reasons}"
    if (found["check"] is None) != (found["check in memory"] is None):
        return f"checked differently: {found}"
    if found["check"] is None and (found["evaluation"] or any(found["training"])):
        return f"accepted by the check, not by a training: {found}"
    if found["check"] is None and found["first bytes"]:
        return f"accepted by the check, not by its first bytes: {found}"
    if found["check"] and not found["whole"] and "scans" not in found["check"]:
        return f"refused by the check, but decoded: {found}"
    status, said = found["upload"]
    if status not in (200, 400) or (status == 400 and "cannot be searched: " not in said):
        return f"upload: {status} {said}"
    # Search and training read a crop of a JPEG that is damaged below the crop.
    if status == 200 and found["check"] and not found["check"].startswith("jpeg"):
        return f"refused by the check, but searched: {found}"
    if found.get("turned otherwise"):
        return f"a thumbnail is turned another way: {found}"
    return None


class Trials:
    """Trials in a process of their own, because an image may crash it."""

    def __init__(self, folder):
        self._folder = pathlib.Path(folder)
        index = self._folder / "index"
        search = VisualSearch(
            index if index.exists() else make_index(self._folder), max_pixels=MAX_PIXELS
        )
        self._client = create_app(search).test_client()

    def __call__(self, seed):
        what, name, content = mutated_images.mutated_image(seed)
        path = self._folder / name
        path.write_bytes(content)
        found = looked_at(path, self._client)
        end = "read" if found["check"] is None else "refused in one line"
        fault = fault_of(found)
        return what, None if fault else end, fault


@pytest.mark.slow
@pytest.mark.parametrize("count", [10, pytest.param(3000, marks=pytest.mark.thorough)])
def test_damaged_images(count, tmp_path, capsys):
    tally = Tally("mutated images")
    run_trials(__file__, tmp_path, seeds(count), tally)
    tally.check(capsys)


if __name__ == "__main__":
    trials_of_this_process(Trials(sys.argv[1]), sys.argv[2:])
