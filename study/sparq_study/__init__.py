# SPDX-License-Identifier: Apache-2.0
"""What was studied with `sparq_ipu`, and what nothing in it needs: `accuracy`, `alisa`, `traces`."""
