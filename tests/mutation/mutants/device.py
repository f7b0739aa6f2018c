# SPDX-License-Identifier: Apache-2.0
"""Mutants of the device program: codelets and the builders of its graph."""

from __future__ import annotations

from . import of

_WINDOW = "tests/ops/test_window.py"
_CODELETS = "tests/codelets/test_"
_ATTENTION = "tests/ops/test_attention.py tests/ops/test_tiles.py tests/ops/test_append.py"
_MODEL = "tests/device_model/test_device_model.py"
_COUNTED = "tests/device_model/test_counted_cycles.py"
_CYCLES = "tests/device_model/test_cycles.py::test_steps_of_a_query"

MUTANTS = [
    *of(
        "poplar_ops/arith/arith.hpp",
        " ".join(
            f"{_CODELETS}{name}.py"
            for name in ("softmax", "query_components", "scores", "gathered_attention")
        )
        + " tests/cpu/test_cpu_bits.py",  # the tree of lanes is that of the CPU kernels
        [
            (
                "zeroBelow(withoutSign(x), flushThreshold, x)",
                "zeroUpTo(withoutSign(x), flushThreshold, x)",
                "flush cuts 2**-48 itself",
            ),
            ("0x1.120b96p-7f", "0x1.120b98p-7f", "one bit of a coefficient of exp"),
            ("minSoftmaxArgument = -54.0f", "minSoftmaxArgument = -53.0f", "weights end too early"),
            ("return (a + c) + (b + d);", "return (a + b) + (c + d);", "lanes are folded in another order"),
            (
                "selected == 0.0f ? scale",
                "selected < 0.0f ? scale",
                "no scale where the selected components are 0",
            ),
        ],
    ),
    *of(
        "poplar_ops/codelets/lanes.hpp",
        f"{_CODELETS}scores.py {_CODELETS}gathered_attention.py",
        [
            (
                "(pairs.of[0] + pairs.of[2]) + (pairs.of[1] + pairs.of[3])",
                "(pairs.of[0] + pairs.of[1]) + (pairs.of[2] + pairs.of[3])",
                "lanes are folded in another order",
            )
        ],
    ),
    *of(
        "poplar_ops/codelets/halves.hpp",
        f"{_CODELETS}cache_append.py {_CODELETS}cache_fill_vertices.py",
        [
            ("& ~(0xFFFFu << shift)", "", "a half is put over the one that it replaces"),
            ("fours = n / quadSize;", "fours = n / quadSize + 1;", "more halves are copied than there are"),
            ("a >> 16 | (b & ~low)", "b >> 16 | (a & ~low)", "neighbours change places"),
        ],
    ),
    *of(
        "poplar_ops/arith/masks.hpp",
        f"{_CODELETS}ipu_branch.py",
        [("+ 0x3F800000u", "+ 0x3F000000u", "on an IPU a weight is half as large")],
    ),
    *of(
        "poplar_ops/codelets/cache_append.cpp",
        f"{_CODELETS}cache_append.py tests/ops/test_append.py",
        [
            ("*full = *active && (", "*full = (", "an inactive element can be full"),
            (
                "*active ? rowBase + *filled : scratchRow",
                "rowBase + *filled",
                "an inactive element is written",
            ),
            (
                "__builtin_clz(chunk))) - 1",
                "__builtin_clz(chunk)))",
                "a chunk is flushed to the place of the next",
            ),
            ("found |= full[slot];", "found = full[slot];", "only the last element can be full"),
        ],
    ),
    *of(
        "poplar_ops/codelets/combine.cpp",
        f"{_CODELETS}gathered_attention.py tests/ops/test_attention.py",
        [
            (
                "smaller(flush(approxSums[h] / totals[h]), 1.0f)",
                "flush(approxSums[h] / totals[h])",
                "alpha may pass 1",
            ),
            ("flush(approxSums[h] / totals[h])", "approxSums[h] / totals[h]", "a tiny alpha is not cut"),
            (
                "flush(foldPartials(partial, nBlocks, groupSize * width)) / sums[h]",
                "foldPartials(partial, nBlocks, groupSize * width) / sums[h]",
                "tiny sums are not cut before the division",
            ),
        ],
    ),
    *of(
        "poplar_ops/codelets/softmax.cpp",
        f"{_CODELETS}softmax.py",
        [
            (
                "maximum[worker] = larger(largestOf(of), last)",
                "maximum[0] = larger(largestOf(of), last)",
                "six workers write one maximum",
            ),
            (
                "larger(largestOf(of), last)",
                "largestOf(of)",
                "of an odd number of maxima the last is left out",
            ),
            (
                "i < n ? softmaxWeight(weight[i] - m) : 0.0f",
                "softmaxWeight(weight[i] - m)",
                "what is behind the length has a weight",
            ),
            (
                "(((sum + first[0]) + first[1]) + second[0]) + second[1]",
                "(((sum + second[1]) + second[0]) + first[1]) + first[0]",
                "blocks are added in another order",
            ),
        ],
    ),
    *of(
        "poplar_ops/codelets/query_components.cpp",
        f"{_CODELETS}query_components.py",
        [
            ("all += other < c ?", "all += other > c ?", "of equal components the last is taken"),
            ("smaller(sum, Lanes{} + highest)", "sum", "NaN is not the largest magnitude"),
        ],
    ),
    *of(
        "poplar_ops/codelets/gathered_attention.cpp",
        f"{_CODELETS}gathered_attention.py",
        [
            (
                "maxima[worker * groupSize + h] = largest;",
                "maxima[h] = largest;",
                "workers write one maximum: a race",
            ),
            (
                "weight = row < n ? softmaxWeight(weight - m) : 0.0f",
                "weight = softmaxWeight(weight - m)",
                "rows of no position have a weight",
            ),
        ],
    ),
    *of(
        "poplar_ops/codelets/segments.hpp",
        f"{_CODELETS}softmax.py {_CODELETS}scores.py {_CODELETS}key_topk.py tests/ops/test_attention.py",
        [
            ("flushed(filled & ~(chunk - 1))", "flushed(filled)", "the tail is in the waves too"),
            (
                "minimum(first + tailLength, filled)",
                "first + tailLength",
                "the tail goes on behind the length",
                "each caller's limit is at most the length, and the smaller of the two is taken",
            ),
            (
                "minimum(first + length, (segment + 1) * stride)",
                "first + length",
                "a wave goes on in the next",
            ),
        ],
    ),
    *of(
        "poplar_ops/src/context.cpp",
        _ATTENTION,
        [("std::min(begin + piece, extent)", "begin + piece", "the last slice is as long as the others")],
    ),
    *of(
        "poplar_ops/src/session_calls.cpp",
        "tests/ops/test_errors.py tests/ops/test_append.py tests/ops/test_cache_fill.py "
        "tests/pod/test_pod_sessions.py tests/pod/test_pod_abilities.py",
        [
            ("  last_ = &entry;\n", "  (void)entry;\n", "misses are those of the first IPU"),
            (
                "shard->host->history().check(shard->share.ofBatch(steps));",
                "(void)shard;",
                "IPUs before the one that refuses get a history",
            ),
            (
                'tookStep(entryOf("attention", layer), index, layer);',
                "last_ = &entries_.back();",
                "all layers in one launch remember nothing",
            ),
            (
                "if (ofShard[b] < 0)",
                "if (ofShard[b] < 1)",
                "an element that prefill empties keeps its length",
            ),
            ("steps[b].clear();", "steps[b].shrink_to_fit();", "prefill keeps the steps of what it replaces"),
            (
                "checkRoom(layer, nTokens, shard->share.ofBatch(counts), shard->share.firstBatch);",
                "lengths(layer);",
                "IPUs before the one that refuses are written",
            ),
            (
                "shard->host->checkRoom(shard->own(layer), 1, shard->share.ofBatch(active),\n"
                "                           shard->share.firstBatch);",
                "(void)shard;",
                "append goes on behind the capacity",
            ),
            (
                "shard->host->advance(shard->own(layer), shard->share.ofBatch(active));",
                "(void)shard;",
                "the host does not count what is appended",
            ),
            (
                "firstProgram + static_cast<unsigned>(1 + nAttention())",
                "firstProgram + static_cast<unsigned>(2 + nAttention())",
                "fill runs another program",
            ),
            (
                "index >= nAttention()",
                "index > nAttention()",
                "a program that is none is run",
                "the binding, which alone calls it here, refuses such an index before",
            ),
        ],
    ),
    *of(
        "poplar_ops/src/plan.cpp",
        "tests/planning/test_placement.py::test_no_more_rounds_than_make_it_smaller",
        [("smallest && all > least", "smallest && all > 8 * least", "rounds go on that need more memory")],
    ),
    *of(
        "poplar_ops/src/plan.cpp",
        f"{_ATTENTION} tests/ops/test_words.py tests/planning/test_planning.py {_MODEL}",
        [
            (
                "constexpr double workingShare = 0.7;",
                "constexpr double workingShare = 0.97;",
                "plans leave no room for what is not counted",
            ),
            (
                "std::max(byPosition, byComponent)",
                "std::max(byPosition, std::min<std::uint64_t>(byComponent, 0))",
                "rows by component are not limited",
            ),
        ],
    ),
    *of(
        "poplar_ops/src/softmax.cpp",
        _ATTENTION,
        [
            (
                "perPart.slice(waves.tailFirst, parts, 0)",
                "perPart.slice(0, parts - waves.tailFirst, 0)",
                "sums of the tail come from the wrong parts",
            ),
            (".dimShuffle({1, 2, 0, 3})", ".dimShuffle({1, 0, 2, 3})", "blocks are not in order"),
        ],
    ),
    *of(
        "poplar_ops/src/gathered_attention.cpp",
        f"{_ATTENTION} tests/planning/test_planning.py",
        [
            ("if (2 * nRows * d * 2 <= maxCopyBytes)", "if (false)", "keys and values come in two copies"),
            ("(topK + 63) / 64", "topK / 64", "the last block of the list is left out"),
        ],
    ),
    *of(
        "poplar_ops/src/list_weights.cpp",
        _ATTENTION,
        [
            (
                "std::min(6u, rowsPerPart * g)",
                "std::min(5u, rowsPerPart * g)",
                "a worker's maximum is left out",
            ),
        ],
    ),
    *of(
        "poplar_ops/src/key_topk.cpp",
        f"tests/planning/test_planning.py::test_a_list_is_no_longer_than_the_cache {_ATTENTION} "
        "tests/ops/test_selection.py",
        [
            (
                "topK(std::min(wanted, contextIn.layout().capacity))",
                "topK(wanted)",
                "lists are longer than the cache",
            ),
            (
                "nLocal(std::min(wantedLocal, topK))",
                "nLocal(0 * wantedLocal)",
                "local positions are not taken",
            ),
            (
                "If(of, again, Sequence()",
                "If(of, Sequence(), again",
                "it begins again where it need not",
            ),
            ("+ 2 - (nDigits - 1)) << shift", "+ 2 - 8) << shift", "the window is above most thresholds"),
        ],
    ),
    *of(
        "poplar_ops/src/stores/key_columns.cpp",
        f"{_ATTENTION} tests/ops/test_words.py tests/planning/test_planning.py {_MODEL}",
        [
            (
                "spec.indexBits == 4 ? 1024",
                "spec.indexBits == 4 ? 512",
                "chunks of a small index are half as long",
            ),
            (
                "spec.indexBits == 2 ? 2048",
                "spec.indexBits == 2 ? 1024",
                "chunks of the smallest index are half as long",
            ),
        ],
    ),
    *of(
        "poplar_ops/src/stores/stores.cpp",
        f"{_ATTENTION} tests/ops/test_words.py tests/planning/test_planning.py {_MODEL}",
        [
            (
                "if (attention.kernel->memory != programs.attention.front().kernel->memory)",
                "if (false)",
                "kernels of two memories share a cache",
            ),
        ],
    ),
    *of(
        "poplar_ops/src/stores/resident_rows.cpp",
        f"{_ATTENTION} tests/planning/test_planning.py",
        [
            (
                "plan.shape.headDim * 4 * plan.placement.nRounds",
                "plan.shape.headDim * 2 * plan.placement.nRounds",
                "values in SRAM are not counted in a plan",
            ),
        ],
    ),
    *of(
        "poplar_ops/src/window_history.cpp",
        _WINDOW,
        [
            (
                '{{"nRecent", pieces.nRecent}}, cycles',
                '{{"nRecent", pieces.nRecent + 1}}, cycles',
                "the ring has a row more",
            ),
            (
                "if (task % nKvHeads == 0) {",
                "if (list.round == 0 && task % nKvHeads == 0) {",
                "lists of later rounds are not kept",
            ),
            (
                "listed.rowBase + piece * pieces.length",
                "listed.rowBase",
                "every piece has the positions of the first",
            ),
        ],
    ),
    *of(
        "poplar_ops/src/window_attention.cpp",
        _WINDOW,
        [
            (
                "settings.nRecent * shape.nHeads >= mostNarrowSteps",
                "false",
                "sums above 2^30 are ordered by their low bits",
            ),
            (
                'ofList.emplace("filled", strided.count)',
                'ofList.emplace("filled", variables.at("filled"))',
                "a strided list is taken to be full",
            ),
        ],
    ),
    *of(
        "poplar_ops/src/host_history.cpp",
        _WINDOW,
        [
            (
                "(newest_[layer][b] + nRecent_ - back) % nRecent_",
                "lengths.size() - 1 - back",
                "the ring is read as if it began at its first row",
            ),
            (
                "sum[p] += shares[p];",
                "sum[p] = shares[p];",
                "a history that is written has the last step's sums",
            ),
        ],
    ),
    *of(
        "poplar_ops/codelets/window_history.cpp",
        f"{_CODELETS}window_history.py {_WINDOW}",
        [
            ("sum[p] -= row[p];", "", "steps are never taken away"),
            ("minimum(*filled, topK);", "topK;", "what fills up a list is a position"),
            ("share += shareOf", "share = shareOf", "the last head's share counts"),
        ],
    ),
    *of(
        "poplar_ops/src/query_components.cpp",
        _ATTENTION,
        [
            (
                "std::size_t first = context.task(0), n = context.nSlots(),",
                "std::size_t first = 0, n = context.nSlots(),",
                "every round has the queries of the first",
            )
        ],
    ),
    *of(
        "poplar_ops/src/remote_rows.cpp",
        "tests/ops/test_append.py tests/ops/test_copies.py",
        [
            (
                "data_.resize(rows_.batch_ * rows_.rowBytes_);",
                "",
                "the last batch is shorter than what is written",
                "what fills it up goes to spare rows, which nothing reads; its memory is reserved",
            ),
            (
                "std::min(i, n - 1)",
                "i % n",
                "other rows fill up a batch that is read",
                "what fills up a batch is read and not used",
            ),
        ],
    ),
    *of(
        "poplar_ops/codelets/cycles.hpp",
        f"{_CYCLES} tests/bench/test_on_chip.py::test_the_rules_are_those_of_the_codelets",
        [
            ("floatDivide = 3;", "floatDivide = 1;", "a division takes 1 slot"),
            ("callSlots = 20", "callSlots = 10", "a call takes half as long"),
            ("computed = 3;", "computed = 1;", "a computed end costs 1 slot a turn"),
        ],
    ),
    *of(
        "poplar_ops/codelets/softmax.cycles.hpp",
        _COUNTED,
        [
            ("shared(nBlocks, 8 *", "shared(nBlocks, 4 *", "a lane sum of half a block"),
            ("share(g * nOwn / 4) *", "share(nOwn / 4) *", "weights of one head"),
        ],
    ),
    *of(
        "poplar_ops/codelets/hot_places.cycles.hpp",
        _COUNTED,
        [("mine * (15 + computed)", "std::min(mine, 1.0) * (15 + computed)", "one miss is dealt")],
    ),
    *of(
        "poplar_ops/codelets/key_topk.cycles.hpp",
        _COUNTED,
        [("share(n / 64) * (8 *", "share(n / 32) * (8 *", "keys are marked twice")],
    ),
    *of(
        "poplar_ops/src/dense_attention.cpp",
        f"{_ATTENTION} tests/planning/test_planning.py",
        [
            ("partials.slice(0, waves.stride / 64, 1)", "partials", "blocks behind a wave are added"),
        ],
    ),
    *of(
        "poplar_ops/codelets/key_bin.hpp",
        f"{_CODELETS}key_topk.py",
        [
            ("wanted -= n;\n", "\n", "keys of higher digits are not counted"),
            (
                "filled > nLocal ? filled - nLocal : 0",
                "filled + 0 * nLocal",
                "recent positions compete too",
            ),
            (
                "ofWindow && (digit == 0 ||",
                "ofWindow && (",
                "a threshold below the window is taken for one within",
            ),
            (
                "keys + quadSize))) < least",
                "keys + quadSize))) <= least",
                "the least key of a bin is skipped",
            ),
        ],
    ),
    *of(
        "poplar_ops/codelets/key_topk.cpp",
        f"{_CODELETS}key_topk.py",
        [
            ("if (digit < nDigits)", "if (digit != ~0u)", "keys outside of the bin are counted"),
            ("found.n > 2 ? clash", "found.n > 3 ? clash", "three doubtful keys of a block are no clash"),
            ("!bin.found || ", "", "a threshold outside of the window is no clash"),
            ("if (bits < bin.begin)", "if (bits <= bin.begin)", "the least key of a bin is not selected"),
        ],
    ),
    *of(
        "poplar_ops/codelets/key_marks.cpp",
        f"{_CODELETS}key_topk.py",
        [
            ("if (n <= 0.0f)", "if (n < 0.0f)", "a tie too many is taken"),
            ("wanted - sixOf(block * 2)", "wanted", "every block takes as many ties as all together"),
            ("(block < own && of[i] == key)", "(false)", "equal keys of lower blocks do not come before"),
            ("higher > lower ?", "higher >= lower ?", "of equal keys of a block the higher comes first"),
            ("*any = largestOf(all) >= clash;", "*any = false;", "no clash is seen"),
            ("if (n >= low)", "if (n > low)", "a worker lists what another one does"),
            ("*v.filled & ~(v.chunk - 1)", "*v.filled", "the tail begins at the next token"),
        ],
    ),
    *of(
        "poplar_ops/src/session.cpp",
        "tests/pod/test_pod_sessions.py tests/pod/test_pod_abilities.py",
        [
            ("own.tiers = options.tiers;", "(void)options;", "options of hot rows get nowhere"),
            ("program.add(entry.attend[index]);\n  Shard", "Shard", "nothing is timed"),
            (
                "if (share.shape.nKvHeads != shape_.nKvHeads)",
                "if (share.shape.nKvHeads > shape_.nKvHeads)",
                "each IPU remembers the steps of its own heads",
            ),
            (
                "own.slice(s.firstKvHead * heads, (s.firstKvHead + s.shape.nKvHeads) * heads, 1)",
                "own.slice(0, s.shape.nKvHeads * heads, 1)",
                "every IPU gets the first heads",
            ),
            ("if (&entry != &entries_.back())", "if (false)", "the next IPU gets no query"),
            ("if (layer != 0)", "if (layer > 1)", "the second layer gets the query of the first"),
        ],
    ),
    *of(
        "poplar_ops/src/lockstep.cpp",
        "tests/pod/test_lockstep.py tests/pod/test_pod_sessions.py",
        [
            ("return greatest;", "return predicate;", "all branch by what the last IPU needs"),
            ("if (ipu_ == 0)\n    all.computeSet", "all.computeSet", "each IPU has its own compute sets"),
            ("concat(all.from), concat(all.to), false", "from, to, false", "the last IPU alone copies"),
            (
                "Copy(most.reshape({1})",
                "Copy(number.reshape({1})",
                "there are as many waves as the last IPU needs",
            ),
        ],
    ),
    *of(
        "poplar_ops/src/hot_rows.cpp",
        "tests/pod/test_lockstep.py",
        [
            (
                "context.agreed(nListWaves, behindControl())",
                "nListWaves",
                "each IPU has as many waves as it needs",
            ),
            (
                "Switch some(inner.greatest(units, behindControl())",
                "Switch some(units",
                "rows are read that the last IPU needs",
            ),
        ],
    ),
    *of(
        "poplar_ops/codelets/lockstep.cpp",
        "tests/codelets/test_lockstep.py",
        [
            ("ofIpus[ipu] > most", "ofIpus[ipu] < most", "the least of what IPUs need"),
            ("ipu < nIpus", "ipu + 1 < nIpus", "the last IPU is not asked"),
        ],
    ),
    *of(
        "poplar_ops/codelets/lockstep.cycles.hpp",
        _COUNTED,
        [("nIpus * (3 + counted)", "nIpus * 30", "each IPU's word takes thirty slots")],
    ),
    *of(
        "poplar_ops/include/sparq/lockstep.hpp",
        "tests/pod/test_lockstep.py",
        [("return ipu_ + 1 == nIpus_;", "return ipu_ == 0;", "the first IPU's steps are the program")],
    ),
]
