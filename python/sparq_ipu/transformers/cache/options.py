# SPDX-License-Identifier: Apache-2.0
"""Options of a model's caches, checked before there is a prompt."""

from __future__ import annotations

from typing import Any, Sequence

from sparq_ipu.devices import backend_module, check_option_names, resolve_device
from sparq_reference import CacheSpec, checks

#: of a model's caches; "auto": the CPU kernels where they are built, else the NumPy reference
DEVICES = ("auto", "cpu", "reference")


def host_device(op: str, device: str) -> str:
    """The device of a model's caches, "cpu" or "reference".

    Raises:
        ValueError: it is not of DEVICES; RuntimeError: it is not available here.
    """
    if device not in DEVICES:
        checks.fail(op, "device", f"be one of {', '.join(DEVICES)}, for a model", repr(device))
    if device != "auto":
        return resolve_device(op, device)
    try:
        return resolve_device(op, "cpu")
    except RuntimeError:
        return "reference"


def check_options(
    op: str,
    device: str,
    capacity: int | None,
    check_finite: bool,
    options: dict[str, Any],
    settings: Sequence[str] = (),
) -> dict[str, Any]:
    """Options of a model's caches, by name, with the device resolved. Checked before there is a prompt.

    Args:
        options: others of `sparq_ipu.KVCache`.
        settings: what else the caller takes by name, for messages.

    Raises:
        ValueError: an option that is unknown or out of range.
        RuntimeError: the device is not available.
    """
    device = host_device(op, device)
    if capacity is not None:
        checks.check_integer(op, "capacity", capacity, 1, checks.MAX_CAPACITY)
    if options.get("index_components"):
        rule = "be left out: layers of a model do not order the components of a head"
        checks.fail(op, "index_components", rule, options["index_components"])
    checks.check_bool("KVCache", "check_finite", check_finite)
    of_device = dict(options)
    # The model's head_dim is not known here: the largest has every option that a smaller one may have.
    CacheSpec(1, 1, checks.MAX_INDEX_HEAD_DIM, 1, op="KVCache", **CacheSpec.take(of_device))
    of_spec = [name for name in CacheSpec.options() if name != "index_components"]
    names = [*settings, *of_spec, "device", "capacity", "check_finite"]
    check_option_names(op, device, of_device, names)
    backend_module(device).Options(**of_device, op="KVCache")
    return dict(options, device=device, check_finite=check_finite, capacity=capacity)
