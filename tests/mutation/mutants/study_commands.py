# SPDX-License-Identifier: Apache-2.0
"""Mutants of the study's commands, its plans and contexts, and of what it shows."""

from __future__ import annotations

from . import of

MUTANTS = [
    *of(
        "study/accuracy.py",
        "study/tests/accuracy/test_accuracy_cli.py::test_plan_from_arguments "
        "study/tests/accuracy/test_accuracy_cli.py::test_errors_exit_2",
        [
            (
                'sizes["items"] = args.items',
                'sizes["items"] = sizes.get("items", 1)',
                "--items changes nothing",
            ),
            (
                "seed = plan.seed if args.seed is None else args.seed",
                "seed = plan.seed",
                "--seed changes nothing",
            ),
        ],
    ),
    *of(
        "study/alisa.py",
        "study/tests/alisa/test_alisa.py::test_the_document_is_what_the_lines_say",
        [
            (
                "all(b >= a for a, b in zip(of, of[1:]))",
                "all(b > a for a, b in zip(of, of))",
                "no series grows",
            ),
            (
                "return [a / b for a, b in zip(s, s[1:])]",
                "return [b / a for a, b in zip(s, s[1:])]",
                "factors upside down",
            ),
        ],
    ),
    *of(
        "study/alisa_lines.py",
        "study/tests/alisa/test_alisa.py::test_lines_are_the_simulators_of_today",
        [
            ('"tokens": work.batch * work.n_output,', '"tokens": work.n_output,', "tokens of one sequence"),
        ],
    ),
    *of(
        "study/alisa_device.py",
        "study/tests/alisa/test_alisa_device.py",
        [
            (
                "away = min(max(0, held - hot_rows), older)",
                "away = max(0, held - hot_rows)",
                "more rows are away than there are",
            ),
            (
                "[s for s in steps if s.held <= n_hot]",
                "[s for s in steps if s.held < n_hot]",
                "a full buffer is phase II",
            ),
        ],
    ),
    *of(
        "study/sparq_study/accuracy/plan.py",
        "study/tests/accuracy/test_accuracy_cli.py::test_the_held_out_plan "
        "study/tests/accuracy/test_accuracy_cli.py::test_plan_from_arguments "
        "study/tests/accuracy/test_accuracy_tasks.py::test_plan_errors "
        "study/tests/accuracy/test_accuracy_results.py::test_runner_writes_one_line_per_task_item_question_and_method",
        [
            (
                "return questions[-1:] if self.decode_only else questions",
                "return questions",
                "the held-out plan asks both questions",
            ),
            ('if key != "items"}', "}", "items are a size of a task's build"),
            (
                'dict.fromkeys(["dense", *self.methods])',
                'dict.fromkeys([*self.methods, "dense"])',
                "dense is last",
            ),
        ],
    ),
]
