# SPDX-License-Identifier: Apache-2.0
"""Accuracy of decode attention methods on a pretrained language model; `bench/accuracy.py` is its command line, docs/accuracy.md its page.

engine: runs a model with a method; tasks: what is asked of it; plan, runner: which and how, into JSON lines; measure, report, plots: what came
out; statistics: the attention of the model itself. Needs torch and transformers.
"""
