# SPDX-License-Identifier: Apache-2.0
"""Mutants of codelets: of each, a vertex that does a little else."""

from __future__ import annotations

from . import of

_CODELETS = "poplar_ops/codelets"
_TESTS = "tests/codelets/test"

MUTANTS = [
    *of(
        f"{_CODELETS}/approx_scores.cpp",
        f"{_TESTS}_scores.py",
        [
            (
                "&scores[h * partPositions + *wave * length]",
                "&scores[h * partPositions]",
                "scores of every wave are written over those of the first",
            ),
            (
                "base + components[j] * tailLength",
                "base + j * tailLength",
                "the tail is scored with its first components",
            ),
            (
                "firstChunk + i, nChunks - 1)",
                "firstChunk + i, nChunks)",
                "a wave reads a chunk behind the last",
            ),
        ],
    ),
    *of(
        f"{_CODELETS}/cache_fill.cpp",
        f"{_TESTS}_cache_fill_vertices.py",
        [
            ("*replace = requested >= 0;", "*replace = requested > 0;", "a row of no tokens stays as it was"),
            (
                "minimum(static_cast<unsigned>(requested), nTokens)",
                "static_cast<unsigned>(requested)",
                "more tokens are held than there are",
            ),
            ("n & ~(quadSize - 1);", "n;", "keys behind the last are turned too"),
            (
                "first == 0 ? Lanes{} : loadLanes(&valueSum[c])",
                "loadLanes(&valueSum[c])",
                "the sum of a former text is added",
            ),
            ("*filled < capacity", "*filled <= capacity", "a token behind the capacity is taken"),
        ],
    ),
    *of(
        f"{_CODELETS}/dense_scores.cpp",
        f"{_TESTS}_scores.py",
        [
            ("segments.valid(*wave, *filled)", "length", "positions behind the length are scored"),
            ("base + minimum(first + i, lastRow)", "base + first + i", "rows behind the last are read"),
        ],
    ),
    *of(
        f"{_CODELETS}/index_scores.hpp",
        f"{_TESTS}_key_index.py",
        [
            (
                "largest = larger(withoutSign(products[0]), largest);",
                "largest = larger(products[0], largest);",
                "the largest product is one above 0",
            ),
            ("bits == 4 ? 16 : 64;", "bits == 4 ? 32 : 64;", "sums of 32 components share a word"),
            (
                "bits == 4 ? 16 : 64;",
                "bits == 4 ? 16 : 128;",
                "sums of 128 components of 2 bits share a word",
            ),
            ("unit = largest * (1.0f / limit);", "unit = largest / limit;", "a unit by division"),
            (
                "quads(indexBits == 8 ? 1 : 2)",
                "quads(1)",
                "half of the positions of a word have scores",
            ),
            (
                "apart(indexBits == 2 ? 8 : quadSize)",
                "apart(quadSize)",
                "scores of 2 bits are of other positions",
            ),
        ],
    ),
    *of(
        "poplar_ops/arith/index_planes.hpp",
        f"{_TESTS}_index_planes.py",
        [
            ("<< (indexBits - depth));", "<< 0);", "the lowest planes are kept"),
            (
                "(1u << (indexBits - depth)) - 1;",
                "(1u << (indexBits - depth));",
                "more is open than there is",
            ),
            (
                "word[2] |= (below.ofEven & high) >> 2;",
                "word[2] |= below.ofEven & high;",
                "low planes count as high ones",
            ),
        ],
    ),
    *of(
        f"{_CODELETS}/index_planes.cpp",
        f"{_TESTS}_index_planes.py",
        [
            ("if (*filled < blockSize)", "if (*filled <= blockSize)", "the first block does not count"),
            ("rows += depth * stride;", "rows += bits * stride;", "planes of others are joined"),
            ("(units[row] * 0.5f)", "units[row]", "unread bits count in full"),
            (
                "return before ? counted : all - counted;",
                "return counted;",
                "later workers list over the first",
            ),
            ("larger(ofBlock[0], widest[c])", "ofBlock[0]", "the last step counts, not the largest"),
        ],
    ),
    *of(
        f"{_CODELETS}/key_index.cpp",
        f"{_TESTS}_key_index.py",
        [
            (
                "base + components[j] * columnWords; };\n    coefficientsOfBlocks",
                "base + j * columnWords; };\n    coefficientsOfBlocks",
                "the tail has coefficients of its first components",
            ),
            (
                "tailBegin + own.nComplete * blockSize",
                "tailBegin",
                "the open block is scored at the tail's begin",
            ),
            (
                "&scores[*wave * length]",
                "&scores[0]",
                "scores of every wave are written over those of the first",
            ),
        ],
    ),
    *of(
        f"{_CODELETS}/layers.cpp",
        f"{_TESTS}_layers.py",
        [
            ("sizeof(T) == 2 ? 8 : sizeof(T)", "8", "words are copied two by two"),
            (
                "stored + (i * nLayers + layer) * width, width, worker, nWorkers);\n}\ntemplate",
                "stored + (i * nLayers) * width, width, worker, nWorkers);\n}\ntemplate",
                "every layer has the state of the first",
            ),
            (
                "storeRows(&storedIndex[0], &tailIndex[0], nRows, nWords,",
                "storeRows(&storedIndex[0], &tailIndex[0], nRows, nWords - 1,",
                "a word of a record is not kept",
            ),
        ],
    ),
    *of(
        f"{_CODELETS}/loads.hpp",
        f"{_TESTS}_scores.py {_TESTS}_ipu_branch.py",
        [
            (
                "lanes[i] = static_cast<float>(halves[i]);",
                "lanes[i] = static_cast<float>(halves[i & ~1u]);",
                "of two halves the first is there twice",
            ),
        ],
    ),
    *of(
        f"{_CODELETS}/quantise.cpp",
        f"{_TESTS}_key_index.py",
        [
            (
                "(*filled - blockSize) & (chunk - 1)",
                "*filled & (chunk - 1)",
                "a block is written behind its place",
            ),
            ("*blockFull != 0 && (*filled", "(*filled", "an empty chunk is full"),
            (
                "block != n / blockSize",
                "block != (n + blockSize - 1) / blockSize",
                "an open block is rounded",
            ),
            (
                "const unsigned *const from = &columnIndex[0];",
                "const unsigned *const from = &columnIndex[1];",
                "words of a record are moved by one",
            ),
        ],
    ),
    *of(
        f"{_CODELETS}/quantise.hpp",
        f"{_TESTS}_key_index.py",
        [
            (
                "most = select(x > most, x, most);",
                "most = select(x < most, x, most);",
                "the largest key is the least",
            ),
            (
                "inverseStep(static_cast<float>(step))",
                "inverseStep(unroundedStep(low, high, indexBits))",
                "codes are of the step before it is rounded",
            ),
            ("narrow(low))) << 16", "narrow(high))) << 16", "the largest key is kept for the least"),
        ],
    ),
    *of(
        f"{_CODELETS}/row_codes.cpp",
        f"{_TESTS}_row_codes.py",
        [
            ("(1024.0f + codeOffset)", "1024.0f", "decoded codes keep their offset"),
            (
                "group % 2 == 0 ? word << 16 : word & 0xFFFF0000u",
                "group % 2 != 0 ? word << 16 : word & 0xFFFF0000u",
                "scales of neighbours are exchanged",
            ),
            ("low >> 16 | high", "high >> 16 | low", "scales are stored in the other order"),
            (
                "storeWord(to, (a & 0xFFFFu) | b << 16);",
                "storeWord(to, (b & 0xFFFFu) | a << 16);",
                "even and odd positions are exchanged",
            ),
        ],
    ),
    *of(
        f"{_CODELETS}/score_positions.hpp",
        f"{_TESTS}_scores.py",
        [
            (
                "sum += query[j] * load<Quad>(column(j) + p);\n    store",
                "sum += 0.0f * load<Quad>(column(j) + p);\n    store",
                "the last of an odd number of components is left out",
            ),
            ("sum * inverseTemperature", "sum", "scores are not scaled"),
        ],
    ),
    *of(
        f"{_CODELETS}/selected_share.cpp",
        f"{_TESTS}_key_topk.py",
        [
            (
                "i != piecesOfBlock; ++i, weight += pieceSize",
                "i != piecesOfBlock; ++i",
                "the second half of a block has the weights of the first",
            ),
            ("lanes[p % nLanes] +=", "lanes[0] +=", "all weights are added in one lane"),
        ],
    ),
    *of(
        f"{_CODELETS}/weighted_values.cpp",
        f"{_TESTS}_gathered_attention.py",
        [
            ("if (stride != 0)", "if (stride == 0)", "a wave has the rows of the next"),
            (
                "end > first ? minimum(end - first, nRows) : 0",
                "minimum(end - first, nRows)",
                "a wave behind the length has all rows",
            ),
            ("if (*wave != 0)", "if (*wave == 0)", "a later wave begins at 0"),
            (
                "if (p < stop)\n      sum",
                "if (false)\n      sum",
                "the last of an odd number of rows is left out",
            ),
        ],
    ),
    *of(
        "poplar_ops/codelets/hot_rows.hpp",
        f"{_TESTS}_hot_rows.py",
        [
            (
                "minimum(own < first[1] ? first[1] : own, n)",
                "(own < first[1] ? first[1] : own)",
                "a wave begins behind a head's last miss",
            ),
            ("own < first[1] ? first[1] : own", "own", "rows of an earlier wave come again"),
            ("place & ((1u << setShift) - 1)", "place >> setShift", "sets are of neighbouring places"),
        ],
    ),
    *of(
        f"{_CODELETS}/waves.cpp",
        f"{_TESTS}_scores.py",
        [
            ("most & ~(chunk - 1)", "most", "waves reach into the tail"),
            ("next * stride < most", "next * stride <= most", "a wave comes behind the longest row"),
        ],
    ),
]
