# SPDX-License-Identifier: Apache-2.0
"""The conformance vectors: the reference makes the same bytes again, every device gives what the files say, a
program in C reads them with nothing of this project, and a bit that is not as it should be is noticed."""

from __future__ import annotations

import collections
import functools
import importlib
import shutil
import subprocess
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest
from vector_cases import cases
from vector_file import FOLDER, KINDS, SUMS, Record, from_bytes, read, sums_of, to_bytes
from vector_play import has_index, index_of, is_for_sram, play

import sparq_ipu

FILES = sorted(FOLDER.glob("*.vec"))
DEVICES = sparq_ipu.available_devices()
ISAS = importlib.import_module("sparq_ipu._cpu").available_isas() if "cpu" in DEVICES else []
C_SOURCE = FOLDER.parent / "dense.c"
records_of = functools.lru_cache(maxsize=None)(read)


def files_for(device: str) -> list[Path]:
    """The CPU has no key index of some components; other devices have all, in some memory."""
    return [f for f in FILES if device != "cpu" or "index_components" not in index_of(records_of(f))]


def test_the_reference_makes_the_same_bytes() -> None:
    made = {f"{name}.vec": make for name, make in cases()}
    assert sorted(made) == [file.name for file in FILES]
    assert [file.name for file in FILES if to_bytes(made[file.name]().records) != file.read_bytes()] == []
    assert (FOLDER / SUMS).read_text(encoding="utf-8") == sums_of(FOLDER)
    assert sum(file.stat().st_size for file in FILES) < 2e6


def test_they_cover_what_their_page_says() -> None:
    found = collections.Counter(
        (record.kind, records[0].numbers["index_bits"], records[0].numbers["row_bits"])
        for records in map(records_of, FILES)
        for record in records
    )
    assert {kind for kind, _, _ in found} == set(KINDS)
    assert {("first", 2, 8), ("first", 16, 16)} <= set(found)
    every = {
        (kind, index, rows) for kind in ("dense", "sparq") for index in (16, 8, 4, 2) for rows in (16, 8)
    }
    assert every | {("window", 16, 16), ("window", 4, 8)} <= set(found)


def test_a_file_is_read_as_it_was_written() -> None:
    for file in FILES:
        assert to_bytes(list(from_bytes(file.read_bytes()))) == file.read_bytes()


@pytest.mark.parametrize("device", [device for device in DEVICES if device in ("reference", "cpu")])
def test_bits(device: str) -> None:
    for file in files_for(device):
        assert play(records_of(file), device) == [], file.name


@pytest.mark.parametrize("isa", ISAS)
def test_bits_with_every_width_of_vectors_and_number_of_threads(isa: str) -> None:
    for n_threads in (1, 3):
        for file in files_for("cpu"):
            assert play(records_of(file), "cpu", isa=isa, n_threads=n_threads) == [], file.name


#: options on "emulator" and "ipu": the files that this is for, the calls that are of another memory, and at
#: least so many files
MEMORIES: list[Any] = [
    (dict(memory="streaming"), lambda records: records[0].numbers["row_bits"] == 16, (), 38),
    pytest.param(
        dict(memory="tiered"),
        lambda records: records[0].numbers["index_bits"] < 16,
        ("dense",),
        29,
        marks=pytest.mark.slow,
    ),
    (dict(memory="sram"), is_for_sram, ("sparq", "window"), 20),
]


@pytest.mark.parametrize("device", [device for device in DEVICES if device in ("emulator", "ipu")])
@pytest.mark.parametrize(
    ("options", "is_for", "left_out", "at_least"),
    MEMORIES,
    ids=lambda x: x.get("memory") if type(x) is dict else "",
)
def test_bits_on_ipus(
    device: str,
    options: dict[str, Any],
    is_for: Callable[[list[Record]], bool],
    left_out: tuple[str, ...],
    at_least: int,
) -> None:
    chosen = [
        file
        for file in files_for(device)
        if is_for(records_of(file)) and has_index(options["memory"], records_of(file))
    ]
    assert len(chosen) >= at_least
    tiles = dict(n_tiles=8) if device == "emulator" else {}
    for file in chosen:
        assert play(records_of(file), device, left_out, **tiles, **options) == [], file.name


def with_another_bit(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_any_bit_of_a_file_counts(tmp_path: Path) -> None:
    shutil.copy(FOLDER / SUMS, tmp_path)
    rng = np.random.default_rng(0)
    for file in FILES:
        content, copy = file.read_bytes(), tmp_path / file.name
        for bit in rng.integers(8 * len(content), size=5):
            copy.write_bytes(with_another_bit(content, int(bit)))
            with pytest.raises(ValueError, match="its SHA-256 must be in SHA256SUMS"):
                read(copy)
        copy.write_bytes(content)
        assert [record.kind for record in read(copy)] == [record.kind for record in records_of(file)]


@pytest.mark.parametrize("device", [device for device in DEVICES if device in ("reference", "cpu")])
def test_one_bit_of_what_is_expected_is_noticed(device: str) -> None:
    """Without the sums: what a device gives is compared to the last bit."""
    rng = np.random.default_rng(1)
    names = ["narrowing", "appends_index4", "window_index4_rows8", "rows8_huge_index4"]
    for name in [*names, "first_peaks_index4"]:
        if FOLDER / f"{name}.vec" not in files_for(device):
            continue
        records = list(records_of(FOLDER / f"{name}.vec"))
        for number, record in enumerate(records):
            for array in {"output", "sums", "value"} & set(record.arrays if record.kind != "append" else ()):
                content = record.arrays[array].tobytes()
                other = with_another_bit(content, int(rng.integers(8 * len(content))))
                changed = np.frombuffer(other, record.arrays[array].dtype).reshape(record.arrays[array].shape)
                broken = list(records)
                broken[number] = record._replace(arrays={**record.arrays, array: changed})
                (wrong,) = play(broken, device)
                assert wrong.startswith(f"record {number}: {record.kind}")


def test_what_is_no_such_file_is_refused() -> None:
    content = FILES[0].read_bytes()
    for changed, words in (
        (content[40:], "record at byte 0: its kind must be one of"),
        (content + content, f"record at byte {len(content)}: its kind must be one of"),
        (with_another_bit(content, 64), "the version must be 1, got 0"),
        (with_another_bit(content, 8 * 44), "its arrays must end at byte"),
    ):
        with pytest.raises(ValueError, match=words):
            list(from_bytes(changed))


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program in C, compiled."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    assert compiler, "a C compiler is needed"
    program = tmp_path_factory.mktemp("c") / "dense"
    flags = "-std=c99 -Wall -Wextra -Wpedantic -Werror -O2 -ffp-contract=off".split()
    subprocess.run([compiler, *flags, str(C_SOURCE), "-lm", "-o", str(program)], check=True)
    return program


def test_a_program_in_c_of_60_lines_needs_nothing_of_this_project(dense: Path) -> None:
    source = C_SOURCE.read_text(encoding="utf-8").splitlines()
    assert len(source) <= 60
    assert [line for line in source if line.startswith("#")] == [
        f"#include <{header}.h>" for header in ("math", "stdint", "stdio")
    ]
    n_files = 0
    for file in FILES:
        records = records_of(file)
        of, kinds = records[0].numbers, [record.kind for record in records]
        n_dense = kinds[: kinds.index("reorder") if "reorder" in kinds else None].count("dense")
        if of["row_bits"] == 8 or not n_dense:
            continue
        done = subprocess.run([str(dense), str(file)], stdout=subprocess.PIPE, text=True)
        n_heads = n_dense * of["batch"] * of["n_heads"]
        assert (done.returncode, done.stdout) == (0, f"{n_heads} heads, 0 of them differ\n"), file.name
        n_files += 1
    assert n_files >= 25


def test_the_program_in_c_notices_one_bit(dense: Path, tmp_path: Path) -> None:
    records = list(records_of(FOLDER / "lengths_index16.vec"))
    number = [record.kind for record in records].index("dense")
    arrays = records[number].arrays
    for bit in (0, 333, 6 * 8 * 16 - 1):
        output = np.frombuffer(with_another_bit(arrays["output"].tobytes(), bit), "<f2").reshape(6, 1, 8)
        records[number] = records[number]._replace(arrays={**arrays, "output": output})
        (tmp_path / "one.vec").write_bytes(to_bytes(records))
        done = subprocess.run([str(dense), str(tmp_path / "one.vec")], stdout=subprocess.PIPE, text=True)
        assert (done.returncode, done.stdout) == (1, "12 heads, 1 of them differ\n")
