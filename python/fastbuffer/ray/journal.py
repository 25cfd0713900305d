"""Which inserts a shard has been asked for, kept on the disk so that none is done twice.

An insert's token is written down before the insert, together with the number of frames that were
ever added once it is done. A process that is killed in between leaves a buffer in which fewer were
added, so the next one knows that the insert did not happen.
"""

import os
import struct
import zlib
from pathlib import Path

_FILE = "_adds"
#: The token, the number of frames, and a checksum of both; padded so that none straddles a sector.
_RECORD = struct.Struct("<16sQI4x")
_EMPTY = bytes(_RECORD.size)
#: How many inserts are remembered: a client asks again within seconds.
_RECORDS = 2**16


class Journal:
    """The last inserts, each with the number of frames ever added once it is done."""

    def __init__(self, directory: Path, total: int, *, fsync: bool) -> None:
        """Open the journal of a directory, or make it there.

        Args:
            directory: The buffer's directory.
            total: How many frames were ever added to the buffer. Inserts that would have made it
                more did not happen, and are forgotten.
            fsync: Whether each note has to survive a power failure.

        Raises:
            OSError: The file cannot be made, read or written.
        """
        self._sync = fsync
        self._file = os.open(directory / _FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._tokens: list[bytes | None] = [None] * _RECORDS
        self._totals: dict[bytes, int] = {}
        self._next = 0
        newest = -1
        for slot, record in enumerate(self._records()):
            token, after, checksum = _RECORD.unpack(record)
            if record == _EMPTY:
                continue
            if checksum != _checksum(token, after) or after > total:
                self._write(slot, _EMPTY)
                continue
            self._tokens[slot], self._totals[token] = token, after
            if after > newest:
                newest, self._next = after, (slot + 1) % _RECORDS

    def total_after(self, token: bytes) -> int | None:
        """How many frames were ever added once that insert was done; None if it was not done."""
        return self._totals.get(token)

    def note(self, token: bytes, total: int) -> None:
        """Write down an insert that is about to be done. The oldest note makes room for it.

        Raises:
            OSError: The file cannot be written. Then nothing is noted.
        """
        slot = self._next
        self._write(slot, _RECORD.pack(token, total, _checksum(token, total)))
        oldest = self._tokens[slot]
        if oldest is not None:
            del self._totals[oldest]
        self._tokens[slot], self._totals[token] = token, total
        self._next = (slot + 1) % _RECORDS

    def forget_last(self) -> None:
        """Take back the last note: its insert was refused."""
        self._next = (self._next - 1) % _RECORDS
        token = self._tokens[self._next]
        self._tokens[self._next] = None
        if token is not None:
            del self._totals[token]
        self._write(self._next, _EMPTY)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _records(self) -> list[bytes]:
        whole = os.pread(self._file, _RECORDS * _RECORD.size, 0)
        starts = range(0, len(whole) - _RECORD.size + 1, _RECORD.size)
        return [whole[start : start + _RECORD.size] for start in starts]

    def _write(self, slot: int, record: bytes) -> None:
        os.pwrite(self._file, record, slot * _RECORD.size)
        if self._sync:
            os.fsync(self._file)


def _checksum(token: bytes, total: int) -> int:
    return zlib.crc32(token + total.to_bytes(8, "little"))
