# SPDX-License-Identifier: Apache-2.0
"""python -m sparq_ipu.serve: see `command`."""

import sys

from sparq_ipu.commands.command_line import guarded
from sparq_ipu.serve.command import main

sys.exit(guarded(main))
