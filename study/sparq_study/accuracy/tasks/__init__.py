# SPDX-License-Identifier: Apache-2.0
"""Seeded tasks on public-domain text.

They follow the SparQ paper's (language modelling, repetition, needles) and RULER's synthetic ones.
"""

from __future__ import annotations

from .item import QUESTIONS, Item, Metric, Probe, Task, Tokenizer, Words
from .language import LM, REPETITION
from .retrieval import MULTIKEY, MULTIVALUE, NEEDLE, RETRIEVAL, TRACKING
from .words import COMMON, FREQUENT

TASKS = {
    task.name: task
    for task in (LM, REPETITION, NEEDLE, MULTIKEY, MULTIVALUE, TRACKING, RETRIEVAL, COMMON, FREQUENT)
}

__all__ = ["QUESTIONS", "TASKS", "Item", "Metric", "Probe", "Task", "Tokenizer", "Words"]
