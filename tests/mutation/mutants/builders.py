# SPDX-License-Identifier: Apache-2.0
"""Mutants of the builders of graphs, of what plans and host share, and of the arithmetic that all have."""

from __future__ import annotations

from . import of

_CODELETS = "tests/codelets/test"
_OPS = "tests/ops/test"
_DECODE = f"{_OPS}_append.py::test_decode_across_chunks_equals_reference"
_APPEND = f"{_OPS}_append.py"
_FILL = f"{_OPS}_cache_fill.py::test_fill_equals_reference"
_LAYERS = f"{_OPS}_layers.py::test_layers_are_each_their_own"
_WORDS = f"{_OPS}_words.py"
_WINDOW = f"{_OPS}_window.py"
_TIERED = f"{_OPS}_tiered.py"
_PLANNING = "tests/planning/test_planning.py"
_SHARES = "tests/pod/test_pod_plans.py::test_shares_are_all_layers_and_all_tasks"
_ROWS_OF_8_BITS = "tests/cpu/test_cpu_bits.py::test_rows_of_8_bits"

MUTANTS = [
    *of(
        "poplar_ops/arith/half_bits.hpp",
        _ROWS_OF_8_BITS,
        [
            ("((magnitude >> 13) & 1u)", "1u", "ties are rounded up"),
        ],
    ),
    *of(
        "poplar_ops/arith/key_index.hpp",
        f"{_CODELETS}_key_index.py",
        [
            ("code < largestCode(indexBits) ? code : largestCode(indexBits)", "code", "codes are not cut"),
        ],
    ),
    *of(
        "poplar_ops/arith/row_codes.hpp",
        f"{_CODELETS}_row_codes.py",
        [
            (
                "(bits >> 16) & 1u",
                "0u",
                "ties of a scale are rounded down",
                "there are none: of no fp16 number is the scale a tie",
            ),
        ],
    ),
    *of(
        "poplar_ops/arith/row_groups.hpp",
        _ROWS_OF_8_BITS,
        [
            (
                "most = std::max(most, std::fabs(codes[i]));",
                "most = std::max(most, codes[i]);",
                "a scale is of the largest number above 0",
            ),
        ],
    ),
    *of(
        "poplar_ops/arith/window_history.hpp",
        f"{_CODELETS}_window_history.py",
        [
            ("shareUnits = 65536.0f", "shareUnits = 65535.0f", "a share has other units"),
        ],
    ),
    *of(
        "poplar_ops/src/approx_scores.cpp",
        f"{_DECODE} {_OPS}_tiles.py::test_any_number_of_tiles",
        [
            (
                '{"tailBegin", waves.nWaves * waves.length}',
                '{"tailBegin", 0u}',
                "the tail of fp16 is scored at the begin",
            ),
        ],
    ),
    *of(
        "poplar_ops/src/index_planes.cpp",
        f"{_OPS}_index_planes.py",
        [
            ("index.addMiddles(middles, depths);", "", "what was not read counts as 0"),
            ("index.addTailMiddles(", "(void)sizeof(", "what was not read of the tail counts as 0"),
            (
                '{"rank", r}, {"indexBits", bits}}, cycles::planeM',
                '{"rank", r - 1}, {"indexBits", bits}}, cycles::planeM',
                "the last components are others",
            ),
        ],
    ),
    *of(
        "poplar_ops/src/score_columns.cpp",
        f"{_DECODE} {_OPS}_tiles.py::test_any_number_of_tiles",
        [
            ('{"firstChunk", first}', '{"firstChunk", 0u}', "every part reads the first chunks of a wave"),
            (
                "rowSize, std::min(row + rowsPerTile, n) * rowSize",
                "rowSize, (row + rowsPerTile) * rowSize",
                "the last tile has rows that are not there",
            ),
        ],
    ),
    *of(
        "poplar_ops/src/score_columns.hpp",
        f"{_DECODE} {_OPS}_tiles.py::test_any_number_of_tiles {_OPS}_index_planes.py",
        [
            ("positions / block * of.elementsOfBlock", "positions / block", "rows have a number a block"),
        ],
    ),
    *of(
        "poplar_ops/src/stores/key_planes.cpp",
        f"{_OPS}_index_planes.py",
        [
            ("readWidest_.read(engine, widest_.data());", "", "what the device has seen is forgotten"),
            (
                "widen(std::size_t(task) * layout.headDim + c, nBlocks);",
                "",
                "steps of whole chunks do not count",
            ),
            ("std::fill(widest_.begin(), widest_.end(), 0.0f);", "", "a reset leaves the largest steps"),
            ("stepWriter_->finish();", "", "the last steps are not written"),
            ("flush(step, chunkFull), program,", "Sequence(), program,", "full chunks stay in the tail"),
        ],
    ),
    *of(
        "poplar_ops/src/stores/key_planes.hpp",
        f"{_OPS}_index_planes.py",
        [
            (
                "layout.headDim * ofComponent; }",
                "layout.headDim; }",
                "planes of a task are those of the next",
            ),
        ],
    ),
    *of(
        "poplar_ops/src/cache.cpp",
        f"{_DECODE} {_OPS}_cache_fill.py::test_messages_of_the_builder",
        [
            (
                "unit = std::max(unit, store->unit(cache.layout()));",
                "unit = std::max(unit, 2 * store->unit(cache.layout()));",
                "every second block is left out of the index",
            ),
        ],
    ),
    *of(
        "poplar_ops/src/cache_fill.cpp",
        _FILL,
        [
            (
                "If(replace[b], element(b), Sequence(), ",
                "If(replace[b], Sequence(), element(b), ",
                "elements that are to stay are replaced",
            ),
            (
                "(ofValues ? value : key)[b][task % shape.nKvHeads]",
                "(ofValues ? value : key)[b][0]",
                "all heads have the tokens of the first",
            ),
        ],
    ),
    *of(
        "poplar_ops/src/combine.cpp",
        f"{_OPS}_attention.py",
        [
            (
                '{"meanValue", meanValue}',
                '{"meanValue", meanValue || true}',
                "the mean value is given in any case",
            ),
        ],
    ),
    *of(
        "poplar_ops/src/context.hpp",
        f"{_OPS}_tiles.py",
        [
            (
                "return placement().firstTask(round) + slot;",
                "return slot;",
                "every round has the tasks of the first",
            ),
        ],
    ),
    *of(
        "poplar_ops/src/device.cpp",
        f"{_OPS}_errors.py::test_too_much_for_the_tiles",
        [
            ("model.tilesPerIPU = options.nTiles;", "(void)0;", "n_tiles changes nothing"),
        ],
    ),
    *of(
        "poplar_ops/src/host_cache.cpp",
        f"{_OPS}_errors.py {_APPEND}",
        [
            (
                "std::fill(to + (first + length) * d, to + (first + nTokens) * d, 0);",
                "(void)to;",
                "what is behind a length is read as it was",
            ),
            (
                "if (n > shape_.capacity - held)",
                "if (n > shape_.capacity)",
                "tokens behind the capacity are taken",
            ),
            ("lengths_[layer].assign(shape_.batch, 0);", "(void)0;", "an emptied cache keeps its lengths"),
        ],
    ),
    *of(
        "poplar_ops/src/kernels.cpp",
        _WORDS,
        [
            ("if (name == kernel->name)", "if (name != kernel->name)", "another kernel is taken"),
            ('return "tiered";', 'return "streaming";', "tiers are called streaming"),
        ],
    ),
    *of(
        "poplar_ops/src/key_index.cpp",
        _DECODE,
        [
            (
                '{"tailBegin", waves.nWaves * waves.length}',
                '{"tailBegin", 0u}',
                "the tail is scored at the begin",
            ),
        ],
    ),
    *of(
        "poplar_ops/src/layers.cpp",
        _LAYERS,
        [
            (
                "addFunction(graph, moves(false));",
                "addFunction(graph, moves(true));",
                "a layer is not put back",
            ),
            (
                '{{"nLayers", cache.layout().nLayers}, {"nRows", end - begin}, {"width", width}}',
                '{{"nLayers", 1u}, {"nRows", end - begin}, {"width", width}}',
                "layers lie over each other",
            ),
        ],
    ),
    *of(
        "poplar_ops/src/planning.hpp",
        f"{_OPS}_tiles.py::test_waves_read_no_more_than_is_there {_OPS}_attention.py",
        [
            (
                "nWaves * ceilDiv(nUnits, nWaves) < best",
                "nWaves * ceilDiv(nUnits, nWaves) > best",
                "the last wave reads much that nobody needs",
            ),
            (
                "ceilDiv(ceilDiv(positions, block), parts) * block",
                "ceilDiv(positions, parts)",
                "parts have no whole blocks",
            ),
        ],
    ),
    *of(
        "poplar_ops/src/settings.cpp",
        f"{_WORDS} {_OPS}_errors.py",
        [
            ("if (spec.headDim % 8 != 0)", "if (false)", "a head_dim that is no multiple of 8 is taken"),
            ("nHeads % spec.nKvHeads != 0", "nHeads < spec.nKvHeads", "heads that are no multiple are taken"),
            (
                'settings.nLocal, 0, settings.topK, "top_k=");\n}\n\nvoid',
                'settings.nLocal, 0, settings.topK + 1, "top_k=");\n}\n\nvoid',
                "n_local may be more than top_k",
            ),
        ],
    ),
    *of(
        "poplar_ops/src/shard.cpp",
        f"{_LAYERS} {_OPS}_sessions.py::test_a_kernel_may_be_there_twice",
        [
            (
                "if (alters)\n      storeLayer",
                "if (!alters)\n      storeLayer",
                "what alters a layer does not store it",
            ),
        ],
    ),
    *of(
        "poplar_ops/src/shares.cpp",
        f"{_SHARES} tests/pod/test_pod_sessions.py::test_refused_pods "
        "tests/pod/test_pod_sessions.py::test_a_decode_over_ipus_is_the_reference",
        [
            ("(nIpus & (nIpus - 1)) != 0", "false", "three IPUs are taken"),
            ("ipu / heads * part.batch", "ipu * part.batch", "batch elements of a share are behind the last"),
        ],
    ),
    *of(
        "poplar_ops/src/sparq_attention.cpp",
        f"{_OPS}_tiles.py::test_each_round_reads_as_far_as_its_own_elements "
        f"{_OPS}_tiles.py::test_any_number_of_tiles "
        f"{_PLANNING}",
        [
            (
                "const std::size_t first = p.firstTask(round);",
                "const std::size_t first = 0;",
                "rounds write over the first",
            ),
        ],
    ),
    *of(
        "poplar_ops/src/vertex.hpp",
        f"{_OPS}_tiles.py::test_every_vertex_has_an_estimate",
        [
            ("graph.setPerfEstimate(vertex, cycles);", "(void)cycles;", "vertices have no estimate"),
        ],
    ),
    *of(
        "poplar_ops/src/weighted_values.cpp",
        f"{_OPS}_tiles.py::test_each_round_reads_as_far_as_its_own_elements {_DECODE}",
        [
            (
                '{"weightStride", sum.weightStride}',
                '{"weightStride", 0u}',
                "every wave has the weights of the first",
            ),
            ('{"limit", sum.limit}', '{"limit", 1u}', "one row of a list counts"),
        ],
    ),
    *of(
        "poplar_ops/src/stores/coded_rows.cpp",
        f"{_TIERED}::test_results_do_not_depend_on_what_is_hot "
        f"{_TIERED}::test_prefill_on_the_device "
        f"{_OPS}_copies.py",
        [
            (
                "tokens.values = tokens.rounded.data();",
                "(void)tokens;",
                "the sum of values is of numbers that were not rounded",
            ),
            (
                "decodeNumbers(row + d / 2, scales + nRowScales(d), d, value);",
                "decodeNumbers(row + d / 2, scales, d, value);",
                "values are read with the scales of keys",
            ),
        ],
    ),
    *of(
        "poplar_ops/src/stores/history.cpp",
        f"{_WINDOW}::test_bits_and_history {_WINDOW}::test_what_a_session_refuses",
        [
            (
                "attention.window.nRecent != nRecent)",
                "false)",
                "programs remember different numbers of steps",
            ),
        ],
    ),
    *of(
        "poplar_ops/src/stores/host_store.hpp",
        f"{_APPEND}::test_bulk_on_bulk",
        [
            (
                "return held[task / shape.nKvHeads];",
                "return held[task % shape.batch];",
                "tasks have the lengths of other elements",
            ),
        ],
    ),
    *of(
        "poplar_ops/src/stores/index.cpp",
        f"{_APPEND}::test_bulk_on_bulk {_DECODE}",
        [
            (
                "records_.write(engine, tail.records.data());",
                "(void)tail;",
                "records of the tail are not written",
            ),
            (
                '{"nComponents", own.n()}, {"width", layout.tailWidth()}}',
                '{"nComponents", 1u}, {"width", layout.tailWidth()}}',
                "one component of each part is appended to the tail",
            ),
        ],
    ),
    *of(
        "poplar_ops/src/stores/index.hpp",
        f"{_FILL} {_DECODE}",
        [
            (
                "return layout.tailWidth(); }",
                "return 2 * layout.tailWidth(); }",
                "every second block is not kept",
            ),
        ],
    ),
    *of(
        "poplar_ops/src/stores/joined_rows.cpp",
        f"{_TIERED}::test_prefill_on_the_device {_TIERED}::test_several_ipus "
        f"{_TIERED}::test_rows_of_8_bits_move_fewer_bytes",
        [
            (
                "step.values[i] = values.slice(i * n, (i + 1) * n);",
                "",
                "the sum of values is of numbers that were not rounded",
            ),
            (
                "writer.add(tokens.layer * layout_.layerRows() +",
                "writer.add(",
                "rows of all layers are written over those of the first",
            ),
            (
                "std::copy_n(row + headDim(), headDim(), value);",
                "std::copy_n(row, headDim(), value);",
                "keys are read for values",
            ),
        ],
    ),
    *of(
        "poplar_ops/src/stores/key_records.cpp",
        _APPEND,
        [
            (
                "nBlocks * recordWords_,",
                "0,",
                "records of a chunk that is not full are lost",
            ),
            ("n % blockSize,\n", "0,\n", "the open block is lost"),
        ],
    ),
    *of(
        "poplar_ops/src/stores/resident_records.hpp",
        f"{_TIERED}::test_results_do_not_depend_on_what_is_hot {_TIERED}::test_prefill_on_the_device",
        [
            (
                "partLength(plan.layout.capacity, plan.placement.parts)",
                "partLength(plan.layout.capacity / 2, plan.placement.parts)",
                "the index has room for half of the positions",
            ),
        ],
    ),
    *of(
        "poplar_ops/src/stores/rows.cpp",
        f"{_DECODE} {_APPEND}::test_bulk_on_top_of_single_tokens",
        [
            (
                "layout.scratchRow(task)",
                "layout.keyRow(task, 0)",
                "a token that is none is written over the first",
            ),
        ],
    ),
    *of(
        "poplar_ops/src/stores/split_rows.cpp",
        f"{_APPEND}::test_bulk_on_bulk {_OPS}_cache_fill.py::test_messages_of_the_builder",
        [
            (
                "inRow * d,\n                      row.begin());",
                "0,\n                      row.begin());",
                "the begin of a row is lost",
            ),
            ("return perRow == 1 ?", "return perRow != 0 ?", "rows of several positions are appended to"),
        ],
    ),
    *of(
        "poplar_ops/src/stores/store.hpp",
        f"{_TIERED}::test_rows_of_8_bits_move_fewer_bytes",
        [
            (
                "streamingBytes(const poplar::Target &) const { return 0; }",
                "streamingBytes(const poplar::Target &) const { return 1; }",
                "what is on chip takes a byte of streaming memory",
            ),
        ],
    ),
    *of(
        "poplar_ops/src/stores/value_sum.cpp",
        _APPEND,
        [
            (
                "tokens.at(task, i) + c",
                "tokens.at(task, 0) + c",
                "of several tokens the first is added each time",
            ),
            (
                "write_.write(engine, std::vector<float>(write_.size(), 0.0f).data());",
                "(void)engine;",
                "an emptied cache keeps its sum",
            ),
        ],
    ),
    *of(
        "poplar_ops/include/sparq/cache.hpp",
        _LAYERS,
        [
            (
                "return static_cast<unsigned>(plan.layout.layerRows());",
                "return 0;",
                "rows of all layers are those of the first",
            ),
        ],
    ),
    *of(
        "poplar_ops/include/sparq/host_history.hpp",
        f"{_WINDOW}::test_a_copy_remembers_and_another_n_recent_is_another_program "
        f"{_WINDOW}::test_bits_and_history",
        [
            (
                "* length_ + position % length_",
                "* length_ + position",
                "positions of later pieces are elsewhere",
            ),
        ],
    ),
    *of(
        "poplar_ops/include/sparq/plan.hpp",
        f"{_PLANNING} {_DECODE}",
        [
            (
                "firstTask(round) + slots <= nTasks ? slots : nTasks - firstTask(round)",
                "firstTask(round) < nTasks ? slots : 0",
                "the last round has tasks that are not there",
            ),
            (
                "stride - first < length ? stride - first : length",
                "length",
                "the last part has room for more than is there",
            ),
        ],
    ),
    *of(
        "poplar_ops/include/sparq/session.hpp",
        f"{_OPS}_layers.py tests/pod/test_pod_sessions.py",
        [
            (
                "return ports != &shards.front()->ports;",
                "return false;",
                "heads of several IPUs are not brought together",
            ),
        ],
    ),
    *of(
        "poplar_ops/include/sparq/settings.hpp",
        _WORDS,
        [
            ("maxCapacity = 1u << 24", "maxCapacity = 1u << 25", "capacities are taken that no count holds"),
        ],
    ),
    *of(
        "poplar_ops/include/sparq/shard.hpp",
        _DECODE,
        [
            ("writeCounts.write(engine, ofElements);", "(void)ofElements;", "all rows take a token or none"),
        ],
    ),
    *of(
        "poplar_ops/include/sparq/shares.hpp",
        "tests/pod/test_pod_sessions.py::test_a_decode_over_ipus_is_the_reference",
        [
            (
                "* std::size_t(whole.nKvHeads) + firstKvHead",
                "* std::size_t(whole.nKvHeads)",
                "every IPU has the first heads",
            ),
        ],
    ),
    *of(
        "poplar_ops/arith/scale.hpp",
        "tests/cpu/test_cpu_bits.py::test_many_outputs",
        [
            (
                "1.0 / std::sqrt(static_cast<double>(headDim))",
                "1.0f / std::sqrt(static_cast<float>(headDim))",
                "the scale is rounded twice",
            ),
        ],
    ),
    *of(
        "poplar_ops/src/codelets_path.cpp",
        f"{_OPS}_errors.py::test_codelets_are_taken_from_where_the_variable_says",
        [('std::getenv("SPARQ_CODELETS")', 'std::getenv("SPARQ_OTHER")', "the variable is not looked at")],
    ),
    *of(
        "poplar_ops/src/remote_copy.cpp",
        f"{_PLANNING}::test_remote_copies_stay_within_what_a_stream_may_carry",
        [("maxCopyBytes / rowBytes);", "n + 0 * rowBytes);", "a copy carries more than a stream may")],
    ),
    *of(
        "poplar_ops/src/host_tensor.cpp",
        f"{_PLANNING}::test_more_than_a_host_transfer_may_have",
        [("pieceBytes / host.elementBytes_);", "n + 0 * pieceBytes);", "a large tensor goes in one piece")],
    ),
    *of(
        "poplar_ops/include/sparq/host_tensor.hpp",
        f"{_PLANNING}::test_more_than_a_host_transfer_may_have",
        [("std::size_t(64) << 20", "std::size_t(64) << 22", "pieces are larger than a host transfer")],
    ),
    *of(
        "poplar_ops/src/waves.cpp",
        f"{_OPS}_attention.py::test_dense_equals_reference",
        [
            (
                '{"firstRow", rowBase + first}',
                '{"firstRow", rowBase}',
                "every part reads the rows of the first",
            )
        ],
    ),
]
