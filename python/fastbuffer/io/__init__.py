"""Buffers from other formats, and into them."""
