# SPDX-License-Identifier: Apache-2.0
"""`python -m sparq_ipu.report`: the command; the code is `sparq_ipu.planning.report`."""

import sys

from sparq_ipu.commands.command_line import guarded
from sparq_ipu.planning.report import main

if __name__ == "__main__":
    sys.exit(guarded(main))
