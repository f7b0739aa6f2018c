#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Other programs that decode on a CPU, for bench/decode.py --peers: llama.cpp (the wheel xllamacpp) with and
without flash attention, OpenVINO GenAI as it is and with sparse attention for prompts (XAttention, its
defaults), and mistral.rs.

Each runs in a process of its own, on the same GGUF file, with the same threads and the same prompt. It reads
the prompt, keeps what it has read, and then says some tokens whenever it is asked: in turns with all others.
How long each token took after the first one is what is kept. Choosing the likeliest token is in their times;
ours are of the model alone. Prompts are the excerpts of novels, plays and speeches of the accuracy study.
mistral.rs takes no tokens, so it reads as many common words.

    echo 4 | python bench/peers.py llama.cpp MODEL.gguf --kv q8_0 --S 512

is one of these processes: a JSON line for the prompt, and one for each number of tokens on stdin.
With --filled it reads 128 tokens, whose keys and values it repeats in the cache up to the length: a long
prompt takes a large model hours. OpenVINO's runtime then decodes by itself, without OpenVINO GenAI.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.metadata
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator

from lib import filled
from lib.common import ROOT, Parser, Row, guarded
from lib.decode_method import WARM_UP
from lib.quiet import watched

#: rows in a cache: 16 bits, and what a program has of 8
KV_TYPES = {
    "llama.cpp": ("f16", "q8_0"),
    "llama.cpp-no-flash": ("f16",),  # values of 8 bits need it
    "openvino": ("f16", "u8"),
    "openvino-xattention": ("f16", "u8"),
    "mistral.rs": ("f16",),
}
PACKAGES = {
    "llama.cpp": "xllamacpp",
    "llama.cpp-no-flash": "xllamacpp",
    "openvino": "openvino-genai",
    "openvino-xattention": "openvino-genai",
    "mistral.rs": "mistralrs",
}
#: those whose cache can be filled without a prompt
FILLED = ("llama.cpp", "llama.cpp-no-flash", "openvino")
#: excerpts that prompts are made of, in the public domain
TEXTS = ROOT / "study/sparq_study/accuracy/data"
#: tokens between the beginnings of the prompts of two seeds: no program finds a prompt in its cache
_STRIDE = 9973
#: other prompts of the same length are read, until there are so many or they took so many seconds
TRIALS, TRIAL_SECONDS = 3, 10.0
#: one token each in most vocabularies
_WORDS = "the of and to in is was for on that by this with from at are it an be as".split()
#: a letter in the vocabularies that begin with the bytes
_LETTER = 70


def is_timed(is_filled: bool, batch: int) -> bool:
    """Whether one text is read, whose time to the first token is that of a prompt."""
    return not is_filled and batch == 1


def least_more(is_filled: bool, batch: int = 1) -> int:
    """Positions that a text has at least besides the tokens of a turn."""
    return 3 + (0 if is_timed(is_filled, batch) else filled.SPARE)


@functools.lru_cache(maxsize=None)
def text_tokens(model: Path) -> list[int]:
    """All excerpts, one after another, in the vocabulary of a model.

    Raises:
        ValueError: the model contains no tokenizer, or a damaged one.
    """
    from sparq_ipu.transformers.loading.checkpoints import Checkpoint

    tokenizer = Checkpoint(model).tokenizer
    if tokenizer is None:
        raise ValueError(f"the model must contain a tokenizer, got {model} without one")
    text = "".join(path.read_text(encoding="ascii") for path in sorted(TEXTS.glob("*.txt")))
    tokens: list[int] = tokenizer(text, add_special_tokens=False).input_ids
    return tokens


def _tokens_elsewhere(model: Path) -> list[int]:
    """`text_tokens` in another process: PyTorch's memory and threads stay out of the measured one."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as other:
        return other.submit(text_tokens, model).result()


def prompt_tokens(text: list[int], n: int, seed: int) -> list[int]:
    """n tokens of a text that repeats; each seed begins at another place."""
    begin = seed * _STRIDE
    return [text[i % len(text)] for i in range(begin, begin + n)]


def first_tokens(
    read: Callable[[list[int]], float], text: list[int], n: int, seed: int, trials: int = TRIALS
) -> tuple[list[int], list[float]]:
    """Reads prompts of n tokens of the text. Returns the last one, and the seconds of each."""
    seconds: list[float] = []
    while True:
        prompt = prompt_tokens(text, n, seed + 2 * len(seconds))
        seconds.append(read(prompt))
        if len(seconds) == trials or sum(seconds) > TRIAL_SECONDS:
            return prompt, seconds


def _llama(a: argparse.Namespace) -> Callable[[list[int], int], list[float]]:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(a.model)
    params.n_ctx = a.batch * max(a.S, sum(WARM_UP) + 2)
    params.n_parallel = a.batch
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = a.threads
    kind = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{a.kv.upper()}")
    params.cache_type_k = params.cache_type_v = kind
    state = "DISABLED" if a.program == "llama.cpp-no-flash" else "ENABLED"
    params.flash_attn_type = getattr(xllamacpp.llama_flash_attn_type, f"LLAMA_FLASH_ATTN_TYPE_{state}")
    params.verbosity = 0
    if a.filled:
        slots = tempfile.mkdtemp()
        params.slot_save_path, params.endpoint_slots = f"{slots}/", True
    server = xllamacpp.Server(params)

    def run(tokens: list[int], n_new: int, slot: int = 0) -> list[float]:
        times = [time.perf_counter()]
        body = {
            "prompt": tokens,
            "id_slot": slot,
            "n_predict": n_new,
            "stream": True,
            "temperature": 0.0,
            "ignore_eos": True,
        }
        body["cache_prompt"] = True
        body["logit_bias"] = [[_LETTER, 1000.0]]  # of a token that is part of a letter it says nothing

        def came(part: Any) -> None:
            if part.get("error"):
                raise RuntimeError(f"llama.cpp: {part['error']}")
            if all(choice["finish_reason"] is None for choice in part["choices"]):
                times.append(time.perf_counter())  # a token; the last part has none

        server.handle_completions(body, came)
        return times

    if is_timed(a.filled, a.batch):
        return run
    return filled.llama_cpp(run, server.listening_address, Path(slots) if a.filled else None, a.batch)


def _openvino(a: argparse.Namespace) -> Callable[[list[int], int], list[float]]:
    if a.filled:
        return filled.openvino(a.model, a.S, a.batch, a.threads, a.kv)
    import numpy as np
    import openvino
    import openvino_genai

    options = {}
    if a.program == "openvino-xattention":
        options["scheduler_config"] = scheduler = openvino_genai.SchedulerConfig()
        # as the pipeline has them without a configuration
        scheduler.enable_prefix_caching, scheduler.max_num_batched_tokens = True, sys.maxsize
        scheduler.use_sparse_attention = True
        sparse = openvino_genai.SparseAttentionConfig(openvino_genai.SparseAttentionMode.XATTENTION)
        scheduler.sparse_attention_config = sparse
    pipe = openvino_genai.LLMPipeline(
        str(a.model), "CPU", INFERENCE_NUM_THREADS=a.threads, KV_CACHE_PRECISION=a.kv, **options
    )

    def run(tokens: list[int], n_new: int) -> list[float]:
        times = [time.perf_counter()]
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = n_new, True, False
        ids = np.array([tokens], np.int64)
        inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
        metrics = pipe.generate(inputs, config).perf_metrics.raw_metrics
        first = metrics.m_times_to_first_token[0] / 1e6  # microseconds
        times.append(times[0] + first)
        durations = list(metrics.m_durations)
        for duration in durations[len(durations) - (n_new - 1) :]:
            times.append(times[-1] + duration / 1e6)
        return times

    return run


def _mistral(a: argparse.Namespace) -> Callable[[list[int], int], list[float]]:
    os.environ["RAYON_NUM_THREADS"] = str(a.threads)
    import mistralrs

    which = mistralrs.Which.GGUF(str(a.model.resolve().parent), a.model.name)
    runner = mistralrs.Runner(which)
    n_template = 0

    def run(tokens: list[int], n_new: int) -> list[float]:
        """It takes text alone: of words that are one token each, in the model's template."""
        nonlocal n_template
        words = " ".join(_WORDS[token % len(_WORDS)] for token in tokens[n_template:])
        request = mistralrs.ChatCompletionRequest(
            [{"role": "user", "content": words}],
            "default",
            max_tokens=n_new,
            temperature=0.0,
            stream=True,
            logit_bias={_LETTER: 1000.0},  # of any other token the text may end
        )
        times, n_read = [time.perf_counter()], 0
        for part in runner.send_chat_completion_request(request):
            times.append(time.perf_counter())
            n_read = part.usage.prompt_tokens if part.usage else n_read  # of the last one
        if not n_template:  # the first call warms up
            n_template = n_read - len(tokens)
        elif abs(n_read - len(tokens)) > len(tokens) / 50:
            raise RuntimeError(f"mistral.rs must read {len(tokens)} tokens, got {n_read}")
        return times

    return run


_PROGRAMS = {
    "llama.cpp": _llama,
    "llama.cpp-no-flash": _llama,
    "openvino": _openvino,
    "openvino-xattention": _openvino,
    "mistral.rs": _mistral,
}


def said(a: argparse.Namespace, asked: Iterable[str]) -> Iterator[Row]:
    """What such a process says: of its prompt, and of each number of tokens that it is asked for.

    With the most of them the text has S positions: llama.cpp takes no more than the model was trained for.
    """
    text = _tokens_elsewhere(a.model)  # first: a program that waits is slow for a while
    run = _PROGRAMS[a.program](a)
    run(prompt_tokens(text, WARM_UP[0], a.seed + 1), WARM_UP[1])

    def read(tokens: list[int]) -> float:
        begin, end = run(tokens, 1)
        return end - begin

    n_tokens = a.S - a.tokens + 1 - least_more(a.filled, a.batch)
    is_first = is_timed(a.filled, a.batch)
    with watched(a.threads) as seen:
        prompt, seconds = first_tokens(read, text, n_tokens, a.seed, TRIALS if is_first else 1)
    yield {
        "first_token_seconds": statistics.median(seconds) if is_first else None,
        "first_token_trials": len(seconds) if is_first else None,
        "others": seen.others,
        "paused": seen.pace.paused,
        "version": importlib.metadata.version(PACKAGES[a.program]),
    }
    for line in asked:
        n_tokens = int(line)
        times = run(prompt, n_tokens + 1)  # both programs have kept the prompt
        steps = [after - before for before, after in zip(times[1:], times[2:])]
        if len(steps) != n_tokens:
            raise RuntimeError(f"{a.program} must say {n_tokens + 1} tokens, got {len(times) - 1}")
        yield {"steps": steps}


class Peer:
    """One of these processes, which has read its prompt.

    Args:
        program, kv_type: of KV_TYPES. gguf: the model. seq_len: positions at the end.
        tokens: that it will be asked for in a turn. threads, seed, batch: as of the other methods.
        is_filled: the cache is filled without a prompt.

    Raises:
        RuntimeError: it failed; with the last line that it wrote.
    """

    def __init__(
        self,
        program: str,
        kv_type: str,
        gguf: Path,
        seq_len: int,
        tokens: int,
        threads: int,
        seed: int,
        batch: int = 1,
        is_filled: bool = False,
    ):
        self.name, self.kv_type = program, kv_type
        #: of each step that counts
        self.seconds: list[float] = []
        command = [sys.executable, __file__, program, gguf, "--kv", kv_type, "--S", seq_len]
        command += ["--tokens", tokens, "--threads", threads, "--seed", seed]
        command += ["--filled", "--batch", batch] if is_filled else []
        self._process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        self._errors: list[str] = []
        self._reader = threading.Thread(target=self._read_errors, daemon=True)
        self._reader.start()
        #: what it says of its prompt
        self.prompt = self._answer()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def decode(self, tokens: Any, is_counted: bool) -> None:
        """Say as many tokens as these, from the end of the prompt again."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # of a process that has ended there is no answer
            print(len(tokens), file=self._process.stdin, flush=True)
        steps = self._answer()["steps"]
        if is_counted:
            self.seconds += steps

    def close(self) -> None:
        """End the process, if it has not ended."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # what it has not read
                pipe.close()

    def _answer(self) -> Row:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):  # programs write other things too
                return json.loads(line)  # type: ignore[no-any-return]
        status = self._process.wait()
        self.close()
        raise RuntimeError(f"{self.name}: {self._errors[-1] if self._errors else f'status {status}'}")

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._errors = [line.strip()] if line.strip() else self._errors


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
    cli.add_argument("--tokens", type=int, default=20, help="of a turn, at most (default 20)")
    cli.add_argument("--threads", type=int, default=2, help="(default 2)")
    cli.add_argument("--seed", type=int, default=0, help="of the prompt (default 0)")
    text = f"repeat the keys and values of {filled.SHORT} tokens in the cache instead of reading a prompt"
    cli.add_argument("--filled", action="store_true", help=text)
    cli.add_argument("--batch", type=int, default=1, help="texts, with llama.cpp or --filled (default 1)")
    return cli


def main(argv: list[str] | None = None) -> int:
    """One process; returns the exit status."""
    cli = parser()
    a = cli.parse_args(argv)
    if a.kv not in KV_TYPES[a.program]:
        cli.error(f"--kv must be one of {', '.join(KV_TYPES[a.program])} with {a.program}, got {a.kv}")
    least = least_more(a.filled, a.batch)
    if a.tokens < 1 or a.S < a.tokens + least:
        cli.error(f"--S must be at least {least} more than --tokens, got {a.S} and {a.tokens}")
    if a.filled and a.program not in FILLED:
        cli.error(f"--filled must have one of {', '.join(FILLED)}, got {a.program}")
    if a.batch < 1 or (a.batch > 1 and not a.filled and not a.program.startswith("llama.cpp")):
        cli.error(f"--batch must be at least 1, and 1 without llama.cpp or --filled, got {a.batch}")
    try:
        for row in said(a, sys.stdin):
            print(json.dumps(row), flush=True)
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in (
            "xllamacpp",
            "openvino",
            "openvino_genai",
            "mistralrs",
        ):
            raise
        cli.error(f"{PACKAGES[a.program]} must be installed, got {error}; run: pip install '.[peers]'")
    except (RuntimeError, ValueError) as error:
        cli.error(f"{error}")
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
