#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Other programs that decode on a CPU, for bench/decode.py --peers: llama.cpp (the wheel xllamacpp) and
OpenVINO GenAI.

Each runs in a process of its own, on the same GGUF file, with the same threads and the same prompt. It reads
a prompt and says tokens; when the first came and how long each other took is what is kept. Choosing the
likeliest token is in their times; ours are of the model alone.

    python bench/peers.py llama.cpp MODEL.gguf --kv q8_0 --S 512

is one of these processes: one JSON line on stdout.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.metadata
import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable, Iterator

from common import Parser, Row, guarded
from processor import pace

#: rows in a cache: 16 bits, and what a program has of 8
KV_TYPES = {"llama.cpp": ("f16", "q8_0"), "openvino": ("f16", "u8")}
PACKAGES = {"llama.cpp": "xllamacpp", "openvino": "openvino-genai"}
#: share of the processors that other programs may take while something is timed
QUIET_SHARE = 0.05
#: share of the time in which the processors may stand still meanwhile
PAUSED_SHARE = 0.1
#: in one run the memory may be read at most so many times as fast for one row as for another
SAME_PACE = 1.1
#: a prompt is read, and some tokens are said, before anything is timed
WARM_UP = (48, 8)
#: seconds between looks at the processors
_PAUSE = 0.05
#: words of no meaning: of a vocabulary the first ones may be special
_FIRST_TOKEN, _LAST_TOKEN = 1000, 40000
#: a letter in the vocabularies that begin with the bytes
_LETTER = 70


def prompt_tokens(n: int, seed: int) -> list[int]:
    """Random tokens."""
    draw = random.Random(seed)
    return [draw.randrange(_FIRST_TOKEN, _LAST_TOKEN) for _ in range(n)]


def _busy() -> tuple[float, float]:
    """Seconds that all processors worked, and seconds that there were."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    ticks = [int(word) / os.sysconf("SC_CLK_TCK") for word in words[:8]]  # guests are in "user"
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)  # idle, iowait


class Others:
    """What other programs had of the processors, or other machines (steal): all but this one and `pid`.

    A load average would say what was a minute ago.
    """

    def __init__(self, pid: int | None = None):
        self._pid = pid
        #: times, seconds that others worked by then, and seconds that there were
        self.samples: list[tuple[float, float, float]] = []

    def look(self) -> None:
        """Take a sample."""
        try:
            busy, total = _busy()
        except (OSError, ValueError):
            return
        own = time.process_time()
        if self._pid is not None:
            words = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
            own += (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
        self.samples.append((time.perf_counter(), busy - own, total))

    async def sample(self) -> None:
        """Look, until this is cancelled."""
        while True:
            self.look()
            await asyncio.sleep(_PAUSE)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Look meanwhile, from a thread."""
        is_over = threading.Event()

        def watch() -> None:
            while not is_over.wait(_PAUSE):
                self.look()

        self.look()
        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()
            self.look()

    def share(self, begin: Any, end: Any) -> Any:
        """Their share between these times, which are numbers or arrays; None where the system is silent."""
        import numpy as np

        if not self.samples:
            return None
        times, others, total = zip(*self.samples)
        worked, there = (np.interp(end, times, c) - np.interp(begin, times, c) for c in (others, total))
        share = np.maximum(worked, 0.0) / np.maximum(there, 1e-9)
        return share if share.ndim else float(share)

    def share_of_all(self) -> float | None:
        """Their share from the first look to the last."""
        return self.share(self.samples[0][0], self.samples[-1][0]) if self.samples else None


@contextlib.contextmanager
def others() -> Iterator[Others]:
    """Two looks: `share_of_all` is what others had meanwhile."""
    seen = Others()
    seen.look()
    yield seen
    seen.look()


def noise(others: float | None, paused: float) -> str | None:
    """Why what was timed is refused, or None.

    Args:
        others: share of the processors that other programs had; None where the system is silent.
        paused: share of the time in which the processors stood still.
    """
    if others is None or others > QUIET_SHARE:
        got = "what this system does not say" if others is None else f"{others:.2f}"
        return (
            f"the machine must be quiet: other programs may take {QUIET_SHARE} of its processors, got {got}"
        )
    if paused > PAUSED_SHARE:
        rule = f"the machine must be its own: its processors may stand still for {PAUSED_SHARE} of the time"
        return f"{rule}, got {paused:.2f}; --rest SECONDS helps where long work is slowed"
    return None


def refuse_other_pace(rows: list[Row]) -> None:
    """Refuse rows that are compared, if the memory was read faster for some of them than for others: other
    machines on one host may take its pace for minutes, and no share of the processors says so."""
    worked = [row for row in rows if row["error"] is None]
    paces = [row["memory_bytes_per_second"] / 1e9 for row in worked]
    if paces and max(paces) > SAME_PACE * min(paces):
        got = f"{min(paces):.1f} to {max(paces):.1f} GB/s"
        for row in worked:
            row["error"] = f"the memory must keep its pace within {SAME_PACE} times in a run, got {got}"


def _say_first(program: str, times: list[float]) -> None:
    print(f"{program}: the first token after {times[1] - times[0]:.1f} s", file=sys.stderr, flush=True)


def _llama(a: argparse.Namespace) -> Callable[[list[int], int], list[float]]:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(a.model)
    params.n_ctx = max(a.S, sum(WARM_UP) + 2)
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = a.threads
    kind = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{a.kv.upper()}")
    params.cache_type_k = params.cache_type_v = kind
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    params.verbosity = 0
    server = xllamacpp.Server(params)

    def run(tokens: list[int], n_new: int) -> list[float]:
        times = [time.perf_counter()]
        body = {"prompt": tokens, "n_predict": n_new, "stream": True, "temperature": 0.0, "ignore_eos": True}
        body["cache_prompt"] = True
        body["logit_bias"] = [[_LETTER, 1000.0]]  # of a token that is part of a letter it says nothing

        def came(part: Any) -> None:
            if part.get("error"):
                raise RuntimeError(f"llama.cpp: {part['error']}")
            if all(choice["finish_reason"] is None for choice in part["choices"]):
                times.append(time.perf_counter())  # a token; the last part has none
                if len(times) == 2:
                    _say_first(a.program, times)

        server.handle_completions(body, came)
        return times

    return run


def _openvino(a: argparse.Namespace) -> Callable[[list[int], int], list[float]]:
    import numpy as np
    import openvino
    import openvino_genai

    pipe = openvino_genai.LLMPipeline(
        str(a.model), "CPU", INFERENCE_NUM_THREADS=a.threads, KV_CACHE_PRECISION=a.kv
    )

    class Streamer(openvino_genai.StreamerBase):  # type: ignore[misc, name-defined]
        """Says that the prompt is read."""

        def __init__(self, start: float):
            super().__init__()
            self._times = [start]

        def write(self, token: Any) -> Any:
            self._times.append(time.perf_counter())
            if len(self._times) == 2:
                _say_first(a.program, self._times)
            return openvino_genai.StreamingStatus.RUNNING

        def end(self) -> None:
            pass

    def run(tokens: list[int], n_new: int) -> list[float]:
        times = [time.perf_counter()]
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = n_new, True, False
        ids = np.array([tokens], np.int64)
        inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
        metrics = pipe.generate(inputs, config, Streamer(times[0])).perf_metrics.raw_metrics
        first = metrics.m_times_to_first_token[0] / 1e6  # microseconds
        times.append(times[0] + first)
        for duration in list(metrics.m_durations)[-(n_new - 1) :]:
            times.append(times[-1] + duration / 1e6)
        return times

    return run


_PROGRAMS = {"llama.cpp": _llama, "openvino": _openvino}


def measure(a: argparse.Namespace) -> Row:
    """What such a process says. With that, the text has S positions: llama.cpp takes no more than the
    model was trained for.
    """
    run = _PROGRAMS[a.program](a)
    run(prompt_tokens(WARM_UP[0], a.seed + 1), WARM_UP[1])
    prompt = prompt_tokens(a.S - a.tokens - 2, a.seed)
    seen, paces = Others(), [pace(a.threads)]
    with seen.watching():
        read = run(prompt, 1)
    paces.append(pace(a.threads))
    if a.rest:
        print(f"{a.program}: rests {a.rest} s", file=sys.stderr, flush=True)
        time.sleep(a.rest)
    paces.append(pace(a.threads))
    with seen.watching():
        times = run(prompt, a.tokens + 1)  # both programs have kept what they read
    paces.append(pace(a.threads))
    steps = [after - before for before, after in zip(times[1:], times[2:])]
    if len(steps) != a.tokens:
        raise RuntimeError(f"{a.program} must say {a.tokens + 1} tokens, got {len(times) - 1}")
    version = importlib.metadata.version(PACKAGES[a.program])
    return {
        "first_token_seconds": read[1] - read[0],
        "steps": steps,
        "version": version,
        "first": [seen.share(read[0], read[1]), paces[0].worst(paces[1]).paused],
        "others": seen.share(times[1], times[-1]),
        **paces[2].worst(paces[3])._asdict(),
    }


def rows_of(
    a: argparse.Namespace, gguf: Path, seq_len: int, row: Callable[..., Row], times: Any
) -> list[Row]:
    """A row of each program and type of cache, at one length.

    Args:
        row: makes one, of a method's name. times: of steps, as columns.
    """
    rows = []
    for program in a.peers or KV_TYPES:
        for kv in KV_TYPES[program]:
            if a.kv is not None and kv not in a.kv:
                continue
            made = row(program)
            made.update(kv_type=kv, dtype="gguf")
            command = [sys.executable, __file__, program, gguf, "--kv", kv, "--S", seq_len]
            command += ["--tokens", a.steps * a.rounds, "--threads", a.threads, "--seed", a.seed]
            command += ["--rest", a.rest]
            status, out, errors = _run([str(word) for word in command], f"{program}: ")
            lines = [line for line in out.splitlines() if line.startswith("{")]
            if status or not lines:
                made["error"] = f"{program}: {errors[-1] if errors else f'status {status}'}"
            else:
                got = json.loads(lines[-1])
                first = got.pop("first")
                made.update(times(got.pop("steps"), 1), **got)
                made["error"] = noise(made["others"], made["paused"])
                if noise(*first) is not None:
                    made["first_token_seconds"] = None
            rows.append(made)
    return rows


def _run(command: list[str], prefix: str) -> tuple[int, str, list[str]]:
    """Status, stdout and the lines of stderr; of these, what begins with the prefix is passed on at once."""
    errors = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        for line in process.stderr:  # stdout is a line or two, for which a pipe has room
            errors.append(line.strip())
            if line.startswith(prefix):
                print(f"  {line.strip()}", file=sys.stderr, flush=True)
        out = process.stdout.read()
    return process.returncode, out, [line for line in errors if line]


def parser() -> argparse.ArgumentParser:
    """The command line of one process."""
    cli = Parser(
        prog="bench/peers.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cli.add_argument("program", choices=tuple(_PROGRAMS))
    cli.add_argument("model", type=Path, help="a .gguf file")
    cli.add_argument(
        "--kv", default="f16", help="type of keys and values in its cache: f16, q8_0 or u8 (default f16)"
    )
    cli.add_argument("--S", type=int, default=512, help="positions at the end (default 512)")
    cli.add_argument("--tokens", type=int, default=20, help="timed after the first (default 20)")
    cli.add_argument("--threads", type=int, default=2, help="(default 2)")
    cli.add_argument("--seed", type=int, default=0, help="of the prompt (default 0)")
    cli.add_argument(
        "--rest", type=int, default=0, help="seconds of idleness before what is timed (default 0)"
    )
    return cli


def main(argv: list[str] | None = None) -> int:
    """One process; returns the exit status."""
    cli = parser()
    a = cli.parse_args(argv)
    if a.kv not in KV_TYPES[a.program]:
        cli.error(f"--kv must be one of {', '.join(KV_TYPES[a.program])} with {a.program}, got {a.kv}")
    if a.tokens < 1 or a.S < a.tokens + 3:
        cli.error(f"--S must be at least 3 more than --tokens, got {a.S} and {a.tokens}")
    try:
        print(json.dumps(measure(a)), flush=True)
    except ImportError as error:
        cli.error(f"{PACKAGES[a.program]} must be installed, got {error}; run: pip install '.[peers]'")
    except (RuntimeError, ValueError) as error:
        cli.error(f"{error}")
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
