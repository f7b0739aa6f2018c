# SPDX-License-Identifier: Apache-2.0
"""`python -m sparq_ipu`: see `sparq_ipu.commands.cli`."""

import sys

from sparq_ipu.commands.cli import main

sys.exit(main())
