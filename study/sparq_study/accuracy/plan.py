# SPDX-License-Identifier: Apache-2.0
"""What to measure: tasks with sizes, and contenders, some of them at the transfer of another."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

from sparq_ipu.models import RECOMMENDED
from sparq_reference import checks

from .methods import Method, SparQ, parse_method
from .tasks import TASKS
from .text import TEXTS


@dataclasses.dataclass(frozen=True)
class Contender:
    """A method by text, or `method@reference`.

    The second is that method with the largest top_k that moves no more elements than `reference` does.
    """

    label: str

    def __post_init__(self) -> None:
        for part in self.label.split("@"):
            parse_method(part)
        if self.label.count("@") > 1:
            raise ValueError(f"accuracy: method must be METHOD or METHOD@REFERENCE, got {self.label!r}")

    def resolve(self, seq_len: int, head_dim: int) -> Method:
        """The method to run at that length."""
        name, _, reference = self.label.partition("@")
        method = parse_method(name)
        if not reference:
            return method
        return method.matched(parse_method(reference), seq_len, head_dim)


# Three levels of transfer that the evicting and windowed methods are matched to: about 1/12, 1/6 and 1/3 of
# dense at 3.6 K tokens.
LEVELS = ("sparq:r=8,k=64", "sparq:r=16,k=128", "sparq:k=256")
# What measures the settings that users are told to enable, `sparq_ipu.models.RECOMMENDED`.
RECOMMENDED_METHOD = str(SparQ.from_settings(**RECOMMENDED))
# r=32 and k=128 with a key index of 4 bits: what was recommended before, and the budgets below are made from.
FOUR_BITS = "sparq:mean_from=1,index_bits=4"

DEFAULT_METHODS = (
    "dense",
    # SparQ as published: curve over transfer (defaults are r=32, k=128)
    "sparq:r=8,k=64",
    "sparq:r=8",
    "sparq:r=16",
    "sparq",
    "sparq:k=256",
    # the mean value: never, and not in the first layer
    "sparq:r=16,mean_from=-1",
    "sparq:r=16,mean_from=1",
    "sparq:mean_from=1",
    "sparq:r=8,k=64,mean_from=1",
    "sparq:k=256,mean_from=1",
    # temperatures, figure 7b of the paper
    "sparq:r=16,tau=sqrt_d",
    "sparq:r=16,tau=sqrt_r",
    "sparq:r=16,tau=none",
    # the same where the mean value does no harm (with tau=none there is next to none left)
    "sparq:r=16,mean_from=1,tau=sqrt_d",
    "sparq:r=16,mean_from=1,tau=sqrt_r",
    # key selection, figure 7a, and exact top-k
    "oracle",
    "oracle:mean_from=1",
    "low_rank:r=16",
    "low_rank:r=16,mean_from=1",
    "flexgen",
    # fewer bits: of the key index, of the whole cache
    "sparq:mean_from=1,index_bits=8",
    "sparq:mean_from=1,index_bits=4",
    "sparq:k=256,mean_from=1,index_bits=8",
    "sparq:k=256,mean_from=1,index_bits=4",
    "sparq:mean_from=1,index_bits=2",
    "sparq:k=256,mean_from=1,index_bits=2",
    "dense:kv_bits=8",
    "sparq:mean_from=1,kv_bits=8",
    # caches that evict, windows
    *(f"{name}@{level}" for level in LEVELS for name in ("h2o", "lm_infinite", "alisa")),
    f"alisa:kv_bits=8@{LEVELS[1]}",
    f"local@{LEVELS[1]}",
    f"strided@{LEVELS[1]}",
)
# Forms of rows of 8 bits that results have; two of them are withdrawn.
ROWS_OF_8_BITS = ("int8", "int8_row", "int8_block")
# Pairs whose difference answers a question; a report shows those that were run (and METHOD@REFERENCE against
# REFERENCE).
COMPARISONS = (
    # the mean value: where, and whether
    ("sparq:mean_from=1", "sparq"),
    ("sparq:r=16,mean_from=1", "sparq:r=16"),
    ("sparq:r=8,k=64,mean_from=1", "sparq:r=8,k=64"),
    ("sparq:k=256,mean_from=1", "sparq:k=256"),
    ("sparq:r=16,mean_from=-1", "sparq:r=16"),
    ("sparq:r=16,mean_from=1", "sparq:r=16,mean_from=-1"),
    ("oracle:mean_from=1", "oracle"),
    # temperatures
    *((f"sparq:r=16,tau={tau}", "sparq:r=16") for tau in ("sqrt_d", "sqrt_r", "none")),
    *((f"sparq:r=16,mean_from=1,tau={tau}", "sparq:r=16,mean_from=1") for tau in ("sqrt_d", "sqrt_r")),
    # rank, top_k, key selection
    ("sparq:r=16", "sparq"),
    ("sparq:r=16,mean_from=1", "sparq:mean_from=1"),
    ("sparq:k=256", "sparq"),
    ("sparq:k=256,mean_from=1", "sparq:mean_from=1"),
    ("low_rank:r=16", "sparq:r=16"),
    ("low_rank:r=16,mean_from=1", "sparq:r=16,mean_from=1"),
    ("sparq:mean_from=1", "oracle:mean_from=1"),
    ("sparq:mean_from=1", "flexgen"),
    # fewer bits
    *(
        (f"sparq:mean_from=1,{bits}", "sparq:mean_from=1")
        for bits in ("index_bits=8", "index_bits=4", "index_bits=2", "kv_bits=8")
    ),
    *(
        (f"sparq:k=256,mean_from=1,{bits}", "sparq:k=256,mean_from=1")
        for bits in ("index_bits=8", "index_bits=4", "index_bits=2")
    ),
    ("sparq:mean_from=1,index_bits=4", "sparq:r=16,mean_from=1"),
    ("sparq:k=256,mean_from=1,index_bits=2", "sparq:mean_from=1,index_bits=4"),
    # what may be recommended for a key index in SRAM
    ("sparq:k=256,mean_from=1,index_bits=4", "sparq:mean_from=1,index_bits=4"),
    ("sparq:r=64,k=256,mean_from=1,index_bits=4", "sparq:k=256,mean_from=1,index_bits=4"),
    *(
        (f"sparq:k=256,mean_from=1,index_bits=4,rows={rows}", "sparq:k=256,mean_from=1,index_bits=4")
        for rows in ROWS_OF_8_BITS
    ),
    ("alisa:kv_bits=8@sparq:r=16,k=128", "alisa@sparq:r=16,k=128"),
    # rivals at equal transfer, the mean value where it does no harm
    *(
        (f"{name}@{level}", f"{level},mean_from=1".replace("r=16,k=128", "r=16"))
        for level in LEVELS
        for name in ("h2o", "lm_infinite", "alisa")
    ),
    ("alisa:kv_bits=8@sparq:r=16,k=128", "sparq:r=16,mean_from=1"),
)
# What may be recommended for a key index in SRAM: fewer or more positions, some or all components (head_dim
# is 64 here), rows of 8 bits. `held_out_plan` confirms it.
TIERED = str(parse_method(f"{FOUR_BITS},k=256"))
TIERED_METHODS = (
    FOUR_BITS,
    "sparq:mean_from=1,index_bits=2",
    RECOMMENDED_METHOD,
    TIERED,
    str(parse_method(f"{TIERED},r=64")),
    f"{TIERED},rows=int8",
)
HELD_OUT_SEED = 1  # the study has 0, and 7 was tried before settings were chosen
# Methods that came after SparQ, at three budgets of bytes. Each has an index of about as many bits a position
# as SparQ's has there (at head_dim 64), and as many rows as then fit.
LATER_LEVELS = tuple(
    str(parse_method(level)) for level in (f"{FOUR_BITS},r=16", FOUR_BITS, f"{FOUR_BITS},k=512")
)
LATER: dict[str, tuple[str, ...]] = {
    "SparQ, index of 4 bits": LATER_LEVELS,
    **{
        few.partition(":")[0]: tuple(
            f"{method}@{level}" for method, level in zip((few, more, more), LATER_LEVELS)
        )
        for few, more in (
            ("quest:page=32", "quest"),
            ("double_sparsity:r=16,index_bits=4", "double_sparsity:index_bits=4"),
        )
    },
    "SparQ, index of 2 bits": tuple(
        f"sparq:{'r=16,' * (i == 0)}mean_from=1,index_bits=2@{level}" for i, level in enumerate(LATER_LEVELS)
    ),
    "best positions known": tuple(f"oracle:mean_from=1@{level}" for level in LATER_LEVELS),
}
# What is not at a level: an index of 16 bits, fewer bits for as many rows.
LATER_OTHERS = (
    str(parse_method(f"{FOUR_BITS},index_bits=16")),
    "sparq:mean_from=1,index_bits=2",
    RECOMMENDED_METHOD,
    "sparq:k=512,mean_from=1,index_bits=2",
    "sparq:k=1024,mean_from=1,index_bits=2",
    "sparq:k=160,mean_from=1,index_bits=2",
    "sparq:r=24,k=200,mean_from=1,index_bits=2",
)
# A key index of half of the components, at head_dim 64; beside one of all of them.
LATER_HALF = f"{RECOMMENDED_METHOD},components=32"
QUICK_METHODS = (
    "dense",
    "sparq:r=16",
    "sparq",
    "sparq:mean_from=1",
    "sparq:mean_from=1,index_bits=8",
    "flexgen",
    "h2o@sparq",
    "lm_infinite@sparq",
    "alisa@sparq",
)


@dataclasses.dataclass
class Plan:
    """What a run measures.

    tasks: name -> {"items": count, and any size of the task's build}.
    methods: labels of contenders; "dense" is added if absent.
    seed: of all contexts and questions.
    decode_only: leave out the question with a prompt that is processed densely, where a task has the other
        one too: the method decodes the prompt.
    prefill_bits: of the products of a prefill, 32 or 16 (bfloat16).
    kernels: SparQ attention by the CPU kernels, from float16 rows, not by the formulas in float32.
    """

    tasks: dict[str, dict[str, Any]]
    methods: list[str]
    seed: int = 0
    decode_only: bool = False
    prefill_bits: int = 32
    kernels: bool = False

    def __post_init__(self) -> None:
        for name in self.tasks:
            if name not in TASKS:
                raise ValueError(f"accuracy: task must be one of {', '.join(TASKS)}, got {name!r}")
            for size, value in self.tasks[name].items():
                _check_size(name, size, value)
        self.methods = list(dict.fromkeys(["dense", *self.methods]))
        for label in self.methods:
            Contender(label)

    def items(self, name: str) -> int:
        return int(self.tasks[name].get("items", 1))

    def questions(self, name: str) -> tuple[str, ...]:
        """The ways to process the prompt of a task."""
        questions = TASKS[name].questions
        return questions[-1:] if self.decode_only else questions

    def sizes(self, name: str) -> dict[str, Any]:
        return {key: value for key, value in self.tasks[name].items() if key != "items"}


def _check_size(task: str, name: str, value: Any) -> None:
    """A size from the command line: a name that the task knows, a value of the kind of its default."""
    parameters = inspect.signature(TASKS[task].build).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    defaults = {"items": 1, **defaults}
    if name not in defaults:
        raise ValueError(f"accuracy: size of {task} must be one of {', '.join(defaults)}, got {name!r}")
    argument, default = f"{task}.{name}", defaults[name]
    if isinstance(default, str):
        if value not in TEXTS:
            checks.fail("accuracy", argument, f"be one of {', '.join(TEXTS)}", repr(value))
        return
    several = isinstance(default, tuple)
    if several and not (isinstance(value, (list, tuple)) and value):
        checks.fail("accuracy", argument, "be a list of one or more", repr(value))
    high = 1 if several else 16  # depths of a text; an exponent
    for one in value if several else [value]:
        if isinstance(default[0] if several else default, int):
            checks.check_integer("accuracy", argument, one, 1, checks.MAX_CAPACITY)
        elif isinstance(one, bool) or not isinstance(one, (int, float)) or not 0 <= one <= high:
            checks.fail("accuracy", argument, f"be a number in [0, {high}]", repr(one))


def default_plan() -> Plan:
    """The full table: under an hour on two cores with SmolLM2-135M."""
    items = {
        "lm": 6,
        "repetition": 6,
        "needle": 12,
        "multikey": 5,
        "multivalue": 5,
        "tracking": 5,
        "common": 4,
        "frequent": 4,
    }
    return Plan({name: {"items": n} for name, n in items.items()}, list(DEFAULT_METHODS))


def held_out_plan() -> Plan:
    """Held-out texts, other needles and another seed; dense attention and what may be recommended.

    One needle tells nothing (every setting finds it), and the lists of words differ too much to tell
    anything: these tasks are left out.
    """
    names = ("lm", "repetition", "multikey", "multivalue", "tracking")
    tasks: dict[str, dict[str, Any]] = {name: {"items": 6, "texts": "held_out"} for name in names}
    return Plan(tasks, list(TIERED_METHODS), HELD_OUT_SEED, decode_only=True)


def later_plan() -> Plan:
    """Methods that came after SparQ, on held-out texts.

    Each model and length (`lm.length`) has a file of its own.
    """
    methods = [method for levels in LATER.values() for method in levels]
    return Plan(
        {"lm": {"items": 12, "texts": "held_out"}}, [*methods, *LATER_OTHERS, LATER_HALF], HELD_OUT_SEED
    )


def quick_plan() -> Plan:
    """A look in under five minutes: few methods, short contexts, one or two items. Intervals mean little."""
    tasks: dict[str, dict[str, Any]] = {
        "lm": {"items": 2, "length": 1536, "span": 64},
        "repetition": {"items": 2, "length": 2048},
        "needle": {"items": 2, "lengths": [1536]},
        "multikey": {"items": 1, "length": 2048},
        "multivalue": {"items": 1, "length": 2048},
        "tracking": {"items": 1, "length": 2048},
        "common": {"items": 1, "rare": 40},
        "frequent": {"items": 1, "length": 160},
    }
    return Plan(tasks, list(QUICK_METHODS))
