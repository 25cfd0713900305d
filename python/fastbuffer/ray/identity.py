"""Which shard of which buffer a directory is: a small file in it that finds shards again."""

import json
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path

from fastbuffer._arguments import refused

_FILE = "_shard.json"
_PREFIX = "shard-"
#: Tells machines apart, also where several share a host name.
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Identity:
    """What a shard's directory says of itself."""

    buffer: str
    shard: int
    num_shards: int


@dataclass(frozen=True)
class Found:
    """A shard's directory, as a node has it."""

    #: None while the buffer is being made.
    identity: Identity | None
    #: The same for two nodes that have the same directory, as nodes of one machine do.
    place: tuple[str, int, int]


def directory_of(write_dir: str, shard: int) -> Path:
    """Where a shard lies, on the node that has it."""
    return Path(write_dir) / f"{_PREFIX}{shard:05d}"


def read(directory: Path) -> Identity | None:
    """What a directory says of itself; None if it says nothing yet.

    Raises:
        ValueError: The file is damaged.
        OSError: It cannot be read.
    """
    path = directory / _FILE
    try:
        return Identity(**json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise ValueError(refused(str(path), "the identity of a shard", error)) from error


def write(directory: Path, identity: Identity) -> None:
    """Let a directory say what it is.

    Raises:
        OSError: It cannot be written.
    """
    made = directory / f".{_FILE}.new"
    with made.open("w", encoding="utf-8") as file:
        json.dump(asdict(identity), file)
        file.flush()
        os.fsync(file.fileno())
    made.replace(directory / _FILE)


def find(write_dir: str) -> dict[int, Found]:
    """The shards that this machine has below a directory, by number.

    Raises:
        ValueError: A file is damaged.
        OSError: Something cannot be read.
    """
    machine = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else socket.gethostname()
    found = {}
    for path in sorted(Path(write_dir).glob(f"{_PREFIX}*")):
        number = path.name.removeprefix(_PREFIX)
        if number.isdecimal() and path.is_dir():
            status = path.stat()
            found[int(number)] = Found(read(path), (machine, status.st_dev, status.st_ino))
    return found
