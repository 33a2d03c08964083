"""torchvision's definitions of `RandomResizedCrop` and `ColorJitter`, for one image."""

import colorsys
import math

import numpy as np


def area_window(height, width, uniform, area, aspect):
    """Return (y, x, height, width) from 22 uniform numbers: areas, aspects, and the position."""
    place_y, place_x = uniform[20:]
    for attempt in range(10):
        pixels = height * width * (area[0] + uniform[attempt] * (area[1] - area[0]))
        low, high = math.log(aspect[0]), math.log(aspect[1])
        ratio = math.exp(low + uniform[10 + attempt] * (high - low))
        w, h = round(math.sqrt(pixels * ratio)), round(math.sqrt(pixels / ratio))
        if 0 < w <= width and 0 < h <= height:
            return int(place_y * (height - h + 1)), int(place_x * (width - w + 1)), h, w
    if width / height < aspect[0]:
        w, h = width, round(width / aspect[0])
    elif width / height > aspect[1]:
        w, h = round(height * aspect[1]), height
    else:
        w, h = width, height
    return (height - h) // 2, (width - w) // 2, h, w


def jittered(image, uniform, jitter):
    """Return colors 0..255 in float64 from 8 uniform numbers: four factors and four sort keys."""
    image = image.astype(np.float64) / 255
    for kind in sorted(range(4), key=lambda kind: uniform[4 + kind]):
        if jitter[kind] == 0:
            continue
        low = max(0, 1 - jitter[kind]) if kind < 3 else -jitter[3]
        high = 1 + jitter[kind] if kind < 3 else jitter[3]
        factor = low + uniform[kind] * (high - low)
        gray = 0.299 * image[..., 0] + 0.587 * image[..., 1] + 0.114 * image[..., 2]
        if kind == 0:
            image = factor * image
        elif kind == 1:
            image = factor * image + (1 - factor) * gray.mean()
        elif kind == 2:
            image = factor * image + (1 - factor) * gray[..., None]
        else:
            hsv = [colorsys.rgb_to_hsv(*pixel) for pixel in image.reshape(-1, 3)]
            turned = [colorsys.hsv_to_rgb((h + factor) % 1.0, s, v) for h, s, v in hsv]
            image = np.array(turned).reshape(image.shape)
        image = np.clip(image, 0, 1)
    return image * 255
