"""The reason of files that end too early, for a run and for an index."""

import io

import numpy as np
import pytest
from PIL import Image

from pipelines import ImageTable, find_bad_images
from pipelines.images.pillow_decode import open_image


def encoded_image(kind, **options):
    pixels = np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def reasons(content):
    """Return the reason of a run, and that of an index."""
    [(_, _, in_run)] = find_bad_images(ImageTable.from_encoded([content], [0]))
    try:
        open_image(content, 10**6)
    except ValueError as error:
        return {in_run, str(error)}
    return {in_run}  # the embedder of an index calls `find_bad_images`, too


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WebP"])
@pytest.mark.parametrize("share", [0.05, 0.5, 0.9])
def test_a_truncated_file_is_named_so(kind, share):
    whole = encoded_image(kind)
    assert reasons(whole[: int(len(whole) * share)]) == {f"a truncated {kind}"}


def test_the_end_of_a_preview_is_not_the_end_of_the_image():
    exif = Image.Exif()
    exif[0x927C] = encoded_image("JPEG")
    whole = encoded_image("JPEG", exif=exif)
    assert whole.count(b"\xff\xd9") == 2
    assert reasons(whole[:-200]) == {"a truncated JPEG"}


def test_other_damage_is_not_named_truncated():
    damaged = b"\xff\xd8\xff\xe0" + bytes(20) + b"\xff\xd9"
    assert "truncated" not in " ".join(reasons(damaged))
