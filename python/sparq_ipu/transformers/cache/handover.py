# SPDX-License-Identifier: Apache-2.0
"""Tokens on their way through a layer: announced by the hook of the model, stored by `update`, attended to by
the attention function. Each of these comes once, in this order, with the tensors of the one before.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from sparq_ipu.transformers.settings.layers import LayerSettings
from sparq_reference import checks

#: the rule for the attention of a model: anything else would be silently wrong
ATTEND_ONCE = "attend once in every layer, to the keys and values that its cache returned"


@dataclasses.dataclass
class Announcement:
    """Tokens that are on their way to a layer."""

    #: (batch, n_tokens) bool, which of them are real; None: all
    real: torch.Tensor | None
    #: how to attend to them; None: densely
    settings: LayerSettings | None
    #: several tokens are decode steps in one, not prefill
    is_step: bool


class Handover:
    """The tokens of one forward pass.

    Args:
        index: of the layer, for messages.
    """

    def __init__(self, index: int):
        self._index = index
        self.announce(None)

    def announce(self, announced: Announcement | None) -> None:
        """Tokens that come; None: nothing comes, whatever was announced."""
        self.announced = announced
        #: the tensors that `update` returned for them
        self._returned: tuple[torch.Tensor, ...] = ()
        self._versions: tuple[int | None, ...] = ()
        #: several tokens of one step, which are appended when their queries come: keys and values
        self.waiting: tuple[np.ndarray, np.ndarray] | None = None

    def expected(self) -> Announcement:
        """The announcement of tokens that have not been stored.

        Raises:
            RuntimeError: the model is not enabled; ValueError: tokens came already in this forward pass.
        """
        if self.announced is None:
            raise RuntimeError(
                "SparqCache: the model must be enabled by sparq_ipu.transformers.enable, "
                "got a call from one that is not"
            )
        if self._returned:
            got = f"one more call of update in layer {self._index}"
            checks.fail("sparq_attention", "model", ATTEND_ONCE, got)
        return self.announced

    def give(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Remember the tensors that `update` returns to the model."""
        self._returned, self._versions = (keys, values), (_version(keys), _version(values))

    def take(self, key: torch.Tensor, value: torch.Tensor) -> LayerSettings | None:
        """How to attend to the announced tokens, which have come to attention.

        Attention reads the cache, not `key` and `value`. So these must be what `update` returned, as it was
        then, and come once: a model that rearranges them, or attends again, means another result.

        Raises:
            ValueError: they are not.
        """
        if self.announced is None or not self._returned:
            checks.fail("sparq_attention", "model", ATTEND_ONCE, f"one more call in layer {self._index}")
        tensors = zip(("keys", "values"), (key, value), self._returned, self._versions)
        for name, tensor, returned, version in tensors:
            if tensor is not returned or _version(tensor) != version:
                checks.fail("sparq_attention", "model", ATTEND_ONCE, f"other {name} in layer {self._index}")
        settings = self.announced.settings
        self.announce(None)
        return settings


def _version(tensor: torch.Tensor) -> int | None:
    """Counts what was written into a tensor; None in inference mode, where torch does not count."""
    return None if tensor.is_inference() else tensor._version
