# SPDX-License-Identifier: Apache-2.0
"""The device model from a day: its parameters fitted on the probes of part "rules", and which were wrong.

The probes are built once more on the emulator, which counts what they do; a parameter's effect on each is
seen by changing it. So nothing here knows the form of a rule, and a parameter that is new is fitted like the
others.
"""

from __future__ import annotations

import dataclasses
import statistics
from typing import Any, Dict, Mapping, Sequence

import numpy as np

from sparq_ipu.planning.device_model import DeviceModel

from . import rules, vertices
from .page import ratio

Parameters = Dict[str, Any]
#: what a day says of itself, or what says nothing of time
NOT_FITTED = ("tiles", "clock_hz")
#: a rule whose probes are further off after the fit has the wrong form, whatever its constants
WRONG_FORM = 0.1
#: relative change of a parameter, to see what depends on it; and by how much of itself a probe has to change
STEP, SEEN = 1e-3, 0.01
#: a relative standard error from which on a parameter is not known any better than before
VAGUE = 0.5


@dataclasses.dataclass(frozen=True)
class Fitted:
    """What came out."""

    before: Parameters
    after: Parameters
    #: of each parameter that was fitted: its standard error, relative
    errors: dict[str, float]
    #: parameters that no probe of the day depends on
    unseen: list[str]
    #: of each kind of probe: how many, and the median and largest error of the model before and after
    kinds: dict[str, Any]
    #: probes for which the model has no rule, and what one of them took
    without: list[tuple[str, float]]


def probes_of(records: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The records to fit on: probes with a time that is not nothing.

    Raises:
        ValueError: there are none.
    """
    found = [
        r
        for r in records
        if r.get("event") == "result" and r["part"] == "rules" and not r["error"] and r["spec"].get("sizes")
    ]
    if not found:
        raise ValueError("calibrate: --day must have results of part rules, got none")
    return found


class Probes:
    """Emulated probes, and what they took on the device."""

    def __init__(self, records: Sequence[Mapping[str, Any]]) -> None:
        known = probes_of(records)
        idle = next(
            (r["seconds"] for r in records if r.get("event") == "result" and r["name"] == "nothing"), 0.0
        )
        self.kinds: list[str] = []
        self.without: list[tuple[str, float]] = []
        self._probes, seconds, several = [], [], []
        for record in known:
            probe = rules.probe_of(rules.from_dict(record["spec"]), "emulator")
            probe.run()
            kind, sizes, n_ipus = rules.from_dict(record["spec"])
            took = record["seconds"] - idle
            if rules.modelled_seconds(probe) > 0:
                self._probes.append(probe)
                self.kinds.append(f"{kind} of {n_ipus} IPUs" if n_ipus != 1 else kind)
                seconds.append(took)
                several.append(kind.startswith("remote") and n_ipus != 1)
            elif took > 0:
                self.without.append((record["name"], took / sizes["n"]))
        self.seconds = np.array(seconds)
        #: what is fitted: not whether IPUs are in one another's way, which says nothing of one
        self.fitted = ~np.array(several)

    def modelled(self, parameters: Parameters) -> np.ndarray:
        return np.array([rules.modelled_seconds(probe, parameters) for probe in self._probes])

    def errors(self, parameters: Parameters, of_all: bool = False) -> np.ndarray:
        """Relative, of those that are fitted."""
        errors = np.asarray(self.modelled(parameters) / self.seconds - 1)
        return errors if of_all else errors[self.fitted]


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def as_given(start: Parameters, values: Mapping[str, float]) -> Parameters:
    """Parameters of the kinds that a model has: some are whole numbers."""
    return {
        name: (round(values[name]) if isinstance(value, int) else float(values[name]))
        if name in values
        else value
        for name, value in start.items()
    }


def slopes(probes: Probes, start: Parameters, values: dict[str, float]) -> np.ndarray:
    """Of each probe's relative error, by the logarithm of each parameter."""
    columns = []
    for name, value in values.items():
        step = max(1.0, STEP * value) if isinstance(start[name], int) else STEP * value
        low, high = ({**values, name: max(0.0, value + sign * step)} for sign in (-1, 1))
        given = [as_given(start, x) for x in (low, high)]
        change = given[1][name] - given[0][name]
        columns.append((probes.errors(given[1]) - probes.errors(given[0])) / change * value)
    return np.array(columns).T


def fit(records: Sequence[Mapping[str, Any]], start: Parameters) -> Fitted:
    """Least squares on relative errors. A parameter that the day hardly tells stays as it was."""
    probes = Probes(records)
    clock = [r["clock_hz"] for r in probes_of(records) if r.get("clock_hz")]
    start = {**start, "clock_hz": float(statistics.median(clock))} if clock else dict(start)
    values = {name: float(v) for name, v in start.items() if name not in NOT_FITTED and is_number(v) and v}
    table = slopes(probes, start, values)
    seen = {name for name, column in zip(values, table.T) if np.abs(column).max() >= SEEN}
    unseen = [name for name in values if name not in seen]
    while True:
        after, errors = least_squares(probes, start, {n: v for n, v in values.items() if n not in unseen})
        vague = [name for name, error in errors.items() if error > VAGUE]
        if not vague:
            break
        unseen.append(max(vague, key=lambda name: errors[name]))
    kinds = by_kind(probes, start, after)
    return Fitted(start, after, errors, unseen, kinds, probes.without)


def least_squares(
    probes: Probes, start: Parameters, values: dict[str, float]
) -> tuple[Parameters, dict[str, float]]:
    """These parameters by steps of Gauss and Newton on their logarithms, and the standard error of each.

    Some parameters are whole numbers, around which steps go to and fro. So the best that was found is kept,
    and a few steps that find none better are the last.
    """
    best, least, n_worse = values, np.inf, 0
    for _ in range(30):
        errors, table = probes.errors(as_given(start, values)), slopes(probes, start, values)
        n_worse = 0 if errors @ errors < 0.99 * least else n_worse + 1
        if errors @ errors < least:
            best, least = values, errors @ errors
        if n_worse == 4:
            break
        # damped, so that what the probes hardly tell apart stays where it was
        square = table.T @ table + 1e-9 * np.eye(len(values))
        step = np.clip(-np.linalg.solve(square, table.T @ errors), -0.7, 0.7)
        values = {name: v * float(np.exp(s)) for (name, v), s in zip(values.items(), step)}
        if np.abs(step).max() < 1e-5:
            best = values
            break
    after = as_given(start, best)
    left, table = probes.errors(after), slopes(probes, start, best)
    spread = float(left @ left) / max(1, len(left) - len(values))
    variance = np.diag(np.linalg.pinv(table.T @ table)) * spread
    return after, {name: float(np.sqrt(max(v, 0.0))) for name, v in zip(values, variance)}


def by_kind(probes: Probes, before: Parameters, after: Parameters) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, parameters in (("before", before), ("after", after)):
        errors = np.abs(probes.errors(parameters, of_all=True))
        for kind in dict.fromkeys(probes.kinds):
            own = errors[[k == kind for k in probes.kinds]]
            found.setdefault(kind, {"n": len(own)})[name] = (float(np.median(own)), float(own.max()))
    return found


def model_of(fitted: Fitted, shipped: DeviceModel, name: str) -> DeviceModel:
    """The shipped model with what was fitted."""
    return dataclasses.replace(shipped, name=name, **fitted.after)


def parameter_rows(fitted: Fitted) -> list[tuple[str, ...]]:
    rows = []
    for name, before in fitted.before.items():
        if not is_number(before):
            continue
        after = fitted.after[name]
        if name in fitted.errors:
            error = fitted.errors[name]
            wrong = abs(np.log(after / before)) > max(3 * error, 0.02)
            told = f"{100 * (after / before - 1):+.1f} % +- {100 * error:.1f}{', wrong' if wrong else ''}"
        else:
            told = "not seen on this day" if name in fitted.unseen else "as the device says"
        rows.append((name, f"{before:.6g}", f"{after:.6g}", told))
    return rows


def kind_rows(fitted: Fitted) -> list[tuple[str, ...]]:
    rows = []
    for kind, found in fitted.kinds.items():
        cells = (f"{100 * x:.1f}" for when in ("before", "after") for x in found[when])
        wrong = found["after"][1] > WRONG_FORM
        rows.append((kind, str(found["n"]), *cells, "its form is wrong" if wrong else "fits"))
    return rows


def growth_rows(records: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Of vertices what doubling a size adds, measured over estimated: the furthest from 1 first."""
    grown = []
    for record in records:
        if record.get("event") == "result" and record["part"] == "vertices" and not record["error"]:
            shares = [x for x in vertices.growth(record).values() if x > 0]
            if shares:
                grown.append((record["name"], statistics.median(shares), min(shares), max(shares)))
    grown.sort(key=lambda row: -abs(float(np.log(row[1]))))
    return [(name, *(f"{x:.2f}" for x in shares)) for name, *shares in grown]


def ratio_rows(records: Sequence[Mapping[str, Any]], part: str) -> list[tuple[str, ...]]:
    """Of a part, measured over modelled, the furthest from 1 first."""
    own = [r for r in records if r.get("event") == "result" and r["part"] == part]
    shares = {r["name"]: share for r in own for share in [ratio(dict(r))] if share is not None}
    ordered = sorted(shares.items(), key=lambda item: -abs(float(np.log(item[1]))))
    return [(name, f"{share:.3f}") for name, share in ordered]
