# SPDX-License-Identifier: Apache-2.0
"""Options of a model's caches, checked before there is a prompt."""

from __future__ import annotations

from typing import Any, Sequence

from sparq_ipu.device_options import MAX_IPUS
from sparq_ipu.devices import backend_module, check_option_names, resolve_device
from sparq_ipu.kernels import Settings
from sparq_ipu.transformers.settings.layers import LayerSettings, cache_options
from sparq_reference import CacheSpec, checks


def host_device(op: str, device: str) -> str:
    """The device of a model's caches: "auto" is the CPU kernels where they are built, else the reference.

    An IPU or its emulator must be asked for by name: every layer of a model would need a program there.

    Raises: as `sparq_ipu.KVCache` for a device that is unknown, or not available here.
    """
    if device != "auto":
        return resolve_device(op, device)
    try:
        return resolve_device(op, "cpu")
    except RuntimeError:
        return resolve_device(op, "reference")


def check_names(op: str, device: str, options: dict[str, Any], settings: Sequence[str]) -> None:
    """Whether a model's caches have options of these names; `settings`: what else the caller takes by name.

    Raises:
        ValueError: one has not.
    """
    if options.get("index_components"):
        rule = "be left out: layers of a model do not order the components of a head"
        checks.fail(op, "index_components", rule, options["index_components"])
    of_spec = [name for name in CacheSpec.options() if name != "index_components"]
    rest = {name: value for name, value in options.items() if name not in CacheSpec.options()}
    check_option_names(op, device, rest, [*settings, *of_spec, "device", "capacity", "check_finite"])


def check_options(
    op: str,
    device: str,
    capacity: int | None,
    check_finite: bool,
    options: dict[str, Any],
    settings: Sequence[str] = (),
    layers: Sequence[LayerSettings | None] = (),
) -> dict[str, Any]:
    """Options of a model's caches, by name, with the device resolved. Checked before there is a prompt.

    Args:
        options: others of `sparq_ipu.KVCache`.
        settings: what else the caller takes by name, for messages.
        layers: what the caches will be attended to with; None is dense attention.

    Raises:
        ValueError: an option that is unknown or out of range.
        RuntimeError: the device is not available.
    """
    device = host_device(op, device)
    if capacity is not None:
        checks.check_integer(op, "capacity", capacity, 1, checks.MAX_CAPACITY)
    check_names(op, device, options, settings)
    options = dict(options, device=device, check_finite=check_finite)
    _check_layers(op, options, layers)
    return dict(options, capacity=capacity)


def _check_layers(op: str, options: dict[str, Any], layers: Sequence[LayerSettings | None]) -> None:
    """Whether layers that are attended to with these can have caches with these options; none: any."""
    # As many layers and rows as there can be IPUs split evenly over any number of them.
    n = MAX_IPUS if is_stacked(options) else 1
    checks.check_bool("KVCache", "check_finite", options["check_finite"])
    any_settings = next((of_layer for of_layer in layers if of_layer is not None), None)
    for index, of_layer in enumerate(layers or [None]):
        if of_layer in layers[:index]:
            continue
        like = any_settings if of_layer is None else of_layer
        given = {**cache_options(like), **options}
        device, _ = given.pop("device"), given.pop("check_finite")
        # The model's head_dim is not known here: the largest has every option that a smaller one may have.
        spec = CacheSpec(n, 1, checks.MAX_INDEX_HEAD_DIM, 1, op="KVCache", **CacheSpec.take(given))
        of_device = backend_module(device).Options(**given, op="KVCache")
        of_device.check("KVCache", spec, n)
        attention: list[Settings] = [] if of_layer is None else [of_layer.attention]
        if layers and (of_layer is None or of_layer.min_seq_len):  # some steps are dense
            attention.append(None)
        of_device.check(op, spec, n, attention)


def is_stacked(options: dict[str, Any]) -> bool:
    """Whether layers with these options of `sparq_ipu.KVCache` share one: where a program is compiled for
    them, and takes a device."""
    return options["device"] in ("ipu", "emulator")
