# SPDX-License-Identifier: Apache-2.0
"""The caches of all layers over several IPUs."""

from __future__ import annotations

from typing import Any, cast

from sparq_ipu.backends.ipu import IpuLayers
from sparq_ipu.kernels import Attention


class PodLayers(IpuLayers):
    """As `IpuLayers`, with a session over several IPUs."""

    def _compile(self, n_heads: int, attention: list[Attention]) -> Any:
        from sparq_ipu import _core

        session = _core.PodSession(
            self._spec,
            n_heads,
            attention=attention,
            device=self._device,
            options=self._options,
            n_layers=self._n_layers,
        )
        # it has the methods of a session that layers use
        self._session, self._n_heads, self._attention = cast(_core.Session, session), n_heads, attention
        return session
