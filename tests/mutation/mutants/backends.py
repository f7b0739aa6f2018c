# SPDX-License-Identifier: Apache-2.0
"""Mutants of the public calls in Python: the cache, attention, kernels, backends."""

from __future__ import annotations

from . import of

_PLANNING = "tests/planning/test_planning.py"
_WORDS = "tests/bench/test_ipu_sparq.py::test_rows tests/ops/test_words.py tests/ops/test_errors.py"
_OPS = "tests/ops/test_copies.py tests/ops/test_errors.py tests/ops/test_sessions.py tests/ops/test_append.py"

MUTANTS = [
    *of(
        "python/sparq_ipu/backends/ipu.py",
        _OPS,
        [
            (
                "rows.copy() if bits == 16",
                "rows if bits == 16",
                "pending tokens are the caller's arrays",
            ),
            ("held += counts", "pass", "pending tokens all land at position 0"),
            (
                "lengths = self._lengths[layer][index]",
                "lengths = self._lengths[layer]",
                "reorder leaves the lengths",
            ),
            ("self._pending[layer].clear()", "pass", "a reset keeps what is pending"),
            (
                "if self._session is not None and n_heads == self._n_heads and wanted",
                "if self._session is not None and wanted",
                "a session of another number of heads serves",
            ),
            (
                "[*self._attention, wanted]",
                "[wanted]",
                "a new program replaces the others",
            ),
            ("if every == [wanted]:", "if True:", "no second try with one program alone"),
            (
                'if self._options.memory == "sram" and self._lengths[layer].any():',
                "if False:",
                "a cache in SRAM can be appended to",
            ),
            ("np.zeros_like(self._lengths[layer])", "self._lengths[layer]", "a reset keeps the lengths"),
            ("self._lengths = self._lengths.copy()", "pass", "lengths that were asked for change"),
            ("self._attention.index(wanted)", "0", "always the first program"),
        ],
    ),
    *of(
        "python/sparq_ipu/device_options.py",
        _OPS,
        [('("n_tiles", 0, MAX_TILES)', '("n_tiles", 0, 2 * MAX_TILES)', "more tiles than there are")],
    ),
    *of(
        "python/sparq_ipu/backends/cpu.py",
        "tests/cpu/test_cpu_errors.py tests/cpu/test_cpu_threads.py tests/ops/test_errors.py",
        [
            ("MAX_THREADS = 1024", "MAX_THREADS = 1025", "one more thread is allowed"),
            ('os.environ.get(ISA_VARIABLE) or "auto"', '"auto"', "the environment variable is ignored"),
            (
                'check_room(spec, n_layers, host_memory(), "memory of this machine")',
                "pass",
                "a cache that can never be full is made",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/backends/room.py",
        "tests/ops/test_errors.py",
        [
            ("2 * 2 * spec.n_tasks", "2 * spec.n_tasks", "values need no room"),
            ("need <= room", "need < room", "a cache that just fits is refused"),
            ("most = room // of_position", "most = room", "the message names bytes for positions"),
        ],
    ),
    *of(
        "python/sparq_ipu/backends/reference.py",
        "tests/ops/test_append.py tests/ops/test_copies.py",
        [
            (
                "< self._cache.lengths[:, None]",
                "<= self._cache.lengths[:, None]",
                "NaN is read beyond a length",
            ),
            (
                "self._cache.value[:, :, start:stop]",
                "self._cache.value[:, :, :stop]",
                "values are read from 0 on",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/cache.py",
        _OPS,
        [
            (
                "return np.array(self._backends[0].lengths, dtype=np.int64)",
                "return self._backends[0].lengths",
                "lengths can be changed from outside",
            ),
            (
                'checks.check_integer("read", "stop", stop, 0, longest)',
                'checks.check_integer("read", "stop", stop, 0, self.capacity)',
                "reads beyond the longest length",
            ),
            ('"check_finite": self.check_finite,\n', "", "a copy looks for NaN again"),
            ("**arguments, **self._options}", "**arguments}", "a copy forgets the options of its device"),
            (
                "            self.lengths,\n            lengths=lengths,",
                "            self.lengths * 0,\n            lengths=lengths,",
                "capacity is not counted over appends",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/attention.py",
        f"{_OPS} tests/models/test_torch_attention.py",
        [
            (
                "held if n_new is None else held + n_new",
                "held",
                "a token that is appended with the query does not count",
            ),
            ("check_finite=cache.check_finite)", "check_finite=True)", "check_finite=False is ignored"),
            ("if not isinstance(cache, KVCache):", "if False:", "another cache is no ValueError"),
        ],
    ),
    *of(
        "python/sparq_ipu/kernels.py",
        f"{_WORDS} {_PLANNING}",
        [
            (
                'BASELINE = KERNELS["dense-streaming"]',
                'BASELINE = KERNELS["dense-sram"]',
                "speed-ups are over another kernel",
            ),
            (
                "cache.n_tasks * cache.capacity * of_row)",
                "cache.n_tasks * cache.capacity * of_row // 2)",
                "values take no streaming memory",
            ),
            (
                "if buffer.is_in_sram)",
                ")",
                "a cache in SRAM seems larger than it is",
            ),
            ("cache.capacity % BLOCK", "0", "the open block is counted in streaming memory"),
            ("return 1.0", "return 2.0", "dense attention is faster than itself"),
        ],
    ),
    *of(
        "python/sparq_ipu/backends/ipu.py",
        "tests/cpu/test_cpu_window.py",
        [
            ("if before is not None:", "if False:", "an observation forgets the steps before it"),
            (
                "[s for s in of if len(s) <= n]",
                "[s for s in of if len(s) < n]",
                "truncate drops the step at just that length",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/tokens.py",
        "tests/cpu/test_cpu_window.py",
        [
            (
                "        settings.check_heads(op, query.shape[1])",
                "        pass",
                "a token is stored before its settings are refused",
            ),
            (
                "    cache.one_layer(op).check_settings(op, settings)",
                "    pass",
                "a token is stored before another n_recent is refused",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/backends/cpu.py",
        "tests/cpu/test_cpu_window.py",
        [
            (
                "self._cache.begin_history(history.n_recent)",
                "pass",
                "a copy forgets n_recent where no step is left",
            )
        ],
    ),
]
