"""Bytes that a program really reads: through a counting file, from the kernel's counters, by pages of a mapping."""

from __future__ import annotations

import ctypes
import io
import mmap
import os
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..columnar import KERNEL_PAGE


class CountingFile(io.RawIOBase):
    """A file open for reading that remembers each read as (offset, bytes). pyarrow takes it in place of a path."""

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115, since close() closes it
        self.reads: list[tuple[int, int]] = []

    @property
    def bytes(self) -> int:
        """Bytes read since the last ``clear``."""
        return sum(size for _, size in self.reads)

    def clear(self) -> None:
        """Forget the reads so far."""
        self.reads.clear()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, buffer: Any) -> int:
        at = self._file.tell()
        count = self._file.readinto(buffer) or 0
        self.reads.append((at, count))
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


@dataclass
class KernelReads:
    """``bytes`` that a block asked the kernel for with read calls, in all threads of this process."""

    bytes: int | None = None


@contextmanager
def kernel_reads() -> Iterator[KernelReads]:
    """Count the bytes of read calls inside the block, from ``/proc/self/io``; None where there is no such file.

    The page cache does not matter: what counts is what was asked for. A mapped file is not counted.
    """
    found = KernelReads()
    _rchar()
    before, after = _rchar(), _rchar()
    own = after - before if before is not None and after is not None else 0  # reading the counter is a read as well
    start = _rchar()
    yield found
    end = _rchar()
    found.bytes = None if start is None or end is None else end - start - own


def _rchar() -> int | None:
    try:
        return int(Path("/proc/self/io").read_text().split(None, 2)[1])
    except OSError:
        return None


def disk_folder() -> Path:
    """A new temporary folder, on a disk where there is one: a file in memory (tmpfs) has no pages to fetch."""
    disk = Path("/var/tmp")
    return Path(tempfile.mkdtemp(dir=disk if os.access(disk, os.W_OK) else None))


def fetched_pages(path: str | Path, read: Callable[[mmap.mmap], object]) -> int | None:
    """How many pages of the file the kernel fetched while ``read`` used a mapping of it, starting from none.

    None where the system cannot say: outside Linux, or where the file is in memory anyway (tmpfs).
    """
    if not hasattr(os, "posix_fadvise") or not hasattr(mmap, "MADV_RANDOM"):
        return None
    with open(path, "r+b") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    mapping.madvise(mmap.MADV_RANDOM)  # no read-ahead
    if _resident(mapping) != 0:
        return None
    read(mapping)
    return _resident(mapping)


def _resident(mapping: mmap.mmap) -> int | None:
    """Pages of a mapping that are in memory, as ``mincore`` has it."""
    first = ctypes.c_char.from_buffer(mapping)
    pages = -(-len(mapping) // KERNEL_PAGE)
    answer = (ctypes.c_ubyte * pages)()
    failed = ctypes.CDLL(None).mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(len(mapping)), answer)
    del first
    return None if failed else sum(one & 1 for one in answer)


def sizes(folder: str | Path) -> dict[str, int]:
    """Every file below ``folder`` with its size in bytes; a file stands for itself."""
    root = Path(folder)
    files = [root] if root.is_file() else [path for path in root.rglob("*") if path.is_file()]
    return {str(path): path.stat().st_size for path in sorted(files)}


# -- Parquet's page index, which pyarrow writes and does not show -----------------------------------------------
@dataclass(frozen=True)
class Page:
    """A data page: where it is, how many bytes it has, header included, and the first of its rows in the group."""

    offset: int
    bytes: int
    first_row: int


def parquet_page_index(path: str | Path, *, group: int = 0, column: int = 0) -> list[Page]:
    """The pages of one column chunk, from the offset index that ``write_page_index=True`` stores.

    The names of the fields are in parquet.thrift: FileMetaData 4 row_groups, RowGroup 1 columns, ColumnChunk 4
    offset_index_offset, OffsetIndex 1 page_locations.
    """
    data = Path(path).read_bytes()
    (size,) = struct.unpack("<I", data[-8:-4])
    chunk = _Thrift(data, len(data) - 8 - size).struct()[4][group][1][column]
    locations = _Thrift(data, chunk[4]).struct()[1]
    return [Page(offset=one[1], bytes=one[2], first_row=one.get(3, 0)) for one in locations]


@dataclass
class _Thrift:
    """A reader of Thrift's compact protocol: structs become dicts by field number."""

    data: bytes
    at: int
    _sizes: dict[int, int] = field(default_factory=lambda: {3: 1, 7: 8})

    def struct(self) -> dict[int, Any]:
        found: dict[int, Any] = {}
        number = 0
        while kind := self.byte():
            number = number + (kind >> 4) if kind >> 4 else self.zigzag()
            found[number] = kind & 15 == 1 if kind & 15 in (1, 2) else self.value(kind & 15)
        return found

    def value(self, kind: int) -> Any:
        if kind in (4, 5, 6):
            return self.zigzag()
        if kind in self._sizes:
            return self.take(self._sizes[kind])
        if kind == 8:
            return self.take(self.varint())
        if kind in (9, 10):
            head = self.byte()
            count = head >> 4 if head >> 4 < 15 else self.varint()
            return [self.byte() == 1 if head & 15 in (1, 2) else self.value(head & 15) for _ in range(count)]
        return self.struct()

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def take(self, count: int) -> bytes:
        self.at += count
        return self.data[self.at - count : self.at]

    def varint(self) -> int:
        shift = found = 0
        while True:
            byte = self.byte()
            found |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return found

    def zigzag(self) -> int:
        number = self.varint()
        return number >> 1 ^ -(number & 1)
