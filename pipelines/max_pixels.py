"""The largest image file that is decoded by default."""

# Some formats need 28 bytes per pixel until they reach the model: 1.4 GB.
MOST_PIXELS = 50_000_000
