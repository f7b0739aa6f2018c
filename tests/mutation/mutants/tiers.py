# SPDX-License-Identifier: Apache-2.0
"""Mutants of a cache in three tiers: its codelets, and the builders of its program."""

from __future__ import annotations

from . import of

_HOT_ROWS = "tests/codelets/test_hot_rows.py"
_HOT_ATTENTION = "tests/codelets/test_hot_attention.py"
_INDEX = "tests/codelets/test_resident_index.py"
_COMPONENTS = "tests/codelets/test_resident_components.py"
_PROGRAM = "tests/ops/test_tiered_program.py"
_CYCLES = "tests/device_model/test_cycles.py::test_steps_of_a_query"

MUTANTS = [
    *of(
        "poplar_ops/codelets/hot_find.cpp",
        _HOT_ROWS,
        [
            ("positions[first + step] <= position", "positions[first + step] < position", "hits are missed"),
            ("n -= nFound[w];", "n -= 0 * nFound[w];", "ways of hits may be given away"),
            ("rowBase + *layer * layerRows + 1", "rowBase + 1", "rows of another layer are fetched"),
        ],
    ),
    *of(
        "poplar_ops/codelets/hot_places.cpp",
        _HOT_ROWS,
        [
            (
                "ownStamps[way] != now ? ownHeld[way] : ~0u",
                "ownHeld[way]",
                "a row that is selected now makes room",
            ),
            (
                "larger += keyOf(other) > key",
                "larger += keyOf(other) >= key",
                "ways that are as old take one place in the order",
            ),
            (
                "    while (!isEnough(share, now, first))\n",
                "    if (!isEnough(share, now, first))\n",
                "a share grows once",
            ),
            (
                "start = now & (nOwners - 1), nBefore = (owner - now) & (nOwners - 1);",
                "start = 0, nBefore = owner;",
                "every step begins with one owner",
            ),
            ("!*active || ", "", "an element that does not grow gets a hot row"),
        ],
    ),
    *of(
        "poplar_ops/codelets/hot_misses.cpp",
        _HOT_ROWS,
        [
            ("minimum(own.stop + offset, end)", "own.stop + offset", "workers write the rows of others"),
            ("OfWave(*wave + 1, waveRows", "OfWave(*wave, waveRows", "a wave has the rows of the one before"),
            ("first + i < *nMisses", "first + i <= *nMisses", "a row behind the last miss is read"),
            ("rows != 0 ? cost + fewCost : cost", "cost", "a wave of the last few rows costs nothing"),
            (
                "costOfAll(rest) > wideCost",
                "costOfAll(rest) > 2 * wideCost",
                "heads seldom fetch their own rows",
            ),
        ],
    ),
    *of(
        "poplar_ops/codelets/hot_insert.cpp",
        _HOT_ROWS,
        [
            (
                "to += 2, from += nLanes",
                "to += 2, from += quadSize",
                "pairs of lanes are cut from other components",
            ),
            ("if (setOf(to, shift) == ownSet)", "if (true)", "every set of keys has the rows of all"),
        ],
    ),
    *of(
        "poplar_ops/codelets/hot_attention.cpp",
        _HOT_ATTENTION,
        [
            (
                "&query[firstHead * ofHead + pair * 2]",
                "&query[firstHead * ofHead]",
                "keys meet other components of the query",
            ),
            (
                "(load<Pair>(lanes) + load<Pair>(lanes + 2 * perPair)) +\n"
                "                           (load<Pair>(lanes + perPair) +",
                "(load<Pair>(lanes) + load<Pair>(lanes + perPair)) +\n"
                "                           (load<Pair>(lanes + 2 * perPair) +",
                "lanes are folded in another order",
            ),
            ("&values[*layer * nRows * width]", "&values[0]", "values of another layer"),
            (
                "minimum(*filled - firstEntry, topK)",
                "minimum(*filled, topK)",
                "entries behind the last one count",
            ),
        ],
    ),
    *of(
        "poplar_ops/codelets/resident_index.cpp",
        _INDEX,
        [
            ("minimum(full - firstBlock, nBlocks)", "minimum(full, nBlocks)", "blocks of other parts count"),
            (
                "if (*block >= nFullBlocks(",
                "if (*block > nFullBlocks(",
                "a block that is not full is indexed",
            ),
            ("(*filled & ~(blockSize - 1))", "*filled", "the open block begins at the next token"),
            ("recordWords(4) - 1 - n];", "recordWords(4) - 1];", "other words are lent"),
            ("block += blocksOfPart", "++block", "a lent piece counts as full that is not"),
        ],
    ),
    *of(
        "poplar_ops/codelets/resident_components.cpp",
        _COMPONENTS,
        [
            ("*layer * nComponents", "*layer * ofHead", "layers are apart by components that are not there"),
            ("(base + c) * ofColumn", "c * ofColumn", "records of another layer are scored"),
            ("rank - count(first, nComponents)", "rank", "later workers list behind the end"),
        ],
    ),
    *of(
        "poplar_ops/codelets/resident_components.cycles.hpp",
        "tests/device_model/test_counted_cycles.py::test_an_estimate_is_what_a_codelet_does[ListComponents]",
        [
            (
                "rank / d * (9 + (5 + counted) * g)",
                "rank / d * 9",
                "the query of all heads is listed for nothing",
            )
        ],
    ),
    *of(
        "poplar_ops/src/resident_components.cpp",
        f"{_PROGRAM} tests/ops/test_tiered.py",
        [
            (
                '{"first", first}, {"n", own}',
                '{"first", 0u * first}, {"n", own}',
                "every piece has the first magnitudes",
            ),
            (
                "context.cache.filled[context.task(slot)]}",
                "context.cache.filled[0]}",
                "every element is as long as the first",
            ),
        ],
    ),
    *of(
        "poplar_ops/codelets/code_products.hpp",
        f"{_INDEX} tests/codelets/test_ipu_branch.py",
        [
            (
                "return 1.0f / (1u << indexBits);",
                "return 1.0f;",
                "codes of odd positions stay sixteen times as large",
            ),
            (
                "exponents | mask << indexBits",
                "exponents | mask",
                "odd positions have codes of even ones",
            ),
        ],
    ),
    *of(
        "poplar_ops/src/hot_attention.cpp",
        _PROGRAM,
        [('{"set", i / HotRows::nPairs}', '{"set", i % 1}', "keys of the other sets are left out")],
    ),
    *of(
        "poplar_ops/src/key_topk.cpp",
        _PROGRAM,
        [
            (
                "const Tensor toAdd = apart ? groupSums[slot] : ofParts;",
                "const Tensor toAdd = ofParts.slice(0, partsPerSum);",
                "in three tiers the first parts count, and no others",
            ),
        ],
    ),
    *of(
        "poplar_ops/src/stores/hot_buffer.cpp",
        f"{_PROGRAM} tests/planning/test_placement.py",
        [
            (
                "plan.placement.nRounds * plan.layout.nLayers * rows",
                "plan.placement.nRounds * rows",
                "hot rows of other layers are not counted in a plan",
                "what does not fit is refused all the same, when it is compiled; the count saves that work",
            ),
            (
                "first = i * hot.width % d",
                "first = 0",
                "an appended row is hot with other values",
            ),
            (
                '{"nWays", hot.nWays()}}, cycles::forgetHot',
                '{"nWays", hot.nWays() - 1}}, cycles::forgetHot',
                "after a reset the last way is still hot",
            ),
        ],
    ),
    *of(
        "poplar_ops/src/resident_index.cpp",
        _PROGRAM,
        [
            (
                "open.isBefore() ? before : score, slot",
                "score, slot",
                "two vertices write to one tensor at once",
            )
        ],
    ),
    *of(
        "poplar_ops/codelets/resident_index.cycles.hpp",
        _CYCLES,
        [
            (
                "indexScores(nBlocks, g, rank, bits, 2)",
                "indexScores(nBlocks, g, rank, bits)",
                "an address is free",
            )
        ],
    ),
    *of(
        "poplar_ops/src/hot_rows.cpp",
        f"{_PROGRAM} tests/ops/test_tiered.py",
        [
            ('{"set", set},', '{"set", 0 * set},', "every set of keys takes the rows of the first"),
            (
                "std::numeric_limits<unsigned>::max(),\n",
                "0u,\n",
                "the first wave of rows is left out",
            ),
            (
                "firstSlot = i / w.perList() *",
                "firstSlot = 0 * (i / w.perList()) *",
                "only the first group fetches its rows",
            ),
            (
                "addMerge(merge, byEntry, hits, hotPlaces, hitsFirst);",
                "addMerge(merge, byEntry, noPlaces(hitsFirst), hotPlaces, hitsFirst);",
                "rows that were hot have no slot",
            ),
        ],
    ),
    *of(
        "poplar_ops/src/hot_rows.cpp",
        "tests/ops/test_misses.py",
        [
            (
                "placed.ofAll ? 0 : slot / listSlots() * listSlots()",
                "0",
                "in the first wave of lists rows are behind those of other lists",
            ),
            (
                "                      addNextRows(cs, placed[1]);\n",
                "",
                "every wave of lists has the rows of the first",
            ),
        ],
    ),
    *of(
        "poplar_ops/src/stores/resident_records.cpp",
        "tests/ops/test_tiered.py::test_prefill_on_the_device",
        [
            (
                "program.add(Repeat(nBlocks, body",
                "program.add(Repeat(nBlocks > 1 ? nBlocks - 1 : 1, body",
                "a prefill leaves out the last block of each part",
            )
        ],
    ),
]
