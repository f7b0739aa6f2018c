# SPDX-License-Identifier: Apache-2.0
"""Mutants of benchmarks: what is timed, and what is left of a day with an IPU."""

from __future__ import annotations

from . import of

_FAULTS = "tests/bench/test_hardware_day_faults.py"
_PEERS = "tests/bench/test_peers.py tests/bench/test_peers_programs.py tests/bench/test_peers_turns.py"

MUTANTS = [
    *of(
        "bench/passes.py",
        "tests/bench/test_ipu_sparq.py::test_as_many_rows_are_hot_before_every_call_as_asked_for "
        "tests/bench/test_ipu_sparq.py::test_a_call_that_gives_other_bits_is_no_measurement",
        [
            ("            self.session.forget_hot()", "            pass", "later passes are hot"),
            ("if self._warms:", "if False:", "nothing is hot at any rate"),
            ("if i >= warmup:", "if True:", "warm-up is counted"),
            ("again.tobytes() != output.tobytes()", "False", "a wrong call is timed"),
        ],
    ),
    *of(
        "bench/day/records.py",
        _FAULTS,
        [
            (
                "            reserve.unlink()\n            try:",
                "            try:",
                "a full disk keeps its room",
            ),
            ("os.truncate(self.file", "(lambda *_: None)(self.file", "half a line stays"),
            ("fcntl.LOCK_EX | fcntl.LOCK_NB", "fcntl.LOCK_SH | fcntl.LOCK_NB", "two run one day"),
        ],
    ),
    *of(
        "bench/day/environment.py",
        f"{_FAULTS}::test_popc_refuses_a_flag",
        [('if answer["status"] != 0:', "if False:", "a flag that popc refuses is taken")],
    ),
    *of(
        "bench/day/fit.py",
        "tests/bench/test_hardware_day.py::test_calibrate_writes_a_model_that_a_plan_takes",
        [
            (
                "v * float(np.exp(s)) for",
                "v * float(np.exp(0 * s)) for",
                "parameters stay as they were",
            ),
        ],
    ),
    *of(
        "bench/day/complete.py",
        "tests/bench/test_hardware_day.py",
        [
            (
                "if _lacks(record) else record",
                "if False else record",
                "nothing is modelled where a day is read",
            )
        ],
    ),
    *of(
        "bench/peers.py",
        _PEERS,
        [
            ('noise(row["others"])', "noise(0.0)", "rows of a busy machine are kept"),
            (
                "max(paces) > SAME_PACE * min(paces)",
                "paces[0] > SAME_PACE * paces[-1]",
                "the memory's pace is compared in the first and last row",
            ),
            (
                "for row in worked:",
                "for row in rows:",
                "why a program failed is not said where the memory changed",
            ),
            ("min(paces),\n", "paces[-1],\n", "the memory before a prompt is not looked at"),
            (
                '"first": seen.share(times[0], times[1])',
                '"first": seen.share(times[1], times[-1])',
                "others are not looked for while the prompt is read",
            ),
            (
                "zip(times[1:], times[2:])",
                "zip(times, times[1:-1])",
                "the prompt counts as a step",
            ),
            ('"--threads", a.threads', '"--threads", 2', "another program has always two threads"),
            ('"--S", seq_len', '"--S", a.S[0]', "every length is the first one"),
            (
                "params.cpuparams.n_threads = params.cpuparams_batch.n_threads",
                "params.cpuparams.n_threads",
                "llama.cpp reads the prompt with other threads",
            ),
            (
                "params.cache_type_k = params.cache_type_v = kind",
                "params.cache_type_k = kind",
                "values of llama.cpp have another type than asked for",
            ),
            (
                '"cache_prompt": False',
                '"cache_prompt": True',
                "llama.cpp keeps what it has read",
            ),
            (
                "list(metrics.m_durations)[-(n_new - 1) :]",
                "list(metrics.m_durations)[: n_new - 1]",
                "OpenVINO's first token is a step, its last is none",
            ),
            ("if status or not lines:", "if not lines:", "a row of a program that failed is kept"),
            (
                "except ImportError as error:",
                "except ZeroDivisionError as error:",
                "a missing program is not named",
            ),
        ],
    ),
    *of(
        "bench/decode.py",
        _PEERS,
        [
            (
                "median = statistics.median(seconds)",
                "median = statistics.mean(seconds)",
                "the mean is the median",
            ),
            ("batch / median", "batch / min(seconds)", "the fastest step is the speed"),
            ("first = turn % max(len(methods), 1)", "first = 0", "turns have one order"),
            (
                "rate = min(rate, memory_rate(a.threads))",
                "rate = min(rate, rate)",
                "the memory after our rows is not looked at",
            ),
            ("        refuse_other_pace(rows)\n", "", "rows of another pace are kept"),
            (
                "refuse_noise(row, share_first.share_of_all())",
                'refuse_noise(row, row["others"])',
                "our first token is kept though others ran",
            ),
            (
                "for tokens in (prompt[: WARM_UP[0]], prompt):",
                "for tokens in (prompt, prompt[: WARM_UP[0]]):",
                "our first token is that of the warm-up",
            ),
            (
                "rows_of_peers(a, gguf_of(a.model), ",
                "rows_of_peers(a, Path(a.model), ",
                "other programs do not get the file of smollm2",
            ),
        ],
    ),
]
