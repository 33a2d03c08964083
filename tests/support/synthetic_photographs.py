"""Photographs drawn by code: a textured thing before a background, in some light, cut out somehow.

What a thing is: its outline (a few harmonics of the radius over the angle) and its texture (stripes
or checks of a width, an angle and a contrast). Its two colours say what it is only if asked for.
Where it lies, how large and how turned, the background, the light and the noise are the photo's.
"""

import numpy as np

SIDE = 32


def catalogue(number, seed):
    """So many classes of things; a dict of arrays with a row for each."""
    rng = np.random.default_rng([seed, 1])
    harmonics = np.arange(2, 7)
    return {
        "outline": rng.uniform(0, 0.55, (number, len(harmonics))) / harmonics**0.5,
        "phase": rng.uniform(0, 2 * np.pi, (number, len(harmonics))),
        "frequency": rng.uniform(3, 16, number),
        "angle": rng.uniform(0, np.pi, number),
        "checks": rng.integers(0, 2, number),
        "colours": rng.uniform(0, 1, (number, 2, 3)),
    }


def photographs(things, images_per_class, seed, other_colours=0.0):
    """Pictures uint8 `[classes * images, SIDE, SIDE, 3]`, class after class.

    `other_colours` is the share of the colours that is each photo's own.
    """
    rng = np.random.default_rng([seed, 2])
    classes = len(things["frequency"])
    return np.stack(
        [
            _photograph(things, number, rng, other_colours)
            for number in np.repeat(range(classes), images_per_class)
        ]
    )


def catalogue_pictures(things, seed):
    """One of each class: upright, in the middle, before white, in even light."""
    rng = np.random.default_rng([seed, 3])
    return np.stack(
        [_photograph(things, n, rng, 0.0, plain=True) for n in range(len(things["angle"]))]
    )


def _photograph(things, number, rng, other_colours, plain=False):
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
    # Two colours that can be told apart, whatever they are.
    colours, own = things["colours"][number], rng.uniform(0, 1, (2, 3))
    first, second = (1 - other_colours) * colours + other_colours * own
    second = np.where(np.abs(first - second).max() < 0.4, 1 - first, second)
    thing = texture * first + (1 - texture) * second
    picture = np.where(inside[..., None], thing, 1.0 if plain else _background(rng))
    if not plain:
        shade = 1 + 0.15 * (rng.normal() * x + rng.normal() * y)[..., None]
        picture = rng.uniform(0.6, 1.1) * shade * picture + rng.normal(0, 0.04, picture.shape)
    return (255 * np.clip(picture, 0, 1)).astype("uint8")


def _background(rng):
    """A few soft spots of colour."""
    small = rng.uniform(0, 1, (5, 5, 3))
    at = np.linspace(0, 3.999, SIDE)
    low, part = at.astype(int), (at % 1)[:, None]
    rows = small[low] * (1 - part[..., None]) + small[low + 1] * part[..., None]
    return rows[:, low] * (1 - part) + rows[:, low + 1] * part
