# SPDX-License-Identifier: Apache-2.0
"""A Llama-shaped decoder over the IPUs of a Pod: KV caches in streaming memory, one decode step a call.

    python examples/poptorch_pod.py                          # here, in plain PyTorch
    python examples/poptorch_pod.py --ipu --ipus 4           # on four IPUs, through PopTorch

The model has the modules of a Llama of Hugging Face transformers, by their names, so it takes the weights of
one (`Decoder.like`). One executable serves prompts and tokens: a call either fills rows with prompts, of any
lengths up to `prompt_tokens`, or takes one token of each active row. So texts of different lengths run side
by side, and a row begins a new text while the others wait (docs/poptorch.md).
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from pathlib import Path
from typing import Any, Callable, Sequence, Tuple

from sparq_ipu.commands.extras import needed

with needed("poptorch_pod.py", is_command=__name__ == "__main__"):
    import torch

    from sparq_ipu.poptorch import DenseAttention, SparqAttention, begin
    from sparq_ipu.poptorch.attention import running_on_ipu

try:
    import poptorch  # type: ignore[import-not-found]
except ImportError:
    poptorch = None

#: of SparQ attention and its caches, as options of the command line
SETTINGS = ("rank", "top_k", "n_local", "index_bits", "memory")
#: what a model makes of tokens: (prompt, lengths, token, position, active, fills) -> logits, positions held
Step = Callable[..., Tuple[torch.Tensor, torch.Tensor]]


@dataclasses.dataclass(frozen=True)
class Shape:
    """Of a decoder."""

    vocabulary: int = 256
    width: int = 128
    mlp_width: int = 256
    n_layers: int = 4
    n_heads: int = 8
    n_kv_heads: int = 2
    head_dim: int = 16
    rope_theta: float = 10000.0
    epsilon: float = 1e-6

    @classmethod
    def of(cls, config: Any) -> Shape:
        """That of a Llama of transformers."""
        rope = getattr(config, "rope_parameters", None) or {}
        return cls(
            vocabulary=config.vocab_size,
            width=config.hidden_size,
            mlp_width=config.intermediate_size,
            n_layers=config.num_hidden_layers,
            n_heads=config.num_attention_heads,
            n_kv_heads=config.num_key_value_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            rope_theta=rope.get("rope_theta", None) or getattr(config, "rope_theta", 10000.0),
            epsilon=config.rms_norm_eps,
        )


class Norm(torch.nn.Module):
    """RMS norm, in float32."""

    def __init__(self, width: int, epsilon: float):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.epsilon)
        return self.weight * scaled.to(x.dtype)


def rotate(x: torch.Tensor, position: torch.Tensor, theta: float) -> torch.Tensor:
    """Rotary embedding of x (batch, heads, n, head_dim) at positions (batch, n)."""
    half = x.shape[-1] // 2
    frequency = theta ** (-torch.arange(half, dtype=torch.float32) / half)
    angle = position.float()[:, None, :, None] * frequency
    cos, sin = torch.cos(angle).to(x.dtype), torch.sin(angle).to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class Attention(torch.nn.Module):
    """Projections around attention over a cache that the operators keep."""

    def __init__(self, shape: Shape, attention: SparqAttention | DenseAttention):
        super().__init__()
        self.shape = shape
        self.attention = attention
        outer, inner = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
        self.q_proj = torch.nn.Linear(shape.width, outer, bias=False)
        self.k_proj = torch.nn.Linear(shape.width, inner, bias=False)
        self.v_proj = torch.nn.Linear(shape.width, inner, bias=False)
        self.o_proj = torch.nn.Linear(outer, shape.width, bias=False)

    def _projected(self, x: torch.Tensor, position: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Query, key, value (batch, heads, n, head_dim) of x (batch, n, width)."""

        def heads(projected: torch.Tensor) -> torch.Tensor:
            return projected.reshape(*x.shape[:2], -1, self.shape.head_dim).transpose(1, 2)

        query, key, value = (heads(p(x)) for p in (self.q_proj, self.k_proj, self.v_proj))
        theta = self.shape.rope_theta
        return rotate(query, position, theta), rotate(key, position, theta), value

    def fill(
        self, x: torch.Tensor, lengths: torch.Tensor, held: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Prompts x (batch, n, width): dense causal attention among themselves; rows with a length of 0 or
        more then hold that many of their tokens. Also positions held, as `step`."""
        n = x.shape[1]
        position = torch.arange(n).expand(x.shape[0], n)
        query, key, value = self._projected(x, position)
        held = self.attention.fill(key, value, lengths, held)
        key, value = (t.to(torch.float16).to(t.dtype) for t in (key, value))  # as the cache has them
        group = self.shape.n_heads // self.shape.n_kv_heads
        keys, values = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
        scores = query @ keys.transpose(2, 3) * self.shape.head_dim**-0.5
        later = torch.triu(torch.ones(n, n), diagonal=1)
        scores = scores + later.to(scores.dtype) * -10000.0
        weights = torch.softmax(scores.float(), dim=-1).to(x.dtype)
        return self.o_proj((weights @ values).transpose(1, 2).reshape(*x.shape[:2], -1)), held

    def step(
        self, x: torch.Tensor, position: torch.Tensor, active: torch.Tensor, held: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One token x (batch, 1, width) of every active row. Also positions held afterwards, (batch,)."""
        query, key, value = (t[:, :, 0] for t in self._projected(x, position[:, None]))
        attended, held = self.attention.step(query, key, value, active, held)
        return self.o_proj(attended.reshape(x.shape[0], 1, -1)), held


class MLP(torch.nn.Module):
    """SwiGLU."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.gate_proj = torch.nn.Linear(shape.width, shape.mlp_width, bias=False)
        self.up_proj = torch.nn.Linear(shape.width, shape.mlp_width, bias=False)
        self.down_proj = torch.nn.Linear(shape.mlp_width, shape.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(torch.nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(torch.nn.Module):
    """Attention and MLP, of prompts or of tokens."""

    def __init__(self, shape: Shape, attention: SparqAttention | DenseAttention):
        super().__init__()
        self.self_attn = Attention(shape, attention)
        self.mlp = MLP(shape)
        self.input_layernorm = Norm(shape.width, shape.epsilon)
        self.post_attention_layernorm = Norm(shape.width, shape.epsilon)

    def forward(
        self,
        prompt: torch.Tensor,
        token: torch.Tensor,
        lengths: torch.Tensor,
        position: torch.Tensor,
        active: torch.Tensor,
        fills: torch.Tensor,
        held: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """prompt (batch, n, width), token (batch, 1, width): the one that this call is about becomes what it
        is behind this layer, the other stays. held: from the layer before, and to the next one, so that the
        result of every operator is used; PopTorch drops those that are not."""

        def of_prompt() -> list[torch.Tensor]:
            attended, now_held = self.self_attn.fill(self.input_layernorm(prompt), lengths, held)
            h = prompt + attended
            return [h + self.mlp(self.post_attention_layernorm(h)), token, now_held]

        def of_token() -> list[torch.Tensor]:
            attended, now_held = self.self_attn.step(self.input_layernorm(token), position, active, held)
            h = token + attended
            return [prompt, h + self.mlp(self.post_attention_layernorm(h)), now_held]

        if running_on_ipu():  # both are compiled, one is run
            prompt, token, held = poptorch.cond(fills, of_prompt, [], of_token, [])
        else:
            prompt, token, held = of_prompt() if fills else of_token()
        return prompt, token, held


class Body(torch.nn.Module):
    """All but the head."""

    def __init__(self, shape: Shape, attention: Sequence[SparqAttention | DenseAttention]):
        super().__init__()
        self.embed_tokens = torch.nn.Embedding(shape.vocabulary, shape.width)
        self.layers = torch.nn.ModuleList(Layer(shape, each) for each in attention)
        self.norm = Norm(shape.width, shape.epsilon)


class Decoder(torch.nn.Module):
    """Logits of the next token.

    Args:
        batch: rows, each with a text of its own.
        capacity: most positions of one text.
        prompt_tokens: most tokens of a prompt.
        settings: those of `SparqAttention`: rank, top_k and so on, and options of its cache; None is dense
            attention.
        n_ipus: over which layers are spread, as evenly as can be: layer l of L on IPU l * n_ipus // L.
    """

    def __init__(
        self,
        shape: Shape,
        batch: int,
        capacity: int,
        prompt_tokens: int,
        settings: dict[str, Any] | None,
        n_ipus: int = 1,
    ):
        super().__init__()
        self.batch = batch
        self.prompt_tokens = prompt_tokens
        self.ipus = [layer * n_ipus // shape.n_layers for layer in range(shape.n_layers)]
        cache = (batch, shape.n_kv_heads, shape.head_dim, capacity)
        attention: list[SparqAttention | DenseAttention] = []
        for layer in range(shape.n_layers):  # alike, so those of one IPU share a program
            name = f"layer{layer}"
            if settings is None:
                attention.append(DenseAttention(*cache, cache_name=name))
            else:
                attention.append(SparqAttention(*cache, cache_name=name, **settings))
        self.model = Body(shape, attention)
        self.lm_head = torch.nn.Linear(shape.width, shape.vocabulary, bias=False)

    @classmethod
    def like(cls, model: Any, *arguments: Any, **options: Any) -> Decoder:
        """One with the weights of a Llama of transformers; arguments as of the class, without `shape`."""
        decoder = cls(Shape.of(model.config), *arguments, **options)
        weights = model.state_dict()
        weights.setdefault("lm_head.weight", weights["model.embed_tokens.weight"])
        decoder.load_state_dict({name: weights[name] for name in decoder.state_dict()})
        return decoder.eval().requires_grad_(False)

    def place(self) -> None:
        """Say which IPU has what: the embedding is with the first layer, the head with the last."""
        modules = [self.model.embed_tokens, *self.model.layers, self.model.norm]
        ipus = [self.ipus[0], *self.ipus, self.ipus[-1]]
        for number, (module, ipu) in enumerate(zip(modules, ipus)):
            poptorch.BeginBlock(module, f"block{number}", ipu_id=ipu)

    def forward(
        self,
        prompt: torch.Tensor,
        lengths: torch.Tensor,
        token: torch.Tensor,
        position: torch.Tensor,
        active: torch.Tensor,
        fills: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Args, all integers of 32 bits:
            prompt: (batch, prompt_tokens), padded behind its tokens. lengths: (batch,) of the prompts; 0
                empties a row, -1 leaves it as it is.
            token: (batch,), one of each row. position: (batch,), where it is in its text. active: (batch,), 0
                where a row gets no token.
            fills: (1,), 1: the call is about the prompts; 0: about the tokens.
        Returns: (batch, vocabulary) logits behind the last token of each row that the call was about, and the
            positions that each row holds, (batch,) int32.
        """
        both = self.model.embed_tokens(torch.cat([prompt, token[:, None]], dim=1))
        prompts, tokens = both[:, :-1], both[:, -1:]
        is_fill = fills.reshape(()) > 0
        held = begin(lengths)  # all attention is in branches
        for layer in self.model.layers:
            prompts, tokens, held = layer(prompts, tokens, lengths, position, active, is_fill, held)
        column = torch.arange(prompt.shape[1]) == (lengths - 1)[:, None]
        ends = (prompts * column[:, :, None].to(prompts.dtype)).sum(dim=1)
        last = torch.where(is_fill, ends, tokens[:, 0])
        logits: torch.Tensor = self.lm_head(self.model.norm(last))
        return logits.float(), held


def greedy(logits: torch.Tensor) -> torch.Tensor:
    """(rows, vocabulary) -> (rows,)."""
    return logits.argmax(dim=-1)


def sampler(temperature: float, seed: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Draws tokens by their probabilities."""
    generator = torch.Generator().manual_seed(seed)

    def sample(logits: torch.Tensor) -> torch.Tensor:
        weights = torch.softmax(logits / temperature, dim=-1)
        return torch.multinomial(weights, 1, generator=generator)[:, 0]

    return sample


def generate(
    step: Step,
    batch: int,
    prompt_tokens: int,
    prompts: Sequence[Sequence[int]],
    n_new: int,
    sample: Callable[[torch.Tensor], torch.Tensor] = greedy,
    end: int | None = None,
) -> list[list[int]]:
    """Continue each prompt by n_new tokens, or up to the token `end`. Any number of prompts: where a text is
    complete its row takes the next prompt, while the other rows wait for one call.

    `step` is a Decoder, or what PopTorch made of one.
    """
    waiting = list(enumerate(prompts))
    texts: list[list[int]] = [[] for _ in prompts]
    rows: list[int | None] = [None] * batch  # which text each row has
    held = [0] * batch
    token = torch.zeros(batch, dtype=torch.int32)

    def call(fills: int, prompt: torch.Tensor, lengths: list[int], active: list[int]) -> None:
        logits, now_held = step(
            prompt,
            torch.tensor(lengths, dtype=torch.int32),
            token,
            torch.tensor(held, dtype=torch.int32),
            torch.tensor(active, dtype=torch.int32),
            torch.tensor([fills], dtype=torch.int32),
        )
        for row in range(batch):
            if lengths[row] >= 0:
                held[row] = lengths[row]
            held[row] += active[row]
        if now_held.tolist() != held:
            raise RuntimeError(f"rows must hold {held} positions, got {now_held.tolist()}")
        about = [
            (row, text)
            for row, text in enumerate(rows)
            if text is not None and (lengths[row] > 0 if fills else active[row])
        ]
        for (row, text), chosen in zip(about, sample(logits[[row for row, _ in about]])):
            texts[text].append(int(chosen))
            token[row] = int(chosen)
            if len(texts[text]) == n_new or int(chosen) == end:
                rows[row] = None

    nothing = torch.zeros(batch, prompt_tokens, dtype=torch.int32)
    while waiting or any(text is not None for text in rows):
        if waiting and None in rows:
            prompt, lengths = nothing.clone(), [-1] * batch
            for row in range(batch):
                if rows[row] is None and waiting:
                    rows[row], tokens = waiting.pop(0)
                    lengths[row] = len(tokens)
                    prompt[row, : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
                elif held[row] == 0:  # has no text yet: any token, since attention wants one
                    lengths[row] = 1
            call(1, prompt, lengths, [0] * batch)
        else:
            # A row whose text is complete keeps what it holds.
            call(0, nothing, [-1] * batch, [int(text is not None) for text in rows])
    return texts


def on_ipus(decoder: Decoder) -> Step:
    """The decoder, compiled by PopTorch for the IPUs it was made for."""
    from sparq_ipu.poptorch import load_library

    load_library()  # before PopTorch sees the model
    decoder.place()
    options = poptorch.Options()
    options.deviceIterations(1)
    options.setExecutionStrategy(poptorch.ShardedExecution(poptorch.AutoStage.SameAsIpu))
    compiled: Step = poptorch.inferenceModel(decoder.half(), options)
    return compiled


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ipu", action="store_true", help="compile with PopTorch and run on IPUs")
    parser.add_argument("--ipus", type=int, default=2, help="IPUs that layers are spread over")
    parser.add_argument("--checkpoint", help="folder of a Llama of transformers; without, random weights")
    parser.add_argument("--dense", action="store_true", help="dense attention instead of SparQ")
    parser.add_argument("--batch", type=int, default=2, help="rows, each with a text of its own")
    parser.add_argument("--capacity", type=int, default=512, help="most positions of one text")
    parser.add_argument("--prompt-tokens", type=int, default=48, help="most tokens of a prompt")
    parser.add_argument("--texts", type=int, default=3, help="(random) prompts, of several lengths")
    parser.add_argument("--new-tokens", type=int, default=16, help="tokens to generate for each")
    parser.add_argument("--rank", type=int, default=8, help="components that score positions (paper: r)")
    parser.add_argument("--top-k", type=int, default=32, help="positions attended to (paper: k)")
    parser.add_argument("--n-local", type=int, default=8, help="of these, the last ones (paper: l)")
    parser.add_argument("--index-bits", type=int, default=16, help="of the key index: 16, 8 or 4")
    parser.add_argument(
        "--memory", default="streaming", help="streaming or tiered; tiered needs --index-bits 8 or 4"
    )
    parser.add_argument("--temperature", type=float, default=0.0, help="0: the most likely token")
    parser.add_argument("--seed", type=int, default=0, help="of weights, prompts and sampling")
    a = parser.parse_args()
    if a.checkpoint and not (Path(a.checkpoint) / "config.json").is_file():
        parser.error(f"--checkpoint must be a folder with a config.json, got {a.checkpoint}")
    if a.ipu and poptorch is None:
        parser.error("--ipu must have PopTorch, which comes with the Poplar SDK, got none")

    torch.manual_seed(a.seed)
    settings = None if a.dense else {n: getattr(a, n) for n in SETTINGS}
    sizes = (a.batch, a.capacity, a.prompt_tokens, settings, a.ipus)
    if a.checkpoint:
        with needed("poptorch_pod.py", is_command=True):
            from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(a.checkpoint, local_files_only=True)
        decoder = Decoder.like(model, *sizes)
    else:
        decoder = Decoder(Shape(), *sizes).eval().requires_grad_(False)
    vocabulary = decoder.lm_head.out_features
    prompts = [
        torch.randint(vocabulary, (int(n),)).tolist()
        for n in torch.randint(1, a.prompt_tokens + 1, (a.texts,))
    ]
    sample = sampler(a.temperature, a.seed) if a.temperature else greedy
    start = time.perf_counter()
    step = on_ipus(decoder) if a.ipu else decoder
    with torch.no_grad():
        texts = generate(step, a.batch, a.prompt_tokens, prompts, a.new_tokens, sample)
    seconds = time.perf_counter() - start
    for prompt, text in zip(prompts, texts):
        print(f"{len(prompt):>4} tokens, then", *text)
    where = f"{a.ipus} IPUs, compilation included" if a.ipu else "CPU"
    print(f"{sum(map(len, texts))} tokens in {seconds:.2f} s ({where})")


if __name__ == "__main__":
    main()
