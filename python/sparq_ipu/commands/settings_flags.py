# SPDX-License-Identifier: Apache-2.0
"""The flags of SparQ's settings, spelled the same way by every command."""

from __future__ import annotations

#: by argument: the flag and its short form
SETTINGS_FLAGS = {
    "rank": ("--rank", "--r"),
    "top_k": ("--top-k", "--k"),
    "n_local": ("--n-local", "--local"),
}
