# SPDX-License-Identifier: Apache-2.0
"""Prefixes of prompts on disk: the beginning of a prompt that was read once is not read again, also after a
restart.

Each file contains the keys and values of BLOCK tokens in all layers (safetensors, float16). Its name is a
hash of the version and of all tokens up to its last one. So prompts that begin alike share files, a lookup
opens no other file, and two processes that share a folder write the same bytes under the same name.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import json
import logging
import os
import re
import tempfile
import threading
import time
import uuid
import zlib
from pathlib import Path
from typing import Callable, List, Tuple

import numpy as np

#: of each layer, keys and values (n_kv_heads, n_tokens, head_dim) float16
Rows = List[Tuple[np.ndarray, np.ndarray]]

#: tokens of a file
BLOCK = 128
#: files that are read at a time
GROUP = 4
#: most bytes that wait to be written
_MOST_WAITING = 1 << 28
#: files that are written before the folder is looked at again: another process may write to it too
_LOOK_EVERY = 32
#: seconds after which a temporary file is one of a process that ended
_ABANDONED = 3600
_NAME = re.compile(r"[0-9a-f]{40}\.safetensors")

_log = logging.getLogger("sparq_ipu.kept_prefixes")


def check_folder(op: str, folder: Path) -> None:
    """Make a folder for prefixes, if it does not exist, or refuse one that cannot be written."""
    try:
        folder.mkdir(0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        rule = "be a folder that can be written"
        raise ValueError(f"{op}: --cache-dir must {rule}, got {folder} ({error.strerror})") from None


class KeptPrefixes:
    """The prefixes in a folder. All work on files is done in two threads, one that reads and one that writes.

    Args:
        folder: made if it does not exist.
        version: of the model and of how prompts are read, `version_of` a model. Files of other versions are
            left alone.
        limit: bytes of all files in the folder. The least recently used are deleted first.
    """

    def __init__(self, folder: Path, version: str, limit: float):
        folder.mkdir(0o700, parents=True, exist_ok=True)
        self._folder, self._version, self._limit = folder, version, limit
        self._lock = threading.Lock()
        #: names of files that exist or wait to be written
        self._known: set[str] = set()
        self._n_waiting = 0  # bytes
        #: bytes of the folder as far as is known, and files written since it was looked at
        self._n_bytes, self._n_written = 0, _LOOK_EVERY
        self._complaints: set[str] = set()
        self._reader, self._writer = (concurrent.futures.ThreadPoolExecutor(1) for _ in range(2))

    def fetch(self, tokens: np.ndarray, start: int) -> concurrent.futures.Future[Rows]:
        """As `read`, in the thread that reads."""
        return self._reader.submit(self.read, tokens, start)

    def read(self, tokens: np.ndarray, start: int) -> Rows:
        """Rows of the next tokens after the first `start`, a multiple of BLOCK: of up to GROUP blocks, as far
        as they are found whole; else an empty list."""
        blocks = []
        for name in self._names(tokens)[start // BLOCK :][:GROUP]:
            try:
                rows = self._rows(name)
            except FileNotFoundError:
                rows = []
            except Exception as error:
                self._complain(f"{name} is ignored: {error}")
                rows = []
            if not rows:
                self._known.discard(name)
                break
            self._known.add(name)
            blocks.append(rows)
        return [
            (np.concatenate([key for key, _ in layer], axis=1), np.concatenate([v for _, v in layer], axis=1))
            for layer in zip(*blocks)
        ]

    def keep(self, tokens: np.ndarray, rows: Callable[[int, int], Rows], begin: int = 0) -> None:
        """Write the blocks of these tokens that are not in the folder, later, and note that all were used.
        rows: called here for a range of positions; returns copies. begin: first position that it has."""
        names = self._names(tokens)
        first = -(-begin // BLOCK)
        new = [index for index, name in enumerate(names) if name not in self._known and index >= first]
        jobs: list[tuple[str, Rows]] = []
        if new:
            first, stop = new[0], new[-1] + 1
            held = rows(first * BLOCK, stop * BLOCK)
            size = sum(key.nbytes + value.nbytes for key, value in held) // (stop - first)
            for index in new:
                if self._n_waiting + size > _MOST_WAITING:
                    break  # the disk is slow: the next prompt that begins so tries again
                here = slice((index - first) * BLOCK, (index - first + 1) * BLOCK)
                block = [(key[:, here], value[:, here]) for key, value in held]
                jobs.append((names[index], block))
                self._known.add(names[index])
                with self._lock:
                    self._n_waiting += size
        self._writer.submit(self._write, names, jobs)

    def close(self) -> None:
        """Wait for what is being written."""
        self._reader.shutdown()
        self._writer.shutdown()

    def _names(self, tokens: np.ndarray) -> list[str]:
        """Of the files of all whole blocks, in order."""
        names, digest = [], hashlib.sha256(self._version.encode()).digest()
        for end in range(BLOCK, len(tokens) + 1, BLOCK):
            block = np.ascontiguousarray(tokens[end - BLOCK : end], "<i8")
            digest = hashlib.sha256(digest + block.tobytes()).digest()
            names.append(f"{digest.hex()[:40]}.safetensors")
        return names

    def _write(self, names: list[str], jobs: list[tuple[str, Rows]]) -> None:
        for name, rows in jobs:
            temporary = self._folder / f".{name}.{uuid.uuid4().hex}"
            try:
                data = self._serialised(name, rows)
                with open(temporary, "xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, self._folder / name)
                self._n_bytes += len(data)
                self._n_written += 1
            except OSError as error:
                self._known.discard(name)
                self._complain(f"no prefix is kept in {self._folder}: {error.strerror}")
                with contextlib.suppress(OSError):
                    temporary.unlink()
            with self._lock:
                self._n_waiting -= sum(key.nbytes + value.nbytes for key, value in rows)
        now = time.time_ns()
        for index, name in enumerate(names):  # the end of a text goes first: without its beginning it is lost
            with contextlib.suppress(OSError):
                os.utime(self._folder / name, ns=(now - index * 1000,) * 2)
        with contextlib.suppress(OSError):
            self._trim()

    def _trim(self) -> None:
        """Delete the least recently used files where there are too many."""
        if self._n_bytes <= self._limit and self._n_written < _LOOK_EVERY:
            return
        files = []
        for entry in os.scandir(self._folder):
            is_temporary = entry.name.startswith(".") and _NAME.match(entry.name, 1) is not None
            if not is_temporary and not _NAME.fullmatch(entry.name):
                continue  # not ours
            with contextlib.suppress(OSError):  # another process deleted it
                found = entry.stat()
                if not is_temporary:
                    files.append((found.st_mtime_ns, found.st_size, entry.name))
                elif found.st_mtime < time.time() - _ABANDONED:
                    os.unlink(entry.path)
        total = sum(size for _, size, _ in files)
        for _, size, name in sorted(files):
            if total <= self._limit:
                break
            with contextlib.suppress(OSError):
                (self._folder / name).unlink()
            self._known.discard(name)
            total -= size
        self._n_bytes, self._n_written = total, 0

    @staticmethod
    def _serialised(name: str, rows: Rows) -> bytes:
        """A file: as safetensors, with a checksum of the name and of the rows."""
        from safetensors.numpy import save

        tensors = {
            f"{index}.{kind}": np.ascontiguousarray(tensor)
            for index, pair in enumerate(rows)
            for kind, tensor in zip(("key", "value"), pair)
        }
        return save(tensors, {"checksum": _checksum(name, rows)})

    def _rows(self, name: str) -> Rows:
        """The rows of a file; raises an error for one that `_serialised` did not return."""
        from safetensors.numpy import load

        # not mapped: a mapped file that another process cuts would end this one
        data = (self._folder / name).read_bytes()
        tensors = load(data)
        rows = [(tensors[f"{i}.key"], tensors[f"{i}.value"]) for i in range(len(tensors) // 2)]
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        if header["__metadata__"]["checksum"] != _checksum(name, rows):
            raise ValueError("its checksum is wrong")
        return rows

    def _complain(self, text: str) -> None:
        """Log a line, once."""
        if text not in self._complaints:
            self._complaints.add(text)
            _log.warning("%s", text)


def _checksum(name: str, rows: Rows) -> str:
    value = zlib.crc32(name.encode())
    for tensor in (tensor for pair in rows for tensor in pair):
        kind = repr((tensor.dtype.str, tensor.shape)).encode()
        value = zlib.crc32(np.ascontiguousarray(tensor).data, zlib.crc32(kind, value))
    return f"{value:08x}"
