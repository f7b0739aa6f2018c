# SPDX-License-Identifier: Apache-2.0
"""Mutants of plans and of the device model in Python."""

from __future__ import annotations

from . import of

_QUICK = (
    "the_slowest_ipu_sets_the_pace several_ipus_are_one_ipu_with_a_share split refusals "
    "fixed_seconds_do_not_depend_on_the_streaming_rate the_refused_need_is_what_the_cache_takes "
    "what_can_not_fit_is_refused_before_the_dry_run a_need_above_its_lower_bound_is_refused "
    "a_key_index_is_nothing_to_dense_attention the_baseline_is_without_the_append_program "
    "there_is_a_plan_where_dense_attention_does_not_fit "
    "what_is_planned_twice_is_counted_once "
    "headline_is_quick_and_needs_no_cache"
)
#: those of its tests that take no minutes
_PLANNING = " ".join(f"tests/planning/test_planning.py::test_{name}" for name in _QUICK.split())

MUTANTS = [
    *of(
        "python/sparq_ipu/planning/planner.py",
        _PLANNING,
        [
            ("slowest = max(counts, key=", "slowest = min(counts, key=", "the fastest IPU stands for all"),
            (
                "dense.seconds_per_query / plan.seconds_per_query",
                "plan.seconds_per_query / dense.seconds_per_query",
                "the speed-up is upside down",
            ),
            (
                "except DoesNotFit:  # there",
                "except ZeroDivisionError:  # there",
                "SparQ can not be planned where dense attention does not fit",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/planning/counting.py",
        _PLANNING,
        [
            (
                '    _check_streaming_memory(model, result["streaming_memory"], ipu)',
                "    pass",
                "the second check of streaming memory, of what is really needed",
            ),
            ("min(n_ipus, model.ipus_per_gateway)", "n_ipus", "more IPUs share a gateway than are behind it"),
            (
                "if n_bytes > model.tiles * model.tile_bytes:",
                "if n_bytes > model.tile_bytes:",
                "a cache in SRAM must fit one tile",
            ),
            (
                'step["bytes"] * step["executions"] for',
                'step["bytes"] for',
                "bytes of a loop are counted once",
            ),
            ('int(step["executions"])', "1", "the wait for a shared gateway is counted once a loop"),
            (
                "copy.deepcopy(_counts_of(*program, **more))",
                "_counts_of(*program, **more)",
                "plans share their counts",
            ),
            ("@functools.lru_cache(maxsize=64)", "", "the same is counted for every plan"),
        ],
    ),
    *of(
        "python/sparq_ipu/planning/record.py",
        _PLANNING,
        [
            (
                "copies * self.model.remote_copy_seconds",
                "0.0",
                "the fixed cost of a copy depends on the rate",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/planning/request.py",
        _PLANNING,
        [
            (
                "for b in range(0, self.cache.batch, batch)",
                "for b in range(0, 1)",
                "only the first share is counted",
            ),
            (
                "math.gcd(n_ipus, n_kv_heads)",
                "min(n_ipus, n_kv_heads)",
                "KV heads that do not split are split",
            ),
            ("if batch % (n_ipus // heads) != 0:", "if False:", "a batch that does not split is split"),
            (
                "            append=False,\n",
                "",
                "the baseline is planned with the append program",
            ),
            (
                "cache.plain() if chosen.is_dense else cache",
                "cache",
                "dense attention has a key index",
            ),
            (
                "dataclasses.replace(model, tiles=tiles) if tiles else model",
                "model",
                "the number of tiles does not reach the model",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/planning/device_model.py",
        "tests/device_model/test_device_model.py",
        [
            (
                "rows >= self.tiles",
                "rows > self.tiles",
                "shared rows: as many as tiles",
                "the square root is 0 there, so both give no penalty",
            ),
            ("math.sqrt(1 - rows / self.tiles)", "(1 - rows / self.tiles)", "the penalty falls linearly"),
            (
                "min(1.0, row_bytes / self.shared_row_knee_bytes)",
                "row_bytes / self.shared_row_knee_bytes",
                "the penalty has no knee",
            ),
            ("+ self.packet_overhead_bytes * packets", "", "packets cost nothing"),
            (" + self.remote_copy_seconds", "", "a copy has no fixed cost"),
            (
                "clock / bow.clock_hz if streaming_follows_clock else 1.0",
                "1.0",
                "the streaming rate of gc200 does not follow its clock",
            ),
            ("if not 0 < share <= 1:", "if not 0 <= share <= 1:", "a share of 0 is taken"),
        ],
    ),
    *of(
        "python/sparq_ipu/planning/placement.py",
        "tests/planning/test_placement.py",
        [
            (
                "tiered.seconds_per_query >= streamed.seconds_per_query",
                "False",
                "tiers that are slower are taken",
            ),
            (
                "(self.layers_per_ipu - self.n_tiered) * getattr(self.others, name)",
                "self.layers_per_ipu * getattr(self.others, name)",
                "layers in three tiers stream their index too",
            ),
            (
                "sum(plan.max_tile_bytes for plan in both if plan) <= room",
                "both[0].max_tile_bytes <= room",
                "the program of layers that are streamed takes no memory",
            ),
            ("math.ceil(n_layers / n_ipus)", "n_layers // n_ipus", "layers that do not divide are left out"),
            ("return of_ipu * self.n_layers / self.layers_per_ipu", "return of_ipu", "one IPU is all"),
            ("high = min(high, most // STEP + 1)", "pass", "longer contexts than asked for are tried"),
            (
                "others(n_layers - n)",
                "others(n_layers)",
                "all layers are streamed beside those in three tiers",
            ),
            ("else (low, middle, best)", "else (low, middle, None)", "the most that fitted is forgotten"),
        ],
    ),
    *of(
        "python/sparq_ipu/planning/pod.py",
        "tests/pod/test_pod_plans.py",
        [
            (
                'add(part, step["executions"] / part["executions"])',
                "add(part)",
                "IPUs agree once, not at each branch",
            ),
            ('step["name"].endswith(_SWITCHES)', "False", "IPUs agree on a number as on a bit"),
            ("(n_ipus - 1) * total[", "n_ipus * total[", "in turn, one IPU streams twice"),
            ("for ipu in range(n_ipus - 1):", "for ipu in range(0):", "layers are handed over for nothing"),
            ("+ 2 * sum(last.values())", "+ sum(last.values())", "in a pipeline nothing is received"),
            ("streamed_bytes=sum(", "streamed_bytes=max(", "one step is all that is streamed"),
        ],
    ),
]
