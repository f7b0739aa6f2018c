# SPDX-License-Identifier: Apache-2.0
"""The extension module, for tests that run programs on the emulator: without either they are skipped."""

from __future__ import annotations

import pytest

_core = pytest.importorskip("sparq_ipu._core", reason="the extension module is not built")
if _core.device_unavailable("emulator"):
    pytest.skip("the emulator is not available here", allow_module_level=True)
