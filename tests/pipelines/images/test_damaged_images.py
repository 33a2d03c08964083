"""Damaged images: all readers agree to read them, or to refuse them in one line."""

import io
import pathlib
import sys

import mutated_images
import pytest
import tensorflow as tf
from photo_search import make_index
from trial_process import run_trials, trials_of_this_process
from trials import Tally, seeds

pytest.importorskip("flask")
pytest.importorskip("waitress")

from experiments.pages.pictures import thumbnail
from experiments.searching.serve import create_app
from experiments.searching.visual_search import VisualSearch
from pipelines import EvaluationTransform, ImageTable, TrainTransform, find_bad_images
from pipelines.images.decode import decode_image

MAX_PIXELS = 100_000
SIDE = 12


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


def refusal(read, *arguments):
    """Return None or the reason of a refusal; other exceptions are faults."""
    try:
        read(*arguments)
    except (tf.errors.OpError, ValueError) as error:
        return str(getattr(error, "message", error) or "damaged")[:200]
    return None


def found_in(table, **options):
    found = find_bad_images(table, **options)
    return found[0][2] if found else None


def compared(path, client):
    """Return the reason of the check or None, and the faults of the other readers or None."""
    encoded = path.read_bytes()
    table = ImageTable.from_paths([path], [0])
    checked = found_in(table, max_pixels=MAX_PIXELS)
    first_bytes = found_in(table, decode=False)
    undecoded = refusal(DECODED, encoded)
    untrained = [refusal(EVALUATED, encoded)]
    untrained += [refusal(read, encoded, [seed, 7]) for read in AUGMENTED for seed in range(2)]
    form = {"image": (io.BytesIO(encoded), "photo.jpg")}
    answer = client.post("/search", data=form, content_type="multipart/form-data")
    status, said = answer.status_code, str(answer.json)[:200]
    hidden = refusal(thumbnail, path, MAX_PIXELS)
    reasons = [why for why in (checked, first_bytes, hidden) if why is not None]
    refused = checked is not None
    faults = {
        "no line": any(not why or "\n" in why or "Graph" in why for why in reasons),
        "accepted by the check, not by a training": not refused and any(untrained),
        "accepted by the check, not by its first bytes": not refused and first_bytes,
        "refused by the check, but decoded": refused and not undecoded and "scans" not in checked,
        "another answer to an upload": status != 200
        and (status != 400 or "cannot be searched: " not in said),
        # Search and training read a crop of a JPEG that is damaged below the crop.
        "refused by the check, but searched": status == 200
        and refused
        and not checked.startswith("jpeg"),
    }
    answers = (*reasons, undecoded, untrained, status, said)
    found = [fault for fault, there in faults.items() if there]
    return checked, f"{', '.join(found)}: {answers}" if found else None


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
        refused, fault = compared(path, self._client)
        end = "read" if refused is None else "refused in one line"
        return what, None if fault else end, fault


@pytest.mark.slow
@pytest.mark.parametrize("count", [10, pytest.param(3000, marks=pytest.mark.thorough)])
def test_damaged_images(count, tmp_path, capsys):
    tally = Tally("mutated images")
    run_trials(__file__, tmp_path, seeds(count), tally)
    tally.check(capsys)


if __name__ == "__main__":
    trials_of_this_process(Trials(sys.argv[1]), sys.argv[2:])
