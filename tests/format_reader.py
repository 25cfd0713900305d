"""A reader of buffers by docs/format.md alone: plain NumPy, and nothing of fastbuffer."""

import json
import zlib
from pathlib import Path

import numpy as np

OWN = {"index": "i8", "frame_index": "i8", "episode_index": "i8", "timestamp": "f8"}
RECORDS = {0: (16, 144), 1: (32, 160)}  # where a record and its copy begin, by parity


def file_name(key):
    """The name of a key's file."""
    name = "".join({"/": "%2F", "\0": "%00", "%": "%25"}.get(c, c) for c in key)
    return "%2E" + name[1:] if name.startswith(".") else name


def is_whole(words):
    """Whether the last word is the checksum of the others."""
    return int(words[-1]) == zlib.crc32(words[:-1].tobytes())


def record_of(state):
    """The record in force."""
    header = state[:4]
    assert header[0].tobytes() == b"fastbuf\0"
    assert header[1] == 1
    assert is_whole(header)
    found = []
    for places in RECORDS.values():
        whole = [state[at : at + 16] for at in places if is_whole(state[at : at + 16])]
        if whole and state[places[0]] != 0:  # else it is being written
            found.append(whole[0])
    return max(found, key=lambda record: int(record[0]))


def read(directory):
    """The live frames of each key, from the oldest to the newest."""
    directory = Path(directory)
    manifest = json.loads((directory / "_manifest.json").read_text(encoding="utf-8"))
    assert manifest["format"] == "fastbuffer"
    assert manifest["version"] == 1
    capacity = manifest["capacity"]
    spec = {key: (field["dtype"], field["shape"]) for key, field in manifest["spec"].items()}
    spec |= {key: (dtype, []) for key, dtype in OWN.items()}
    columns = {
        key: np.memmap(directory / file_name(key), np.dtype(dtype), "r").reshape(capacity, *shape)
        for key, (dtype, shape) in spec.items()
    }
    while True:
        live = record_of(np.fromfile(directory / "_state", "<u8"))
        end, first = int(live[1]), int(live[2])
        slots = np.arange(first, end) % capacity
        frames = {key: column[slots] for key, column in columns.items()}
        if record_of(np.fromfile(directory / "_state", "<u8"))[2] == first:
            return frames
