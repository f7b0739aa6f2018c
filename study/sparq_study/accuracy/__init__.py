# SPDX-License-Identifier: Apache-2.0
"""Accuracy of decode attention methods on a pretrained model: see docs/study.md.

methods: what is compared (its docstring says how to add one); engine: runs a model with a method; tasks:
what is asked of it; plan, runner: what to run, as JSON lines; measure, report, plots: what came out. Needs
torch and transformers. Nothing here runs on a device.
"""
