# SPDX-License-Identifier: Apache-2.0
"""Which devices this installation can run on, and which one `device="auto"` means."""

from __future__ import annotations

import dataclasses
import importlib
from functools import lru_cache
from typing import Any, Mapping, Sequence

from sparq_reference import checks

#: Every device name, in the order in which `"auto"` tries them, and the module of its backend.
BACKENDS = {
    "ipu": "sparq_ipu.backends.ipu",
    "cpu": "sparq_ipu.backends.cpu",
    "emulator": "sparq_ipu.backends.ipu",
    "reference": "sparq_ipu.backends.reference",
}


def backend_module(device: str) -> Any:
    """The backend module of `device`; ImportError, with the reason, where this installation lacks it."""
    return importlib.import_module(BACKENDS[device])


@lru_cache(maxsize=None)  # what is installed, and plugged in, is asked once
def why_unavailable(device: str) -> str | None:
    """Why a device of `BACKENDS` can not run here; None if it can."""
    try:
        reason: str | None = backend_module(device).unavailable(device)
    except ImportError as error:
        return str(error)
    return reason


def options_of(device: str) -> list[str]:
    """Names of the options that the backend of a device has."""
    return [field.name for field in dataclasses.fields(backend_module(device).Options)]


def check_option_names(op: str, device: str, options: Mapping[str, Any], more: Sequence[str]) -> None:
    """Refuse an option that a cache on this available device does not have; the message says which devices
    do, or what names there are, `more` among them."""
    known = options_of(device)
    for name, value in options.items():
        if name not in known:
            others = [other for other in BACKENDS if name in options_of(other)]
            if others:
                rule = f"be left out on device {device!r}: it is for {' and '.join(map(repr, others))}"
                checks.fail(op, name, rule, repr(value))
            checks.fail(op, "options", f"be among {list(dict.fromkeys([*more, *known]))}", repr(name))


def available_devices() -> list[str]:
    """Names of the devices that can run here, best first: what `device="auto"` picks is the first."""
    return [device for device in BACKENDS if why_unavailable(device) is None]


def resolve_device(op: str, device: str) -> str:
    """The device that `device` means here.

    Raises:
        RuntimeError: this machine or installation lacks it, with the reason.
    """
    if device == "auto":
        return available_devices()[0]
    if not isinstance(device, str) or device not in BACKENDS:
        raise ValueError(f"{op}: device must be one of {['auto', *BACKENDS]}, got {device!r}")
    reason = why_unavailable(device)
    if reason is not None:
        raise RuntimeError(f"{op}: device {device!r} is not available here: {reason}")
    return device
