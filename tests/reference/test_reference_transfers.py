# SPDX-License-Identifier: Apache-2.0
"""Transfer formulas against numbers of the paper and against counting."""

from __future__ import annotations

import numpy as np
import pytest

from sparq_reference import key_index, transfers


@pytest.mark.parametrize(("seq_len", "paper", "digits"), [(16384, "7.53", 2), (4096, "6.4", 1)])
def test_theoretical_speedups_of_the_paper(seq_len: int, paper: str, digits: int) -> None:
    """Section 6.1 and table 4, to the digits printed there; head_dim 128, r = 32, k = 128."""
    assert f"{transfers.theoretical_speedup(seq_len, 128, 32, 128):.{digits}f}" == paper


def test_equations_3_and_11() -> None:
    """With the rows that do not grow, the long sequence gives 7.52, so two digits tell the two apart."""
    ratio = transfers.dense_elements(16384, 128) / transfers.sparq_elements(16384, 128, 32, 128)
    assert f"{ratio:.2f}" == "7.52"


@pytest.mark.parametrize(
    ("index_bits", "of_index", "speedup"),
    # S = 16384, head_dim 128, r = 32, k = 128: 256 blocks, and 4 * 128 * 128 = 65536 bytes of rows
    [
        (16, 2 * 16384 * 32, "7.53"),  # 1048576; 8388608 / (1048576 + 65536)
        (8, 16384 * 32 + 256 * 32 * 4, "13.47"),  # 524288 + 32768; 8388608 / 622592
        (4, 16384 * 16 + 256 * 32 * 4, "23.27"),  # 262144 + 32768; 8388608 / 360448
    ],
)
def test_bytes_by_hand(index_bits: int, of_index: int, speedup: str) -> None:
    assert transfers.dense_bytes(16384, 128) == 8388608 + 512
    assert transfers.index_bytes(16384, 32, index_bits) == of_index
    assert transfers.sparq_bytes(16384, 128, 32, 128, index_bits) == of_index + 65536 + 8 * 128
    assert f"{transfers.theoretical_speedup(16384, 128, 32, 128, index_bits):.2f}" == speedup


@pytest.mark.parametrize(
    ("seq_len", "bytes_8", "bytes_4", "bytes_2"),
    [  # of 3 components: a block has 64 + 4, 32 + 4 or 16 + 4 bytes of each, a position behind it 2
        (63, 3 * 126, 3 * 126, 3 * 126),
        (64, 3 * 68, 3 * 36, 3 * 20),
        (65, 3 * (68 + 2), 3 * (36 + 2), 3 * (20 + 2)),
        (191, 3 * (2 * 68 + 126), 3 * (2 * 36 + 126), 3 * (2 * 20 + 126)),
        (192, 9 * 68, 9 * 36, 9 * 20),
    ],
)
def test_positions_behind_the_last_full_block_are_fp16(
    seq_len: int, bytes_8: int, bytes_4: int, bytes_2: int
) -> None:
    got = [transfers.index_bytes(seq_len, 3, index_bits) for index_bits in (16, 8, 4, 2)]
    assert got == [6 * seq_len, bytes_8, bytes_4, bytes_2]


def test_a_key_index_is_stored_as_counted() -> None:
    """The arrays of the reference, with codes of fewer bits packed into bytes."""
    keys = np.random.default_rng(0).standard_normal((8, 130)).astype(np.float16)
    for index_bits in (8, 4, 2):
        index = key_index.quantise(keys[:, :128], index_bits)
        stored = index.low.nbytes + index.step.nbytes + index.code.nbytes * index_bits // 8
        assert transfers.index_bytes(130, 8, index_bits) == stored + keys[:, 128:].nbytes


def test_16_bits_are_the_elements_of_the_paper() -> None:
    for sizes in ((1, 8, 1, 1), (1000, 64, 16, 100), (16384, 128, 32, 128)):
        assert transfers.sparq_bytes(*sizes) == 2 * transfers.sparq_elements(*sizes)
        assert transfers.dense_bytes(*sizes[:2]) == 2 * transfers.dense_elements(*sizes[:2])


def test_rows_of_8_bits_are_fewer_bytes_in_both() -> None:
    """The new key and value, and the mean value, stay fp16."""
    for seq_len, head_dim, rank, top_k in ((1000, 64, 16, 100), (130, 40, 8, 7)):
        saved = transfers.row_bytes(head_dim) - transfers.row_bytes(head_dim, 8)
        dense = transfers.dense_bytes(seq_len, head_dim), transfers.dense_bytes(seq_len, head_dim, 8)
        sizes = seq_len, head_dim, rank, top_k, 4
        sparq = transfers.sparq_bytes(*sizes), transfers.sparq_bytes(*sizes, 8)
        assert (dense[0] - dense[1], sparq[0] - sparq[1]) == (seq_len * saved, top_k * saved)


@pytest.mark.parametrize("wrong", [5, True, "8", 8.0, None])
def test_other_index_bits_are_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"^index_bytes: index_bits must be one of 16, 8, 4, 2, got "):
        transfers.sparq_bytes(64, 8, 4, 4, wrong)


def test_counting_rows() -> None:
    """The same numbers from lists of what is read and written."""
    seq_len, head_dim, rank, top_k = 1000, 64, 16, 100
    row = head_dim
    assert transfers.dense_elements(seq_len, head_dim) == sum([row] * seq_len * 2) + row + row
    columns = [seq_len] * rank
    assert transfers.sparq_elements(seq_len, head_dim, rank, top_k) == sum(
        columns + [row] * 2 * top_k + [row] * 4
    )


def test_speedup_and_ratio_agree_but_for_a_few_rows() -> None:
    for seq_len in (1024, 65536):
        ratio = transfers.sparq_elements(seq_len, 64, 16, 128) / transfers.dense_elements(seq_len, 64)
        product = ratio * transfers.theoretical_speedup(seq_len, 64, 16, 128)
        assert 1 < product < 1 + 4 * 64 / (seq_len * 16)
