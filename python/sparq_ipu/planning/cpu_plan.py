# SPDX-License-Identifier: Apache-2.0
"""What SparQ attention gains for a model on this machine: bytes are counted, times predicted by a probe.

print(sparq_ipu.planning.cpu_plan.plan_cpu("model.gguf", seq_len=8192))
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

from sparq_ipu.commands.extras import needed
from sparq_ipu.commands.tables import markdown_table
from sparq_ipu.planning.model_shape import MODELS, ModelShape, fields_of, from_config
from sparq_ipu.transformers.loading.checkpoints import SMOLLM2, Checkpoint, check_types
from sparq_ipu.transformers.loading.gguf_file import KEPT_BITS
from sparq_ipu.transformers.settings.layers import WEIGHTS, LayerSettings, complete, recommended_top_k
from sparq_reference import checks, transfers

if TYPE_CHECKING:
    from sparq_ipu.transformers.generation.probe import Probe

#: bits of a weight of linear layers, of the output layer, and of an embedding, by the type of weights
BITS = {"int4": (5.0, 9.0, 16.0), "int8": (9.0, 9.0, 16.0), "bfloat16": (16.0,) * 3, "float32": (32.0,) * 3}
#: the first of BITS, by the bits of a code
_WITH_SCALES = {4: 5.0, 6: 9.0, 8: 9.0, 16: 16.0}
#: positions that a layer with a window holds beyond it, at most (`transformers.cache.windows`)
BEYOND_WINDOW = 2112
_INDEX_BITS = (16, 8, 4, 2)
#: a smaller gain than this is none: runs differ by as much; a larger spread of steps is of a busy machine
_LEAST_GAIN, _MOST_SPREAD = 1.03, 1.3


@dataclasses.dataclass(frozen=True)
class CpuPlan:
    """A model on this machine.

    Attributes:
        windows: of each layer, the most positions that it sees; None: all.
        settings: of SparQ attention.
        probe: predicted times.
        row_bits: of a number of keys and values.
        bits: as in BITS, of the mean weight of a file with several kinds.
    """

    shape: ModelShape
    weights: str
    seq_len: int
    batch: int
    n_threads: int
    settings: LayerSettings
    windows: tuple[int | None, ...]
    probe: Probe
    row_bits: int = 16
    bits: tuple[float, ...] = ()

    @property
    def weight_bytes(self) -> int:
        """Memory of the weights."""
        linear, output, embedding = self.bits or BITS[self.weights]
        shape = self.shape
        embeddings = embedding if self.weights not in WEIGHTS and shape.tied else embedding + output
        return round(
            (shape.n_layers * shape.layer_weights * linear + shape.embedding_weights * embeddings) / 8
        )

    @property
    def weight_bytes_read(self) -> int:
        """Weights that a step reads."""
        linear, output, _ = self.bits or BITS[self.weights]
        of_layers = self.shape.n_layers * self.shape.layer_weights
        return round((of_layers * linear + self.shape.embedding_weights * output) / 8)

    def cache_bytes(self, index_bits: int | None) -> int:
        """Memory of the cache with a key index of `index_bits`; None: keys and values alone."""
        d = self.shape.head_dim

        def of(n: int, has_window: bool) -> int:
            index = 0 if has_window or index_bits is None else transfers.index_bytes(n, d, index_bits)
            return transfers.row_bytes(d, self.row_bits) * n + index

        return self._of_all(of, BEYOND_WINDOW)

    def cache_bytes_read(self, index_bits: int | None) -> int:
        """Bytes of the cache that a step reads with SparQ attention; None: with dense attention."""
        d, s = self.shape.head_dim, self.settings

        def of(n: int, has_window: bool) -> int:
            if has_window or index_bits is None or n < s.min_seq_len:
                return transfers.dense_bytes(n, d, self.row_bits)
            return transfers.sparq_bytes(n, d, s.rank, min(s.top_k, n), index_bits, self.row_bits)

        return self._of_all(of)

    def _of_all(self, bytes_of_head: Callable[[int, bool], int], beyond: int = 0) -> int:
        n = self.seq_len
        lengths = [(n if w is None else min(w + beyond, n), w is not None) for w in self.windows]
        return self.batch * self.shape.n_kv_heads * sum(bytes_of_head(n, has) for n, has in lengths)

    @property
    def is_short(self) -> bool:
        """All tokens are decoded densely."""
        return self.seq_len < self.settings.min_seq_len

    def step_seconds(self, method: str) -> float:
        """Predicted time of a decode step, with "dense" or "sparq" attention."""
        return self.probe.step_seconds("dense" if self.is_short else method, self.seq_len)

    @property
    def first_token_seconds(self) -> float:
        """Predicted time of a prompt that is read densely."""
        return self.probe.first_token_seconds(self.seq_len)

    @property
    def verdict(self) -> str:
        """What SparQ gains."""
        at, gain = f"at {self.seq_len:,} positions", self.step_seconds("dense") / self.step_seconds("sparq")
        if self.is_short:
            return f"SparQ gains nothing {at}: it is used from {self.settings.min_seq_len:,} on."
        if gain < _LEAST_GAIN:
            line = f"SparQ gains nothing {at}."
        elif gain < 2:
            line = f"SparQ gains {gain - 1:.0%} in tokens/s {at}."
        else:
            line = f"SparQ decodes {gain:.1f} times as many tokens/s as dense attention {at}."
        if self.probe.spread > _MOST_SPREAD:
            line = f"Other programs were running, so repeat this on an idle machine. {line}"
        even = self.probe.break_even
        if even is None:
            return f"{line} It was not faster at any length."
        return f"{line} It is faster from about {float(f'{even:.2g}'):,.0f} positions on."

    def row(self) -> dict[str, Any]:
        """The plan as columns."""
        return {
            "model": self.shape.name,
            "device": "cpu",
            "weights": self.weights,
            "seq_len": self.seq_len,
            "batch": self.batch,
            "n_threads": self.n_threads,
            "row_bits": self.row_bits,
            "weight_bytes": self.weight_bytes,
            "weight_bytes_read": self.weight_bytes_read,
            "cache_bytes": self.cache_bytes(self.settings.index_bits),
            "cache_bytes_read": self.cache_bytes_read(self.settings.index_bits),
            "cache_bytes_read_dense": self.cache_bytes_read(None),
            "first_token_seconds": self.first_token_seconds,
            "seconds_per_step": self.step_seconds("sparq"),
            "seconds_per_step_dense": self.step_seconds("dense"),
            "break_even": self.probe.break_even,
        }

    def __str__(self) -> str:
        s, bits = self.settings, self.settings.index_bits
        rows = []
        for name, method, index in (("dense", "dense", None), (f"SparQ, {bits}-bit index", "sparq", bits)):
            n_bytes, seconds = (
                self.weight_bytes_read + self.cache_bytes_read(index),
                self.step_seconds(method),
            )
            rows.append(
                (
                    name,
                    f"{self.first_token_seconds:.3g}",
                    f"{self.batch / seconds:.3g}",
                    _megabytes(self.weight_bytes_read),
                    _megabytes(n_bytes - self.weight_bytes_read),
                    f"{n_bytes / seconds / 1e9:.1f}",
                )
            )
        header = ("attention", "first token, s", "tokens/s", "weights read, MB", "cache read, MB", "GB/s")
        options = [("keys and values alone", None)] + [(f"{b}-bit index", b) for b in _INDEX_BITS]
        caches = [
            (name, _megabytes(self.cache_bytes(b)), _megabytes(self.cache_bytes_read(b)))
            for name, b in options
        ]
        return "\n".join(
            (
                self.verdict,
                "",
                f"{self.shape.name}, {self.weights} weights ({_megabytes(self.weight_bytes)} MB in memory), "
                f"{self.seq_len:,} positions, batch {self.batch}, {self.n_threads} threads, rank={s.rank}, "
                f"top_k={s.top_k}, row_bits={self.row_bits}. Bytes are counted, of one step. Times are "
                f"predicted from {self.probe.n_layers} of {self.shape.n_layers} layers, timed just now with "
                "random weights.",
                "",
                markdown_table(header, rows),
                "",
                markdown_table(("cache", "memory, MB", "read by a step, MB"), caches),
            )
        )


def _megabytes(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:,.1f}" if n_bytes < 1e8 else f"{n_bytes / 1e6:,.0f}"


def plan_cpu(
    model: str,
    *,
    seq_len: int = 16384,
    batch: int = 1,
    n_threads: int | None = None,
    weights: str | None = None,
    row_bits: int = 16,
    **settings: int,
) -> CpuPlan:
    """Plan a model on this machine. Takes some seconds: see `probe`.

    Args:
        model: a name of MODELS, "smollm2", a .gguf file, a checkpoint directory, or a config.json.
        weights: of BITS; None: as `generate` would load the file, and bfloat16 for a name or a config.json.
        row_bits: of a number of keys and values, 16 or 8.
        settings: rank, top_k, n_local and index_bits; the recommended ones otherwise.

    Raises:
        ValueError: `plan: <argument> must <rule>, got <value>`. ImportError without transformers.
    """
    op = "plan"
    checks.check_integer(op, "seq_len", seq_len, 1, checks.MAX_CAPACITY)
    checks.check_integer(op, "batch", batch, 1, 1 << 12)
    checks.check_row_bits(op, row_bits)
    if weights is not None and weights not in BITS:
        checks.fail(op, "weights", f"be one of {', '.join(BITS)}", repr(weights))
    with needed(op):
        import torch
        import transformers  # noqa: F401

        from sparq_ipu.transformers.generation.probe import probe
        from sparq_ipu.transformers.supported import LayerKinds, text_config
    if n_threads is not None:
        torch.set_num_threads(checks.check_integer(op, "n_threads", n_threads, 1, 1024))
    config, name, stored, file = _config(op, model)
    config = text_config(config)
    shape = dataclasses.replace(from_config(op, fields_of(config), model), name=name)
    asked, weights = weights, weights or stored
    if weights in WEIGHTS and stored in WEIGHTS:
        weights = min(weights, stored, key=BITS.__getitem__)  # a layer keeps the fewer bits of its file
    chosen = complete(op, shape.head_dim, {"top_k": recommended_top_k(seq_len), **settings})
    bits = BITS[weights] if file is None or weights not in WEIGHTS else _bits_of(file, asked)
    layer_bytes = round(shape.layer_weights * bits[0] / 8)
    timed = probe(config, weights, seq_len, batch, chosen, layer_bytes, row_bits)
    windows = LayerKinds.of(config)
    seen = tuple(w if index in windows.dense else None for index, w in enumerate(windows.windows))
    n_threads = torch.get_num_threads()
    return CpuPlan(shape, weights, seq_len, batch, n_threads, chosen, seen, timed, row_bits, bits)


def _bits_of(file: Any, asked: str | None) -> tuple[float, ...]:
    """As BITS, of the mean weight of a GGUF file that `generate` loads with the weights asked for."""

    def of(name: str, most: int) -> tuple[float, int]:
        tensor = file.tensors[name]
        n = math.prod(tensor.shape)
        return _WITH_SCALES[min(KEPT_BITS.get(tensor.kind.name, 16), most)] * n, n

    most = 4 if asked == "int4" else 8 if asked else 16
    matrices = [n for n, t in file.tensors.items() if n.startswith("blk.") and len(t.shape) == 2]
    layers = [of(name, most) for name in matrices]
    outputs = [name for name in ("output.weight", "token_embd.weight") if name in file.tensors]
    for names, of_what in ((matrices, "a matrix of a layer"), (outputs, "token_embd.weight")):
        if not names:
            file.fail("tensors", f"have {of_what}", "none")
    output, n = of(outputs[0], max(8, most))
    return sum(bits for bits, _ in layers) / sum(n for _, n in layers), output / n, 16.0


def _config(op: str, model: str) -> tuple[Any, str, str, Any]:
    """The config of transformers, a name, the type of the weights in the file, and a GGUF file or None."""
    import transformers

    for name, shape in MODELS.items():
        if name.lower() == model.lower():
            config: Any = transformers.LlamaConfig(
                vocab_size=shape.vocab_size,
                hidden_size=shape.hidden_size,
                intermediate_size=shape.intermediate_size,
                num_hidden_layers=shape.n_layers,
                num_attention_heads=shape.n_heads,
                num_key_value_heads=shape.n_kv_heads,
                head_dim=shape.head_dim,
                tie_word_embeddings=shape.tied,
            )
            return config, name, "bfloat16", None
    path = Path(model)
    if path.suffix == ".json" and path.is_file():
        path = path.parent
    if model != SMOLLM2 and not path.exists():
        rule = f"be one of {', '.join(MODELS)}, a .gguf file, a checkpoint folder or a config.json"
        checks.fail(op, "model", rule, repr(model))
    checkpoint = Checkpoint(model if model == SMOLLM2 else path)
    dtype, few = checkpoint.types(None, None)
    check_types(op, dtype, few)
    file = checkpoint.file if checkpoint.path.is_file() else None
    return checkpoint.config, checkpoint.path.stem or str(path), few or dtype, file
