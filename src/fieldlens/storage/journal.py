"""A journal: records appended to a file as they are computed, from which an interrupted computation resumes."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from fieldlens.storage.atomic import touch_disk

_LENGTH, _HASH = 8, 32
"""Bytes in front of a record: its length, and its sha256."""


@dataclass
class Journal:
    """Records in the order in which they were computed; a kill or a full disk loses the one being written, no other."""

    path: Path
    end: int = 0
    """Position after the last intact record."""

    def read(self) -> list[bytes]:
        """The records up to the first that is incomplete or damaged; later ones are overwritten by `append`."""
        data = self.path.read_bytes() if self.path.exists() else b""
        records, self.end = [], 0
        while len(data) >= self.end + _LENGTH + _HASH:
            start = self.end + _LENGTH + _HASH
            stop = start + int.from_bytes(data[self.end : self.end + _LENGTH], "big")
            if stop > len(data) or hashlib.sha256(data[start:stop]).digest() != data[self.end + _LENGTH : start]:
                break
            records.append(data[start:stop])
            self.end = stop
        return records

    def append(self, record: bytes) -> None:
        """Write a record after the last intact one, and make it durable."""
        touch_disk()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("r+b" if self.path.exists() else "wb") as file:
            file.truncate(self.end)
            file.seek(self.end)
            file.write(len(record).to_bytes(_LENGTH, "big") + hashlib.sha256(record).digest())
            file.flush()
            touch_disk()
            file.write(record)
            file.flush()
            touch_disk()
            os.fsync(file.fileno())
            self.end = file.tell()
