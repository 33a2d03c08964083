"""The largest image file that is decoded by default."""

# Some formats need 28 bytes per pixel until they reach the model: 1.4 GB.
MOST_PIXELS = 50_000_000


def max_pixels_of(transform: object) -> int:
    """Return the largest number of pixels that a transform decodes."""
    return getattr(transform, "max_pixels", MOST_PIXELS)


def too_large(max_pixels: int) -> str:
    """Return the error message for an image with too many pixels."""
    whole, rest = divmod(max_pixels, 10**6)
    most = f"{max_pixels:,}" if rest else f"{whole:,} million"
    return f"an image of more than {most} pixels"
