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
        "bench/quiet.py",
        "tests/bench/test_quiet.py",
        [
            ("for pid in self._pids:", "for pid in ():", "work of a named process is that of others"),
            ("if len(self.samples) > 1", "if self.samples", "one look says that nobody worked"),
            ("if paused > PAUSED_SHARE:", "if False:", "processors may stand still"),
            ("statistics.median(reads)", "min(reads)", "what a read usually takes is the shortest of all"),
            ("usual + PAUSE_SECONDS", "usual", "what takes a little longer is a pause"),
            ("sum(read - usual for", "sum(read for", "a pause has all of the read in it"),
            ("max(self.paused, other.paused)", "self.paused", "the first of two moments is the worst"),
            ("watch.pace.worst(pace(n_threads))", "watch.pace", "nobody looks after what was timed"),
            ("while len(reads) < n_reads or", "while", "the memory is read once"),
        ],
    ),
    *of(
        "bench/peers.py",
        _PEERS,
        [
            ("run(prompt, 1)", "run(prompt, 2)", "two tokens are the first"),
            (
                "zip(times[1:], times[2:])",
                "zip(times, times[1:-1])",
                "the prompt counts as a step",
            ),
            ("        if is_counted:\n", "        if True:\n", "the warm-up of another program counts"),
            ('if line.startswith("{"):', "if True:", "whatever a program writes is an answer"),
            (
                "durations[len(durations) - (n_new - 1) :]",
                "durations[-(n_new - 1) :]",
                "of one token OpenVINO says many times",
            ),
            ('"--threads", threads', '"--threads", 2', "another program has always two threads"),
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
                'body["cache_prompt"] = True',
                'body["cache_prompt"] = False',
                "llama.cpp reads its prompt in each turn",
            ),
            (
                "            raise\n        cli",
                "            pass\n        cli",
                "a missing kernel is a missing program",
            ),
        ],
    ),
    *of(
        "bench/decode_method.py",
        f"{_PEERS} tests/bench/test_decode.py",
        [
            (
                "for tokens in (prompt[: WARM_UP[0]], prompt):",
                "for tokens in (prompt, prompt[: WARM_UP[0]]):",
                "our first token is that of the warm-up",
            ),
            ("recommended_top_k(seq_len)", "recommended_top_k(1)", "every length is short"),
        ],
    ),
    *of(
        "bench/decode.py",
        f"{_PEERS} tests/bench/test_decode.py::test_the_times_of_steps",
        [
            (
                "median = statistics.median(seconds)",
                "median = statistics.mean(seconds)",
                "the mean is the median",
            ),
            ("batch / median", "batch / min(seconds)", "the fastest step is the speed"),
            ("first = turn % max(len(methods), 1)", "first = 0", "turns have one order"),
            (
                'noise(row["others"], row["paused"])',
                'noise(row["others"], 0.0)',
                "rows of processors that stood still are kept",
            ),
            (
                "watched(a.threads, [peer.pid for _, peer in methods[len(ours) :]])",
                "watched(a.threads)",
                "turns of other programs are noise",
            ),
            (
                "            peer.close()\n",
                "            pass\n",
                "other programs go on",
            ),
            (
                "noise(watch.others, watch.pace.paused)",
                "noise(0.0, watch.pace.paused)",
                "our first token is kept though others ran",
            ),
            (
                'noise(peer.prompt["others"], peer.prompt["paused"])',
                'noise(0.0, peer.prompt["paused"])',
                "their first token is kept though others ran",
            ),
            ("gguf_of(a.model), seq_len, a.steps", "Path(a.model), seq_len, a.steps", "the file is a name"),
            ("seq_len, a.steps, a.threads", "seq_len, a.steps, a.batch", "they have one thread"),
        ],
    ),
]
