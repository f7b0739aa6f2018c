# SPDX-License-Identifier: Apache-2.0
"""`python -m sparq_ipu`: see `sparq_ipu.cli`."""

import sys

from sparq_ipu.cli import main

sys.exit(main())
