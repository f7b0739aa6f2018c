# SPDX-License-Identifier: Apache-2.0
"""Prefixes of prompts on disk: what is found again, what is ignored, what is deleted."""

from __future__ import annotations

import errno
import logging
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("safetensors")

from sparq_ipu import kept_prefixes
from sparq_ipu.kept_prefixes import BLOCK, GROUP, KeptPrefixes, Rows, check_folder

N_LAYERS = 3


def rows_of(tokens: np.ndarray, start: int = 0, stop: int | None = None) -> Rows:
    """As of a model: those of a token follow from all tokens up to it."""
    sums = np.cumsum(tokens)[start:stop] % 2003
    made = []
    for layer in range(N_LAYERS):
        key = np.multiply.outer(np.arange(1, 3), sums)[..., None] + np.arange(8) * layer
        made.append((key.astype(np.float16), -key.astype(np.float16)))
    return made


class Folder:
    """A folder, and what prefixes of it are opened and closed again."""

    def __init__(self, path: Path):
        self.path = path

    def keep(self, *texts: np.ndarray, version: str = "1", limit: float = 1e9) -> None:
        kept = KeptPrefixes(self.path, version, limit)
        for text in texts:
            kept.keep(text, lambda start, stop, text=text: rows_of(text, start, stop))  # type: ignore[misc]
        kept.close()

    def n_held(self, text: np.ndarray, version: str = "1") -> int:
        """Tokens of a text that are found, each with its own bits."""
        kept, held = KeptPrefixes(self.path, version, 1e9), 0
        while True:
            rows = kept.fetch(text, held).result()
            if not rows:
                break
            n = rows[0][0].shape[1]
            for pair, expected in zip(rows, rows_of(text, held, held + n)):
                for one, other in zip(pair, expected):
                    assert one.dtype == np.float16 and one.tobytes() == other.tobytes()
            held += n
        kept.close()
        return held

    @property
    def files(self) -> list[Path]:
        """The oldest first."""
        return sorted(self.path.iterdir(), key=lambda path: path.stat().st_mtime_ns)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    check_folder("serve", tmp_path / "a" / "b")
    return Folder(tmp_path / "a" / "b")


def text_of(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 50000, n)


def common(one: np.ndarray, other: np.ndarray) -> int:
    n = min(len(one), len(other))
    return next((i for i in range(n) if one[i] != other[i]), n)


@pytest.mark.parametrize("seed", range(40))
def test_random_texts_are_found_as_far_as_any_began_alike(folder: Folder, seed: int) -> None:
    draw = random.Random(seed)
    texts: list[np.ndarray] = []
    for _ in range(draw.randrange(1, 6)):
        text = text_of(draw.randrange(1, 9 * BLOCK), draw.randrange(1 << 30))
        if texts:  # the beginning of another, of some length
            other = draw.choice(texts)
            n = draw.randrange(len(other) + 1)
            text = np.concatenate([other[:n], text[n:]])
        texts.append(text)
        folder.keep(*draw.sample(texts, draw.randrange(1, len(texts) + 1)), text)
    for text in [*texts, text_of(900, seed)]:
        longest = max(common(text, other) // BLOCK * BLOCK for other in texts)
        assert folder.n_held(text) == longest


def test_texts_that_begin_alike_share_files(folder: Folder) -> None:
    text = text_of(10 * BLOCK)
    folder.keep(text[: 6 * BLOCK + 5], text, np.concatenate([text[: 7 * BLOCK], text_of(BLOCK, 1)]))
    assert len(folder.files) == 11


def test_files_are_safetensors(folder: Folder) -> None:
    from safetensors import safe_open

    text = text_of(BLOCK)
    folder.keep(text)
    with safe_open(folder.files[0], "np") as file:
        assert set(file.metadata()) == {"checksum"} and len(file.keys()) == 2 * N_LAYERS
        assert (file.get_tensor("2.value") == rows_of(text)[2][1]).all()


@pytest.mark.parametrize("seed", range(100))
@pytest.mark.parametrize("how", ["flip", "truncate"])
def test_a_damaged_file_is_ignored_with_one_line(folder: Folder, caplog: Any, how: str, seed: int) -> None:
    draw = random.Random(seed)
    text = text_of(3 * BLOCK)
    folder.keep(text)
    path = folder.files[1]  # the last one is the oldest
    data = bytearray(path.read_bytes())
    if how == "flip":
        # in the header as often as in the rest
        n_header = 8 + int.from_bytes(data[:8], "little")
        data[draw.randrange(n_header if seed % 2 else len(data))] ^= 1 << draw.randrange(8)
    else:
        data = data[: draw.randrange(len(data))]
    path.write_bytes(data)
    assert folder.n_held(text) == BLOCK
    assert [record.message[: len(path.name)] for record in caplog.records] == [path.name]
    folder.keep(text)  # another process read it again
    assert folder.n_held(text) == 3 * BLOCK


def test_files_are_read_and_not_mapped(folder: Folder, monkeypatch: Any) -> None:
    """A mapped file that another process cuts would end this one by a signal."""
    text, maps = text_of(BLOCK), Path("/proc/self/maps")
    folder.keep(text)
    checksum, seen = kept_prefixes._checksum, []

    def and_maps(name: str, rows: Rows) -> str:
        seen.append(name in maps.read_text())
        return checksum(name, rows)

    monkeypatch.setattr(kept_prefixes, "_checksum", and_maps)
    assert folder.n_held(text) == BLOCK and seen == [False]


def test_foreign_files(folder: Folder, caplog: Any) -> None:
    """A whole file under another's name, and what has another name."""
    text, other = text_of(BLOCK), text_of(BLOCK, 1)
    folder.keep(text)
    (mine,) = folder.files
    folder.keep(other)
    (foreign,) = (path for path in folder.files if path != mine)
    mine.write_bytes(foreign.read_bytes())
    (folder.path / "notes.txt").write_text("mine")
    assert folder.n_held(text) == 0 and folder.n_held(other) == BLOCK
    assert len(caplog.records) == 1 and "its checksum is wrong" in caplog.text
    folder.keep(text, text_of(300, 3), limit=1)
    assert [path.name for path in folder.files] == ["notes.txt"]


def test_another_version_finds_nothing(folder: Folder, caplog: Any) -> None:
    text = text_of(500)
    folder.keep(text)
    assert folder.n_held(text, version="2") == 0
    folder.keep(text, version="2")
    assert folder.n_held(text) == folder.n_held(text, version="2") == 3 * BLOCK
    assert not caplog.records


def test_what_was_used_least_recently_goes_first_and_ends_before_beginnings(folder: Folder) -> None:
    texts = [text_of(2 * BLOCK, seed) for seed in range(3)]
    folder.keep(*texts)
    size = folder.files[0].stat().st_size
    folder.keep(texts[0])  # used
    folder.keep(text_of(0), limit=5 * size)
    assert [folder.n_held(text) for text in texts] == [2 * BLOCK, BLOCK, 2 * BLOCK]
    folder.keep(text_of(0), limit=3 * size)
    assert [folder.n_held(text) for text in texts] == [2 * BLOCK, 0, BLOCK]


def test_the_limit_holds_while_files_are_written(folder: Folder) -> None:
    folder.keep(text_of(BLOCK))
    size = folder.files[0].stat().st_size
    kept = KeptPrefixes(folder.path, "1", 4 * size)
    for seed in range(20):
        text = text_of(2 * BLOCK, seed)
        kept.keep(text, lambda start, stop, text=text: rows_of(text, start, stop))  # type: ignore[misc]
        kept._writer.submit(int).result()
        assert sum(path.stat().st_size for path in folder.files) <= 4 * size
        assert folder.n_held(text) == 2 * BLOCK
    kept.close()


def test_an_abandoned_temporary_file_is_deleted(folder: Folder) -> None:
    old, new = (folder.path / f".{'0' * 40}.safetensors.{n}" for n in range(2))
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 7200,) * 2)
    folder.keep(text_of(BLOCK))
    assert not old.exists() and new.exists()


def test_a_full_disk_is_one_line(folder: Folder, caplog: Any, monkeypatch: Any) -> None:
    text = text_of(4 * BLOCK)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        folder.keep(text)
    assert folder.files == []
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "No space left" in caplog.text
    folder.keep(text)
    assert folder.n_held(text) == 4 * BLOCK


def test_a_slow_disk_drops_blocks_rather_than_fill_memory(folder: Folder, monkeypatch: Any) -> None:
    text, goes_on = text_of(8 * BLOCK), threading.Event()
    monkeypatch.setattr(
        kept_prefixes, "_MOST_WAITING", 3 * sum(k.nbytes * 2 for k, _ in rows_of(text[:BLOCK]))
    )
    kept = KeptPrefixes(folder.path, "1", 1e9)
    kept._writer.submit(goes_on.wait)
    for _ in range(2):
        kept.keep(text, lambda start, stop: rows_of(text, start, stop))
    goes_on.set()
    kept._writer.submit(int).result()
    kept.keep(text, lambda start, stop: rows_of(text, start, stop))
    kept.close()
    assert folder.n_held(text) == 6 * BLOCK


def test_two_that_share_a_folder(folder: Folder) -> None:
    text = text_of(30 * BLOCK)
    threads = [threading.Thread(target=folder.keep, args=(text[: n * BLOCK],)) for n in (10, 20, 30, 30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert folder.n_held(text) == 30 * BLOCK > GROUP * BLOCK
    assert len(folder.files) == 30


def test_a_file_that_another_process_deleted_is_written_again(folder: Folder) -> None:
    text = text_of(3 * BLOCK)
    kept = KeptPrefixes(folder.path, "1", 1e9)
    for _ in range(2):
        kept.keep(text, lambda start, stop: rows_of(text, start, stop))
        kept._writer.submit(int).result()
        assert folder.n_held(text) == 3 * BLOCK
        folder.files[1].unlink()
        assert kept.read(text, 0)[0][0].shape[1] == BLOCK  # finds it missing
    kept.close()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "folder", Path("/proc/kept")):
        with pytest.raises(ValueError, match="serve: --cache-dir must be a folder that can be written, got "):
            check_folder("serve", path)
