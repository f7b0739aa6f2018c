# SPDX-License-Identifier: Apache-2.0
"""Accuracy of decode attention methods on a pretrained model: see docs/accuracy.md.

engine: runs a model with a method; tasks: what is asked of it; plan, runner: which and how, as JSON lines;
measure, report, plots: what came out; statistics: the attention of the model itself. Needs transformers.
"""
