# SPDX-License-Identifier: Apache-2.0
"""Whether modules still are what they were when something was made of them."""

from __future__ import annotations

import itertools
import operator
from typing import Any, Mapping

import torch

_CAPTURING = "transformers.utils.output_capturing"


def looks(hooks: Mapping[int, Any]) -> bool:
    """Whether hooks look at what goes through a module. Those that transformers leaves in a model after
    `output_hidden_states=True` do nothing without that argument."""
    return any(getattr(hook, "__module__", "") != _CAPTURING for hook in hooks.values())


class Unchanged:
    """Modules and tensors as they are now. It is asked at every step, for hundreds of them: in loops without
    bytecode."""

    def __init__(self) -> None:
        self._holders: list[dict[str, Any]] = []
        self._names: list[str] = []
        self._held: list[Any] = []
        self._modules: list[torch.nn.Module] = []
        self._classes: list[type] = []
        self._own: list[dict[str, Any]] = []
        self._hooks: list[Mapping[int, Any]] = []
        self._tensors: list[torch.Tensor] = []
        self._addresses: list[int] = []
        #: torch counts writes to these, except in inference mode
        self._counted: list[torch.Tensor] = []
        self._versions: list[int] = []

    def watch_module(self, holder: dict[str, Any], name: str) -> torch.nn.Module:
        """The module of this name, which another may take the place of, or which somebody may look into.
        holder: `_modules` of the module that has it."""
        module: torch.nn.Module = self._watch(holder, name)
        own = module.__dict__
        self._modules.append(module)
        self._classes.append(type(module))
        self._own.append(own)
        self._hooks += [own["_forward_hooks"], own["_forward_pre_hooks"]]
        return module

    def watch_value(self, holder: dict[str, Any], name: str) -> None:
        """A number, None, or a tensor: another may be put there, and a tensor may be written into. holder:
        `_parameters`, `_buffers` or `__dict__` of a module."""
        value = self._watch(holder, name)
        if isinstance(value, torch.Tensor):
            self._tensors.append(value)
            self._addresses.append(value.data_ptr())
            if not value.is_inference():
                self._counted.append(value)
                self._versions.append(value._version)

    def _watch(self, holder: dict[str, Any], name: str) -> Any:
        self._holders.append(holder)
        self._names.append(name)
        self._held.append(holder[name])
        return holder[name]

    def include(self, other: Unchanged) -> None:
        """Watch the parts of another one too."""
        for name, listed in vars(other).items():
            vars(self)[name] += listed

    def __call__(self) -> bool:
        """Every module is in its place, of its class, and runs its class's forward pass without a hook; and
        every value is in its place, and was not written into."""
        return (
            all(map(operator.is_, map(dict.get, self._holders, self._names), self._held))
            and all(map(operator.is_, map(type, self._modules), self._classes))
            and not any(map(dict.__contains__, self._own, itertools.repeat("forward")))
            and not any(map(looks, filter(None, self._hooks)))
            and list(map(torch.Tensor.data_ptr, self._tensors)) == self._addresses
            and list(map(_version, self._counted)) == self._versions
        )


_version = operator.attrgetter("_version")
