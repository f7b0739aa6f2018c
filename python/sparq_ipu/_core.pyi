# SPDX-License-Identifier: Apache-2.0
"""A native module. Its C++ sources in poplar_ops/bindings describe it, and nothing does here."""

from typing import Any

def __getattr__(name: str) -> Any: ...
