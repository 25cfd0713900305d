"""How many frames a chunk of a Zarr array holds."""

IMAGE_CHUNK = 16
NUMERIC_CHUNK = 256
