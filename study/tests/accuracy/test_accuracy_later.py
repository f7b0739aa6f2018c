# SPDX-License-Identifier: Apache-2.0
"""The page of methods that came after SparQ: its plan, and its tables from lines."""

from __future__ import annotations

import pytest

from sparq_study.accuracy import later
from sparq_study.accuracy.plan import (
    LATER,
    LATER_HALF,
    LATER_LEVELS,
    LATER_OTHERS,
    RECOMMENDED_METHOD,
    Contender,
    later_plan,
)
from sparq_study.accuracy.tasks import TASKS


@pytest.mark.parametrize("seq_len", [3584, 16000, 32000])
def test_methods_of_a_level_move_as_many_bytes(seq_len):
    """At most those of SparQ, and by less than a page of rows fewer."""
    shape = (seq_len, 64)
    for methods in LATER.values():
        for method, level in zip(methods, LATER_LEVELS):
            found = Contender(method).resolve(*shape)
            budget = Contender(level).resolve(*shape).transfer(*shape)
            moved = found.transfer(*shape)
            assert moved <= budget, method
            assert budget - moved <= 2 * 64 * getattr(found, "page", 1), method


def test_the_plan_has_texts_that_no_setting_was_chosen_on():
    plan = later_plan()
    assert plan.tasks["lm"]["texts"] == "held_out" and plan.tasks["lm"]["items"] >= 12
    assert {method for methods in LATER.values() for method in methods} < set(plan.methods)


def lines_of(kl: dict[str, float], model: str = "a model", length: int = 4000) -> list:
    """Lines of a file: each method's KL on three contexts, slightly apart."""
    plan = later_plan()
    tasks = {"lm": {"items": 3, "texts": "held_out", "length": length}}
    lines = [{"kind": "header", "model": model, "plan": {"tasks": tasks, "methods": plan.methods}}]
    for method in plan.methods:
        compression = Contender(method).resolve(length, 64).compression(length, 64)
        for item in range(3):
            sums = {"n": 10, "kl": 10 * kl.get(method, 0.5) * (1 + item / 10)}
            lines.append(
                {
                    "kind": "result",
                    "task": "lm",
                    "question": "sparse",
                    "method": method,
                    "item": item,
                    "seq_len": length,
                    "compression": compression,
                    "sums": sums,
                }
            )
    return lines


def test_tables():
    """Where a method's KL is lower it shows, in its own cell."""
    ours = dict(zip(LATER_LEVELS, (0.4, 0.2, 0.1)))
    quest = dict(zip(LATER["quest"], (0.8, 0.3, 0.15)))
    lines = lines_of({**ours, **quest})
    table = {row.split("|")[1].strip(): row for row in later.kl_table(lines).splitlines()}
    assert (
        "0.4400" in table[later.OURS] and "0.3300" in table["quest"] and "0.5500" in table["double_sparsity"]
    )
    heads, ours_row = (
        [cell.strip() for cell in table[name].split("|")[1:-1]]
        for name in ("KL [95 %] at a share of dense attention's bytes of", later.OURS)
    )
    assert ours_row[-1] == heads[2]  # where the middle level is
    assert "more than" in table["double_sparsity"]  # it never comes as low as the middle level
    gaps = {row.split("|")[1].strip(): row for row in later.gap_table(lines).splitlines()}
    assert "+0.1100" in gaps["quest"] and later.OURS not in gaps
    both = later.tables([lines_of({}, "b", 8000), lines_of({}, "a", 16000), lines_of({}, "a", 4000)])
    without = [line for line in lines if not line.get("method", "").startswith("double_sparsity")]
    assert "double_sparsity" not in later.tables([without]) and "quest" in later.tables([without])
    assert "| method |" in later.tables([without])
    without = [line for line in without if line.get("method") not in LATER_OTHERS]
    assert "| method |" not in later.tables([without]) and not later.tables([without]).endswith("\n")
    alone = [line for line in lines if line.get("method") not in (LATER_LEVELS[0], LATER_LEVELS[2])]
    cells = later.kl_table(alone).splitlines()[-1].split("|")[1:-1]
    assert len(cells) == 3 and "0.2200" in later.kl_table(alone)  # a file of one level
    others = {row.split("|")[1].strip("` "): row for row in later.others_table(lines).splitlines()}
    assert "+0.3300" in others[LATER_OTHERS[1]] and "+0.2200" not in others[LATER_OTHERS[1]]
    titles = [line for line in both.splitlines() if line.startswith("**")]
    assert titles == [f"**{name} positions, 3 contexts**" for name in ("a, 4,000", "a, 16,000", "b, 8,000")]


@pytest.mark.parametrize(
    "kl, share",
    [
        (0.2, "10.0 %"),
        (0.1, "20.0 %"),
        (0.2**0.5 * 0.1**0.5, "14.1 %"),
        (0.4, "at most 5.0 %"),
        (0.5, "at most 5.0 %"),
        (0.09, "more than 20.0 %"),
    ],
)
def test_bytes_for_a_kl(kl, share):
    """On a power law: half the KL for twice the bytes."""
    assert later.share_for(kl, [(0.05, 0.4), (0.1, 0.2), (0.2, 0.1)]) == share


def test_bytes_at_the_goal():
    """The KL that is asked for is that of the middle level on its own model, in all rows."""
    goal = dict(zip(LATER_LEVELS, (0.4, 0.2, 0.1)))
    other = dict(zip(LATER_LEVELS, (0.8, 0.4, 0.1)))  # there it is reached at the second half of the way
    two_bits = LATER["SparQ, index of 2 bits"]
    less, more = dict(zip(two_bits, (0.1, 0.05, 0.02))), dict(zip(two_bits, (0.9, 0.8, 0.7)))
    length = 1000
    files = [
        lines_of({**other, **more}, "qwen2.5-coder-0.5b.gguf", length),
        lines_of({**goal, **less}, later.CHOSEN_ON, length),
    ]
    files[0] = [line for line in files[0] if "double_sparsity" not in line.get("method", "")]
    table = later.goal_table(files).splitlines()
    heads, first, second = ([cell.strip() for cell in row.split("|")[1:-1]] for row in (table[0], *table[2:]))
    assert heads == ["bytes read at a KL of 0.2200", "dense", *later.GOAL_METHODS]
    assert first[0].startswith(later.CHOSEN_ON) and second[0].startswith("qwen2.5")  # in order
    dense = {later.CHOSEN_ON: 30 * 3 * 64 * 2 * 2 * length, "qwen": 24 * 2 * 64 * 2 * 2 * length}
    assert [first[1], second[1]] == [f"{n / 1e6:.1f} MB" for n in dense.values()]
    shares = [100 / Contender(level).resolve(length, 64).compression(length, 64) for level in goal]
    assert first[2] == f"{shares[1] * dense[later.CHOSEN_ON] / 1e8:.1f} MB, {shares[1]:.1f} %"
    middle = shares[1] * (shares[2] / shares[1]) ** 0.5  # 0.2 is half of the way from 0.4 to 0.1
    assert second[2] == f"{middle * dense['qwen'] / 1e8:.1f} MB, {middle:.1f} %"
    of_two_bits = heads.index("SparQ, index of 2 bits")
    assert first[of_two_bits].startswith("at most") and second[of_two_bits].startswith("more than")
    assert first[3] and not second[3]  # what a file does not have


def test_settings_that_reach_the_goal():
    """Of each index the fewest bytes that reach it, of all files of a model and length; else the nearest."""
    ours = dict(zip(LATER_LEVELS, (0.4, 0.2, 0.1)))
    two = dict(zip(LATER["SparQ, index of 2 bits"], (0.5, 0.3, 0.19)))
    own = lines_of({**ours, **two}, later.CHOSEN_ON, 1000)
    other = lines_of(dict(zip(LATER_LEVELS, (0.9, 0.8, 0.21))), "b", 1000)
    more = lines_of({"sparq:k=256,mean_from=1,index_bits=4": 0.15}, "b", 1000)
    method = "sparq:k=256,mean_from=1,index_bits=4"
    compression = Contender(method).resolve(1000, 64).compression(1000, 64)
    more = [more[0], *(dict(line, method=method, compression=compression) for line in more[1:4])]
    more[0]["plan"]["methods"] = ["dense", method]
    for lines in (own, other, more):
        for line in lines[1:]:
            line["resolved"] = str(Contender(line["method"]).resolve(1000, 64))
    for line in more[1:]:
        line["sums"] = {"n": 10, "kl": 1.5 * (1 + line["item"] / 10)}
    one = [dict(line) for line in more[:2]]  # a single context says nothing
    fewer = "sparq:k=130,mean_from=1,index_bits=4"
    one[1].update(method=fewer, resolved=fewer, compression=2 * compression)
    one[0]["plan"] = dict(more[0]["plan"], methods=["dense", fewer])
    rows = [
        [cell.strip() for cell in row.split("|")[1:-1]]
        for row in later.settings_table([other, own], [more, one]).splitlines()
    ]
    assert rows[0][-1] == "KL at most 0.2200"
    of = {(row[0], row[3].partition("index_")[2].strip("`")): row for row in rows[2:]}
    assert len(of) == len(rows) - 2 == 4
    assert of[later.CHOSEN_ON, "bits=4"][3] == "`rank=32, top_k=128, index_bits=4`"
    two_bits = Contender(list(two)[2]).resolve(1000, 64)
    assert of[later.CHOSEN_ON, "bits=2"][3] == f"`rank=32, top_k={two_bits.top_k}, index_bits=2`"
    assert of["b", "bits=4"][3:5] == ["`rank=32, top_k=256, index_bits=4`", "3"]
    assert of["b", "bits=4"][-1] == "yes"
    assert of["b", "bits=2"][-1] == "no" and of["b", "bits=2"][6].startswith("0.5500")


def test_rows_of_withdrawn_methods_stay():
    """They are in the tables of files that have them; a plan does not measure them, nobody can set them."""
    assert not set(later.WITHDRAWN["levels"]) & set(LATER)
    (name,) = later.WITHDRAWN["goal"]
    levels = later.WITHDRAWN["levels"][name]
    assert all(later.current_method(method) is None for method in levels)
    lines = lines_of(dict(zip(LATER_LEVELS, (0.4, 0.2, 0.1))), later.CHOSEN_ON, 1000)
    plan = lines[0]["plan"]
    lines[0]["plan"] = dict(plan, methods=[*plan["methods"], *levels])
    of_ours = [line for line in lines if line.get("method") in LATER_LEVELS]
    for line in lines[1:]:
        line["resolved"] = str(Contender(line["method"]).resolve(1000, 64))
    for line in of_ours:
        method = levels[LATER_LEVELS.index(line["method"])]
        lines.append(dict(line, method=method, resolved=method.partition("@")[0]))
    rows = {row.split("|")[1].strip(): row for row in later.kl_table(lines).splitlines()}
    assert rows[name].split("|")[2:] == rows[later.OURS].split("|")[2:]
    assert name not in later.kl_table(lines_of({}, later.CHOSEN_ON, 1000))
    assert levels[0].partition(":")[0] not in later.settings_table([lines], [])


def with_components(kl, contexts, method=LATER_HALF, **changes):
    """Lines of all methods, and of one whose index has some of the components, on so many contexts."""
    lines = [line for line in lines_of(kl, **changes) if line.get("method") != LATER_HALF]
    plan = lines[0]["plan"]
    lines[0]["plan"] = dict(plan, methods=[*plan["methods"], method])
    for line in lines[1:]:
        line["resolved"] = str(Contender(line["method"]).resolve(line["seq_len"], 64))
    of_base = [line for line in lines if line.get("method") == RECOMMENDED_METHOD][:contexts]
    for line in of_base:
        sums = {"n": 10, "kl": 10 * kl[method] * (1 + line["item"] / 4)}
        lines.append(dict(line, method=method, resolved=method, sums=sums))
    return lines


def test_some_components_beside_all_of_them():
    """Of the contexts that both have; by model and length; what is not measured both ways is left out."""
    kl = {RECOMMENDED_METHOD: 0.1, LATER_HALF: 0.2, LATER_LEVELS[1]: 0.4}
    files = [
        with_components(kl, 2, model="b"),
        with_components(kl, 3, model="a", length=8000),
        lines_of(kl)[:1],
    ]
    other = "sparq:k=99,mean_from=1,index_bits=2,components=48"
    files.append(with_components({**kl, other: 0.2}, 3, other, model="c"))
    rows = [
        [cell.strip() for cell in row.split("|")[1:-1]] for row in later.components_table(files).splitlines()
    ]
    assert rows[0][-1].endswith(f"`{LATER_LEVELS[1]}`") and len(rows) == 4
    assert rows[2][:5] == ["a", "8,000", "3", f"`{RECOMMENDED_METHOD}`", "32"]
    assert rows[2][5:7] == ["0.1100", "0.2500"]
    assert rows[2][7].startswith("+0.1400 [") and rows[2][8].startswith("-0.1900 [")
    assert rows[3][:3] == ["b", "4,000", "2"] and rows[3][5:] == ["0.1050", "0.2250", "+0.1200", "-0.1950"]


def test_settings_for_other_models_have_all_components():
    """What saves memory alone is no setting of fewest bytes, however near it is."""
    kl = {RECOMMENDED_METHOD: 0.5, LATER_HALF: 0.01, LATER_LEVELS[1]: 0.4}
    files = [with_components(kl, 3, model=later.CHOSEN_ON)]
    rows = [row for row in later.settings_table(files, []).splitlines() if "index_bits=2" in row]
    assert len(rows) == 1 and "0.01" not in rows[0]


def test_tasks_beside_dense_attention():
    """Each method in its row and each task in its column; bold where the difference is clear."""
    tasks, methods = ("repetition", "multikey", "multivalue", "tracking"), ("dense", "sparq", "sparq:k=256")
    plan = {"tasks": {task: {"items": 6} for task in tasks}, "methods": list(methods)}
    lines = [{"kind": "header", "model": "a", "plan": plan}]
    for i, task in enumerate(tasks):
        metric, question = TASKS[task].metrics[0], TASKS[task].questions[-1]
        for item in range(6):
            for method, less in zip(methods, (0, 1 + i, item % 2)):
                sums = {metric.under: 100, metric.over: 90 - less}
                line = dict(kind="result", task=task, question=question, method=method, item=item)
                line["seq_len"] = 2600 + 100 * i
                lines.append({**line, "sums": sums, "compression": {"sparq": 4.0}.get(method, 8.0)})
    longer = [{**lines[0], "plan": {"tasks": {"retrieval": {"items": 6}}, "methods": list(methods)}}]
    longer += [
        {**line, "task": "retrieval", "seq_len": 16000} for line in lines if line.get("task") == "multikey"
    ]
    base, first, second, *others = (
        [cell.strip() for cell in row.split("|")[1:-1]]
        for row in later.tasks_table([longer, lines]).splitlines()[2:]
    )
    assert base == ["a", "2,600 to 2,900", "6", "dense attention", "12.5 %", *["0.900"] * 4, ""]
    assert first[3:5] == ["`sparq` minus dense", "25.0 %"]
    assert second[3:5] == ["`sparq:k=256` minus dense", "12.5 %"]
    assert [cell.split(" ")[0].strip("*") for cell in first[5:9]] == ["-0.010", "-0.020", "-0.030", "-0.040"]
    assert all(cell.startswith("-0.005 [") for cell in second[5:9])  # in half of the contexts: not clear
    assert [row[1] for row in others] == ["16,000"] * 3 and others[0][5:] == ["", "", "", "", "0.900"]
    assert others[1][9].strip("*").startswith("-0.020")
