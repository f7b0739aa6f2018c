# SPDX-License-Identifier: Apache-2.0
"""What the programs of bench/ share: flags, workloads, rows of results, tables, inputs, and how they time."""
