# SPDX-License-Identifier: Apache-2.0
"""A simulator of ALISA's scheduler (arXiv:2403.17312, section V): see docs/alisa.md and study/alisa.py.

machine     the GPUs, models and workloads of the paper
costs       what the model leaves free, by name, and the time of compute, link and recomputation
schedule    one run: ALISA's three phases (Algorithm 2, equations 3 to 6), and the baselines
optimise    alpha, beta, p1 and p2 for a workload
published   what the paper states in numbers

The window attention itself is not here: it is `sparq_ipu.window_attention`.
"""

from sparq_study.alisa.costs import RECOMPUTE, Costs
from sparq_study.alisa.machine import MACHINES, MODELS, Machine, Model, Workload
from sparq_study.alisa.optimise import best_schedule
from sparq_study.alisa.published import Statement, read_published
from sparq_study.alisa.schedule import (
    Attention,
    Schedule,
    Timeline,
    all_fast,
    flexgen,
    offload_everything,
    simulate,
    static_split,
)

__all__ = [
    "MACHINES",
    "MODELS",
    "RECOMPUTE",
    "Attention",
    "Costs",
    "Machine",
    "Model",
    "Schedule",
    "Statement",
    "Timeline",
    "Workload",
    "all_fast",
    "best_schedule",
    "flexgen",
    "offload_everything",
    "read_published",
    "simulate",
    "static_split",
]
