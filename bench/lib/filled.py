# SPDX-License-Identifier: Apache-2.0
"""Other programs with a full KV cache into which no long prompt was read, for bench/peers.py --filled.

Each program reads `SHORT` tokens. The rows that these leave in its cache are repeated up to the length that
is asked for. A step of dense attention reads them all, whatever they contain. llama.cpp restores a saved slot
that was lengthened. OpenVINO's runtime gets the model that OpenVINO GenAI converts, with the same paged
attention, properties and types of the cache.

Before you trust a figure, compare with a prompt that is read (the same command without --filled), with a
small model or with one of few layers (bench/random_gguf.py --layers 2). Both ways take as long: SmolLM2 at
2,048 positions with llama.cpp and with OpenVINO; and llama.cpp with two layers of the 1.5B's shape at 32,768,
and of the 3B's shape with 8 texts of 8,192.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, Iterator, List, Sequence

Run = Callable[[Sequence[int], int], List[float]]
#: tokens that are read
SHORT = 128
#: steps of some texts that other texts do not share: they begin and end one after another
SPARE = 3
#: of a saved sequence of llama.cpp, and the version that is known here
_MAGIC, _VERSION = 0x67677371, 4
#: integers as large as the elements of a cache
_CONTAINERS = {1: "uint8", 2: "uint16", 4: "uint32"}
#: makes OpenVINO GenAI save the model that it converts, beside the file
_CONVERT = "import sys, openvino_genai as g; g.LLMPipeline(sys.argv[1], 'CPU', enable_save_ov_model=True)"


def _filling(fill: Callable[[Sequence[int]], None], decode: Run) -> Run:
    """As the programs of bench/peers.py: it keeps the prompt that it had last."""
    held: list[int] = []

    def run(prompt: Sequence[int], n_new: int) -> list[float]:
        if held != list(prompt):
            fill(prompt)
            held[:] = prompt
        return decode(prompt, n_new)

    return run


def lengthened(saved: bytes, tokens: Sequence[int]) -> Iterator[bytes]:
    """A file of llama.cpp's with one sequence, made longer: its rows again and again.

    Args:
        saved: the file. tokens: that the sequence has then.

    Raises:
        ValueError: it is another kind of file.
    """
    at, n_new = 0, len(tokens)

    def words(n: int) -> tuple[int, ...]:
        nonlocal at
        at += 4 * n
        return struct.unpack(f"<{n}I", saved[at - 4 * n : at])

    def put(*values: int) -> bytes:
        return struct.pack(f"<{len(values)}I", *values)

    def wanted(is_so: bool) -> None:
        if not is_so:
            raise ValueError(
                f"llama.cpp's state must be one sequence of version {_VERSION}, got another kind"
            )

    try:
        magic, version, n_words, *kind, n = words(6)
        wanted((magic, version) == (_MAGIC, _VERSION))
        rest = words(n_words - 3)
        yield put(magic, version, n_words - n + n_new, *kind, n_new, *tokens, *rest[n:])
        (n_streams,) = words(1)
        yield put(n_streams)
        for _ in range(n_streams):
            (n_cells,) = words(1)
            if not n_cells:  # another slot's
                yield put(0)
                continue
            cells = words(3 * n)
            wanted(n_cells == n and cells[::3] == tuple(range(n)) and set(cells[1::3]) == {1})
            yield put(n_new, *(word for i in range(n_new) for word in (i, 1, cells[2])))
            is_transposed, n_layers, *others = words(4)
            yield put(is_transposed, n_layers, *others)
            for layer in range(2 * n_layers):
                row_type, size, more = words(3)  # two words are the size in bytes, or size and number
                yield put(row_type, size, more)
                for _ in range(more if is_transposed and layer >= n_layers else 1):
                    rows = saved[at : at + n * size]
                    at += n * size
                    for begin in range(0, n_new, n):
                        yield rows[: (n_new - begin) * size]
        wanted(at == len(saved))
    except struct.error:
        wanted(False)


def _ask(address: str, slot: int, action: str, name: str) -> Any:
    """Save or restore a slot of llama.cpp's server."""
    request = urllib.request.Request(
        f"{address}/slots/{slot}?action={action}",
        json.dumps({"filename": name}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def llama_cpp(say: Callable[..., list[float]], address: str, folder: Path | None, batch: int) -> Run:
    """llama.cpp's server.

    Args:
        say: tokens, number of new tokens, slot -> the times of bench/peers.py.
        address: of its HTTP server. folder: where it saves its slots; it goes. None: each slot reads
        the prompt. batch: the number of slots.
    """

    def fill(prompt: Sequence[int]) -> None:
        if folder is None:
            for slot in range(batch):
                say(prompt, 1, slot)
            return
        folder.mkdir(exist_ok=True)
        say(prompt[:SHORT], 1, 0)
        _ask(address, 0, "save", "short")
        with open(folder / "long", "wb") as file:
            file.writelines(lengthened((folder / "short").read_bytes(), prompt))
        for slot in range(batch):
            n = _ask(address, slot, "restore", "long")["n_restored"]
            if n != len(prompt):
                raise RuntimeError(f"llama.cpp must restore {len(prompt)} tokens, got {n}")
        shutil.rmtree(folder)  # nothing is left of a process that is killed

    def decode(prompt: Sequence[int], n_new: int) -> list[float]:
        with ThreadPoolExecutor(batch) as pool:
            times = list(pool.map(lambda slot: say(prompt, n_new + SPARE, slot), range(batch)))
        begin, end = max(text[1] for text in times), min(text[-1] for text in times)
        shared = [moment for moment in times[0][1:] if begin <= moment <= end]
        return [times[0][0], *shared[:n_new]]

    return _filling(fill, decode)


def _converted(gguf: Path) -> Path:
    """OpenVINO's form of the file: beside it, made when there is none."""
    folder = gguf.resolve().with_suffix(".openvino")
    model = folder / "openvino_model.xml"
    if not model.exists():
        with tempfile.TemporaryDirectory(dir=gguf.resolve().parent) as made:
            link = Path(made) / gguf.name
            link.symlink_to(gguf.resolve())
            subprocess.run([sys.executable, "-c", _CONVERT, str(link)], check=True, stdout=sys.stderr)
            link.unlink()
            os.rename(made, folder)
    return model


def openvino(gguf: Path, seq_len: int, batch: int, threads: int, kv_type: str) -> Run:
    """OpenVINO's runtime. The likeliest token is chosen in its times, as by OpenVINO GenAI."""
    import numpy as np
    import openvino as ov
    from openvino._offline_transformations import paged_attention_transformation

    core = ov.Core()
    model = core.read_model(str(_converted(gguf)))
    paged_attention_transformation(model)
    properties = dict(INFERENCE_NUM_THREADS=threads, KV_CACHE_PRECISION=kv_type)
    compiled = core.compile_model(model, "CPU", properties)
    request = compiled.create_infer_request()
    ports = {port.get_any_name(): port for port in compiled.inputs}
    block = ports["value_cache.0"].get_partial_shape()[2].get_length()  # positions
    n_blocks = -(-seq_len // block)  # of a text
    caches = []
    for name, port in ports.items():
        if "_cache." in name:
            sizes = [size.get_length() for size in list(port.get_partial_shape())[1:]]
            caches.append(np.zeros((batch, n_blocks, *sizes), _CONTAINERS[port.get_element_type().size]))
            shape = ov.Shape([batch * n_blocks, *sizes])
            request.set_tensor(name, ov.Tensor(caches[-1], shape, port.get_element_type()))

    def step(tokens: Sequence[int], past: int) -> int:
        """All texts read the same tokens; the likeliest token after them."""
        n, there = len(tokens), past + len(tokens)
        held = -(-there // block)
        begins = np.arange(batch + 1, dtype=np.int32)
        blocks = n_blocks * begins[:-1, None] + np.arange(held, dtype=np.int32)
        inputs = dict(
            input_ids=np.tile(np.array(tokens, np.int64), batch),
            position_ids=np.tile(np.arange(past, there), batch),
            past_lens=np.full(batch, past, np.int32),
            subsequence_begins=begins * np.int32(n),
            block_indices_begins=begins * np.int32(held),
            block_indices=np.ascontiguousarray(blocks.reshape(-1), np.int32),
            max_context_len=np.array(there, np.int32),
        )
        for name, values in inputs.items():
            request.set_tensor(name, ov.Tensor(values))
        request.infer()
        logits = request.get_tensor("logits").data
        return int(logits.reshape(batch, n, -1)[:, -1].argmax(-1)[0])

    def fill(prompt: Sequence[int]) -> None:
        step(prompt[:SHORT], 0)
        short = max(min(SHORT, len(prompt)) // block, 1)
        for cache in caches:
            for at in range(short, n_blocks, short):
                into = cache[:, at : at + short]
                into[:] = cache[:, : into.shape[1]]

    def decode(prompt: Sequence[int], n_new: int) -> list[float]:
        times, token = [time.perf_counter()], prompt[-1]
        for past in range(len(prompt) - 1, len(prompt) - 1 + n_new):
            token = step([token], past)
            times.append(time.perf_counter())
        return times

    return _filling(fill, decode)
