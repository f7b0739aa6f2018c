# SPDX-License-Identifier: Apache-2.0
"""Breaks the source in the listed ways, one at a time, and looks whether the tests notice.

    python tests/mutation reference/                   every mutant of the files below a folder
    python tests/mutation planner-3 poplar_ops/src     some by name (or a part of it), and a folder
    python tests/mutation --sample                     some of all folders, at random, in some two minutes
    python tests/mutation codelets/ --record           keep the results in tests/mutation/results.tsv
    python tests/mutation study/ --new --record        those of a folder without a good result

The list is in tests/mutation/mutants/, what became of each in tests/mutation/results.tsv; files without any
are in tests/mutation/without.tsv, each with the reason. The tree is not changed: a copy of it is, in
build/mutation. The modules are built there once, or are those of --modules; for a mutant in C++, what depends
on it is built again (with ccache, if it is there: mending then costs little). Before anything is broken, the
tests must pass. An editable installation hides the copy: run this where there is none.

A sample is of mutants in Python, and of those of one folder in C++: each folder may be the one, and only what
it needs is built. It prints its seed.

Each mutant is reported as
    killed         a test failed, as it should
    SURVIVED       none did: a hole in the tests
    known          none did, and the list says why none can
    NOTICED        a test failed, though the list says that none can: correct the list
    did not build  the compiler refused it: correct the list
    did not apply  its old text is not in the file exactly once: correct the list
    did not run    pytest could not read the tests, or found none: correct the list
The status is 0 if each was killed or is known.
"""

from __future__ import annotations

import argparse
import collections
import random
import re
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import mutants
import results
from copied_tree import ROOT, BuildFailed, CopiedTree, folder_of, needs_modules
from mutants import Mutant

GOOD = ("killed", "known")
#: the last words of Ninja and Make where something does not compile
STOPPED = re.compile(r"ninja: build stopped|make: \*\*\* ")
#: and of pytest where nothing ran
SKIPPED = re.compile(r"^\d+ (skipped|deselected)", re.MULTILINE)


def sampled(every: list[Mutant], seed: int) -> list[Mutant]:
    """Eight mutants in Python, and two of one folder in C++."""
    rng = random.Random(seed)
    in_python = [m for m in every if m.file.endswith(".py")]
    folders: dict[str, list[Mutant]] = {}
    for mutant in every:
        if not mutant.file.endswith(".py"):
            folders.setdefault(folder_of(mutant.file), []).append(mutant)
    in_cpp = folders[rng.choice(sorted(folders))]
    return rng.sample(in_python, min(8, len(in_python))) + rng.sample(in_cpp, min(2, len(in_cpp)))


def chosen(wanted: list[str]) -> list[Mutant]:
    """The mutants of some files, folders or names; all of them if none are given."""
    every = mutants.every()
    if not wanted:
        return every
    found: list[Mutant] = []
    for want in wanted:
        path = want.rstrip("/")
        some = [
            m
            for m in every
            if m.file == path or m.file.startswith(path + "/") or path in m.name or path in m.tests
        ]
        if not some:
            sys.exit(f"mutation: FOLDER must be a file, folder or name with mutants, got {want}")
        found += [m for m in some if m not in found]
    return found


def result_of(mutant: Mutant, tree: CopiedTree) -> tuple[str, str]:
    """Break the copy, build, test, and mend it: what happened, and details for people."""
    text = tree.text(mutant.file)
    if text.count(mutant.old) != 1:
        return "did not apply", f"its old text occurs {text.count(mutant.old)} times"
    tree.write(mutant.file, text.replace(mutant.old, mutant.new))
    try:
        if needs_modules(mutant):
            tree.build_broken(mutant)
        done = tree.pytest("-x", *mutant.tests)
    except BuildFailed as error:
        return "did not build", str(error)
    finally:
        tree.write(mutant.file, text)
    if SKIPPED.search(done.stdout):
        return "did not run", done.stdout[-1000:]
    if done.returncode == 0:
        return ("known", mutant.survives) if mutant.survives else ("SURVIVED", "")
    if done.returncode in (
        2,
        3,
        4,
        5,
    ):  # of pytest: unreadable tests, its own error, wrong arguments, no tests
        return "did not run", done.stdout[-1000:]
    if STOPPED.search(done.stdout):  # a build that tests make
        return "did not build", "\n".join(re.findall(r".*error: .*", done.stdout))[:1000]
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR", "no result"))]
    detail = failed[0] if failed else done.stdout[-200:].strip()
    return ("NOTICED" if mutant.survives else "killed"), detail


def main() -> int:
    parser = argparse.ArgumentParser(
        "python tests/mutation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wanted", nargs="*", metavar="FOLDER", help="a folder, a file, or (a part of) a name")
    parser.add_argument("--list", action="store_true", help="list the mutants, run nothing")
    parser.add_argument("--new", action="store_true", help="those without a good result in the table")
    parser.add_argument("--sample", action="store_true", help="some at random")
    parser.add_argument("--seed", type=int, metavar="N", help="the sample's: repeats it")
    parser.add_argument("--copy", type=Path, default=ROOT / "build" / "mutation", help="where the copy is")
    parser.add_argument(
        "--modules",
        type=Path,
        metavar="DIR",
        help="where the C++ modules of the tree are; else built",
    )
    parser.add_argument("--no-baseline", action="store_true", help="do not run the tests unbroken first")
    parser.add_argument(
        "--record",
        type=Path,
        nargs="?",
        const=results.FILE,
        metavar="FILE",
        help="put the results into this table; without FILE into the one that is committed",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="which test noticed")
    arguments = parser.parse_args()

    wanted = chosen(arguments.wanted)
    if arguments.new:
        rows = results.read(arguments.record or results.FILE)
        good = {key for key, row in rows.items() if row.last in GOOD}
        wanted = [m for m in wanted if (m.file, m.why) not in good]
    if arguments.sample:
        seed = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
        print(f"a sample: repeat it with --sample --seed {seed}", flush=True)
        wanted = sampled(wanted, seed)
    if arguments.list:
        for mutant in wanted:
            known = f" (none: {mutant.survives})" if mutant.survives else ""
            print(f"{mutant.name}: {mutant.file}: {mutant.why}; {' '.join(mutant.tests)}{known}")
        print(f"{len(wanted)} mutants")
        return 0

    tree = CopiedTree(arguments.copy.resolve(), arguments.modules)
    tree.check_packages()
    if not arguments.no_baseline:
        tree.prepare(wanted)
        tests = dict.fromkeys(test for mutant in wanted for test in mutant.tests)
        done = tree.pytest("-x", *tests)
        if done.returncode:
            sys.exit(f"mutation: the tests must pass before anything is broken\n{done.stdout[-3000:]}")
    counts: collections.Counter[str] = collections.Counter()
    for mutant in wanted:
        start = time.monotonic()
        tree.prepare([mutant])
        result, detail = result_of(mutant, tree)
        counts[result] += 1
        if arguments.record:
            results.record(arguments.record, mutant, result, detail)
        print(f"{result:<13} {mutant.name} ({time.monotonic() - start:.0f} s): {mutant.why}", flush=True)
        if detail and (arguments.verbose or result not in GOOD):
            print("    " + detail.replace("\n", "\n    "), flush=True)
    print(f"{len(wanted)} mutants: " + ", ".join(f"{n} {result}" for result, n in counts.items()))
    return 0 if all(result in GOOD for result in counts) else 1


if __name__ == "__main__":
    sys.exit(main())
