"""A photo with an EXIF orientation gives the same image as the upright photo."""

import io
import itertools
import struct

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from image_files import encode, smooth
from mutations import OF_BYTES, mutated
from PIL import Image

import pipelines
from experiments.evaluation.saved_model import ImageEmbedder
from experiments.pages.pictures import thumbnail
from keras_dml.export import export_saved_model
from pipelines import EvaluationTransform
from pipelines.images import decode
from pipelines.images.orientation import read_orientation
from pipelines.table import ImageTable

HEIGHT, WIDTH = 61, 83
PICTURE = smooth(WIDTH, HEIGHT)
ORIENTATIONS = range(1, 9)
FORMATS = {"JPEG": {"quality": 95}, "PNG": {}, "WEBP": {"lossless": True, "exact": True}}
# The operation that stores an upright picture for each orientation.
STORING = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
SPEC = [tf.TensorSpec([], tf.string)]
decode_image = tf.function(decode.decode_image, input_signature=SPEC, autograph=False)
orientation_of = tf.function(read_orientation, input_signature=SPEC, autograph=False)


def tiff(orientation, byte_order=">", at=8, kind=3, count=1, before=3, tag=0x0112, last=0x0213):
    """Return EXIF as from a camera: a TIFF header, `before` other tags, the orientation, a tag."""
    entries = [struct.pack(byte_order + "HHI4x", 1 + number, 4, 1) for number in range(before)]
    entries += [struct.pack(byte_order + "HHIHH", tag, kind, count, orientation, 0)]
    entries += [struct.pack(byte_order + "HHIHH", last, 3, 1, 2, 0)]
    mark = {">": b"MM", "<": b"II"}[byte_order]
    head = mark + struct.pack(byte_order + "HI", 42, at) + bytes(at - 8)
    return head + struct.pack(byte_order + "H", len(entries)) + b"".join(entries) + bytes(4)


def photo(image, file_format, exif=b""):
    # Pillow removes the prefix in formats that do not have it.
    options = {"exif": b"Exif\0\0" + exif} if exif else {}
    return encode(image, file_format, **FORMATS[file_format], **options)


def stored(image, orientation):
    """Return the pixels that a camera in this orientation stores."""
    method = STORING[orientation]
    return image if method is None else image.transpose(method)


def turned(orientation, file_format, image=None):
    return photo(stored(image or PICTURE, orientation), file_format, tiff(orientation))


def segment(kind, content, fill=0):
    return b"\xff" * (1 + fill) + bytes([kind]) + struct.pack(">H", len(content) + 2) + content


TURNED_JPEG = photo(stored(PICTURE, 6), "JPEG")


def with_segments(*segments):
    """Return a JPEG of orientation 6 with these segments after its first two bytes."""
    return TURNED_JPEG[:2] + b"".join(segments) + TURNED_JPEG[2:]


def app1(*arguments, prefix=b"Exif\0\0", fill=0, **options):
    return segment(0xE1, prefix + tiff(*arguments, **options), fill)


@pytest.mark.parametrize("file_format", ["JPEG", "PNG"])
@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_box_refers_to_stored_pixels(orientation, file_format):
    encoded = turned(orientation, file_format)
    marked = np.zeros([HEIGHT, WIDTH], np.uint8)
    marked[10:30, 40:75] = 255
    rows, columns = np.nonzero(np.asarray(stored(Image.fromarray(marked), orientation)))
    box = [rows.min(), columns.min(), np.ptp(rows) + 1, np.ptp(columns) + 1]
    image = decode.open_image((encoded, tf.constant(box, tf.int64)))
    assert image.size.numpy().tolist() == [20, 35]
    inside = decode_image(encoded).numpy()[10:30, 40:75]
    np.testing.assert_array_equal(image.crop(tf.constant([0, 0, 20, 35])), inside)


XMP = segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0<x:xmpmeta>tiff:Orientation=3 Exif</x:xmpmeta>")
JFIF = segment(0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0")
PROFILE = segment(0xE2, b"ICC_PROFILE\0\1\1" + bytes(60_000))
HEADS = {
    "after much": [JFIF, XMP, *7 * [PROFILE], segment(0xED, b"Photoshop 3.0\0\xff\xda"), app1(6)],
    "of two the first": [app1(6), app1(3)],
    "of two entries the first": [app1(6, last=0x0112)],
    "fill bytes": [segment(0xE0, b"JFIF\0", fill=3), app1(6, fill=200)],
    "a comment": [segment(0xFE, b"Exif\0\0MM\0*"), app1(6)],
    "a bare marker": [b"\xff\x01", app1(6)],
    "odd place": [app1(6, "<", at=5001)],
    "the only tag": [app1(6, before=0)],
    "behind many": [app1(6, "<", before=250)],
}


@pytest.mark.parametrize("name", HEADS)
def test_exif_is_found_anywhere_in_a_jpeg(name):
    encoded = with_segments(*HEADS[name])
    assert orientation_of(encoded) == 6
    assert decode_image(encoded).shape == (HEIGHT, WIDTH, 3)


def chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + b"none"


def test_exif_is_found_anywhere_in_a_png():
    plain = photo(stored(PICTURE, 6), "PNG")
    exif = photo(stored(PICTURE, 6), "PNG", tiff(6))
    first, after = exif.index(b"eXIf") - 4, exif.index(b"IDAT") - 4
    own = exif[first:after]
    for content in (own, chunk(b"eXIf", b"Exif\0\0" + tiff(6, "<"))):
        for place in (plain.index(b"IDAT") - 4, plain.index(b"IEND") - 4):
            moved = plain[:place] + content + plain[place:]
            assert orientation_of(moved) == 6
    np.testing.assert_array_equal(decode_image(plain[:-12] + own + plain[-12:]), PICTURE)
    assert orientation_of(plain[:-12] + chunk(b"tEXt", b"eXIf" + own) + plain[-12:]) == 1
    assert orientation_of(plain + own) == 1  # after the end


def test_exif_is_found_in_a_webp_with_prefix_and_after_odd_chunks():
    encoded = turned(6, "WEBP")
    place = encoded.index(b"EXIF")
    assert orientation_of(encoded) == 6
    for content in (b"Exif\0\0" + tiff(6, "<"), tiff(6, "<", before=30)):
        for before in (b"", b"ABCD\3\0\0\0abc\0"):
            exif = b"EXIF" + struct.pack("<I", len(content)) + content
            assert orientation_of(encoded[:place] + before + exif) == 6
    without_flag = bytearray(encoded)
    without_flag[20] &= ~0x08
    assert orientation_of(bytes(without_flag)) == 1


NOT_ORIENTATIONS = {
    "value 0": app1(0),
    "value 9": app1(9),
    "another tag": app1(6, tag=0x0113),
    "a long number": app1(6, kind=4),
    "billions of values": app1(6, count=2**32 - 1),
    "no TIFF": segment(0xE1, b"Exif\0\0" + b"XX" + tiff(6)[2:]),
    "mixed byte orders": segment(0xE1, b"Exif\0\0II\0*" + tiff(6)[4:]),
    "another prefix": app1(6, prefix=b"Exif\0\1"),
    "directory after the end": segment(0xE1, b"Exif\0\0MM\0*" + b"\xff" * 4),
    "directory of 65,535 entries": segment(0xE1, b"Exif\0\0MM\0*\0\0\0\x08\xff\xff" + bytes(99)),
    "nothing after the prefix": segment(0xE1, b"Exif\0\0"),
    "cut within its entry": segment(0xE1, b"Exif\0\0" + tiff(6, before=0)[:19]),
    "another segment": segment(0xE3, b"Exif\0\0" + tiff(6)),
    "of a preview": segment(0xE1, b"Exif\0\0" + tiff(1, before=0) + turned(6, "JPEG")),
}


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.parametrize("name", NOT_ORIENTATIONS)
def test_invalid_orientations_are_ignored(name):
    encoded = with_segments(NOT_ORIENTATIONS[name])
    assert orientation_of(encoded) == 1
    np.testing.assert_array_equal(decode_image(encoded), Image.open(io.BytesIO(encoded)))


def test_exif_after_the_start_of_the_pixels_is_ignored():
    assert orientation_of(TURNED_JPEG[:-2] + app1(6) + TURNED_JPEG[-2:]) == 1


@tiers.parametrize("file_format", FORMATS, ["JPEG"])
def test_damaged_exif_never_fails(file_format):
    """Decode images with randomly mutated EXIF, in any orientation."""
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(300):
        _, exif = mutated(tiff(6, "<"), rng, OF_BYTES)
        damaged = photo(PICTURE, file_format, exif)
        seen.add(int(orientation_of(damaged)))
        assert sorted(decode_image(damaged).shape) == [3, HEIGHT, WIDTH]
    assert {1, 6} <= seen <= set(ORIENTATIONS)


@pytest.mark.slow
def test_a_million_empty_segments_end_the_search():
    encoded = with_segments(2**20 * segment(0xE5, b""), app1(6))
    assert orientation_of(encoded) == 1
    assert orientation_of(b"\xff\xd8\xff" + 2**22 * b"\xff" + app1(6)) == 1
    assert orientation_of(b"\xff\xd8\xff" + b"Exif\0\0") == 1


@pytest.mark.slow
def test_exported_model_embeds_all_orientations_like_the_evaluation(tmp_path):
    """Embeddings are 4×4 pixels."""
    model = keras.Sequential(
        [keras.Input([4, 4, 3]), keras.layers.Rescaling(1.0, -127.5), keras.layers.Flatten()]
    )
    export_saved_model(model, tmp_path / "model", EvaluationTransform(4))
    embed = ImageEmbedder(tmp_path / "model")
    photos = [turned(*kind) for kind in itertools.product(ORIENTATIONS, FORMATS)]
    table = ImageTable.from_encoded(photos, [0] * 24)
    (images,) = pipelines.evaluation_batches(table, EvaluationTransform(4), 24)
    served, bad = embed(photos)
    assert not bad
    np.testing.assert_allclose(served, model(images), atol=1e-4)
    np.testing.assert_allclose(served, np.broadcast_to(served[0], served.shape), atol=1)


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_pictures_on_pages_are_upright_without_orientation_tag(orientation):
    upright = smooth(500, 400)
    data, _ = thumbnail(io.BytesIO(turned(orientation, "JPEG", upright)))
    shown = Image.open(io.BytesIO(data))
    assert not shown.getexif()
    expected, _ = thumbnail(io.BytesIO(photo(upright, "JPEG")))
    expected = np.asarray(Image.open(io.BytesIO(expected)), float)
    assert np.abs(np.asarray(shown) - expected).mean() < 3
