# SPDX-License-Identifier: Apache-2.0
"""The command `sparq-ipu` (`cli`), and what commands, benchmarks and optional parts of the package share."""
