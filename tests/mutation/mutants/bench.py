# SPDX-License-Identifier: Apache-2.0
"""Mutants of benchmarks: what is timed, and what is left of a day with an IPU."""

from __future__ import annotations

from . import of

_FAULTS = "tests/bench/test_hardware_day_faults.py"

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
]
