"""Synthetic photographs: a textured thing on a background, with varying light and crop.

A thing has an outline (a few harmonics of the radius over the angle) and a texture (stripes or
checks with a width, an angle, and a contrast). Its two colors are fixed only on request. Position,
size, rotation, background, light, and noise vary between photos.

`python synthetic_photographs.py FOLDER` writes 40 photographs of 10 kinds, and `query.jpg`.
"""

import pathlib
import sys

import numpy as np
from PIL import Image
from scipy import ndimage

SIDE = 32


def catalog(number, seed):
    """Return the parameters of `number` things: a dict of arrays with a row for each class."""
    rng = np.random.default_rng([seed, 1])
    harmonics = np.arange(2, 7)
    return {
        "outline": rng.uniform(0, 0.55, (number, len(harmonics))) / harmonics**0.5,
        "phase": rng.uniform(0, 2 * np.pi, (number, len(harmonics))),
        "frequency": rng.uniform(3, 16, number),
        "angle": rng.uniform(0, np.pi, number),
        "checks": rng.integers(0, 2, number),
        "colors": rng.uniform(0, 1, (number, 2, 3)),
    }


def photographs(things, images_per_class, seed, other_colors=0.0):
    """Return pictures, uint8 `[classes * images, SIDE, SIDE, 3]`, sorted by class.

    `other_colors` is the share of the color that differs from photo to photo.
    """
    rng = np.random.default_rng([seed, 2])
    classes = len(things["frequency"])
    return np.stack(
        [
            _photograph(things, number, rng, other_colors)
            for number in np.repeat(range(classes), images_per_class)
        ]
    )


def catalog_pictures(things, seed):
    """Return one picture of each class: upright, centered, on white, in even light."""
    rng = np.random.default_rng([seed, 3])
    return np.stack(
        [_photograph(things, n, rng, 0.0, plain=True) for n in range(len(things["angle"]))]
    )


def _photograph(things, number, rng, other_colors, plain=False):
    scale, turn, places = 0.9, 0.0, np.zeros(2)
    if not plain:
        scale, turn = rng.uniform(0.8, 1.0), rng.normal(0, 0.1)
        places = rng.uniform(-0.12, 0.12, 2)
    line = np.linspace(-1, 1, SIDE)
    y, x = np.meshgrid(line - places[0], line - places[1], indexing="ij")
    x, y = (
        (np.cos(turn) * x + np.sin(turn) * y) / scale,
        (np.cos(turn) * y - np.sin(turn) * x) / scale,
    )
    theta = np.arctan2(y, x)
    waves = np.cos(theta[..., None] * np.arange(2, 7) + things["phase"][number])
    inside = np.hypot(x, y) < 0.8 + (things["outline"][number] * waves).sum(axis=-1)
    angle, frequency = things["angle"][number], things["frequency"][number]
    u, v = np.cos(angle) * x + np.sin(angle) * y, np.cos(angle) * y - np.sin(angle) * x
    texture = np.sin(frequency * u)
    if things["checks"][number]:
        texture = texture * np.sin(frequency * v)
    texture = 0.5 + 0.5 * np.tanh(3 * texture)[..., None]
    # Two colors that always contrast.
    colors, own = things["colors"][number], rng.uniform(0, 1, (2, 3))
    first, second = (1 - other_colors) * colors + other_colors * own
    second = np.where(np.abs(first - second).max() < 0.4, 1 - first, second)
    thing = texture * first + (1 - texture) * second
    picture = np.where(inside[..., None], thing, 1.0 if plain else _background(rng))
    if not plain:
        shade = 1 + 0.15 * (rng.normal() * x + rng.normal() * y)[..., None]
        picture = rng.uniform(0.6, 1.1) * shade * picture + rng.normal(0, 0.04, picture.shape)
    return (255 * np.clip(picture, 0, 1)).astype("uint8")


def _background(rng):
    """Return a few soft spots of color."""
    return ndimage.zoom(rng.uniform(0, 1, (5, 5, 3)), (SIDE / 5, SIDE / 5, 1), order=1)


def write_folder(folder, classes=10, images_per_class=4):
    """Write JPEG files to `folder/kind K/`, and another photograph of kind 0 to `query.jpg`."""
    things = catalog(classes, seed=0)
    pictures = photographs(things, images_per_class, seed=0)
    folder.mkdir()
    for number, picture in enumerate(pictures):
        kind, image = divmod(number, images_per_class)
        place = folder / f"kind {kind}"
        place.mkdir(exist_ok=True)
        Image.fromarray(picture).resize((128, 128)).save(place / f"{image}.jpg")
    Image.fromarray(photographs(things, 1, seed=1)[0]).resize((128, 128)).save("query.jpg")


if __name__ == "__main__":
    write_folder(pathlib.Path(sys.argv[1]))
