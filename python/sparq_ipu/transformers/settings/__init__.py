# SPDX-License-Identifier: Apache-2.0
"""Settings of a model's layers. Needs no torch.

layers    settings of one layer and of all layers, the recommended ones, their limits
command   the options of a command line for settings
"""
