# SPDX-License-Identifier: Apache-2.0
"""A small decoder with SparQ attention for PopTorch: one token per call, KV caches in streaming memory.

    python examples/poptorch_decoder.py                      # here, in plain PyTorch
    python examples/poptorch_decoder.py --ipu                # on an IPU, through PopTorch

The weights are random, so the tokens mean nothing; the point is the shape of the program. Prompts go in token
by token, as generation does: one executable serves both, and the cache starts empty where `first` says so.
"""

from __future__ import annotations

import argparse
import time
from typing import Any, Callable

from sparq_ipu.commands.extras import needed

with needed("poptorch_decoder.py", is_command=__name__ == "__main__"):
    import torch

    from sparq_ipu.poptorch import DenseAttention, SparqAttention


class Layer(torch.nn.Module):
    """Attention and MLP, pre-norm, grouped-query heads. Inputs and outputs: (batch, n_heads * head_dim)."""

    def __init__(self, attention: SparqAttention | DenseAttention, n_heads: int):
        super().__init__()
        self.attention = attention
        n_kv_heads, head_dim = attention.n_kv_heads, attention.head_dim
        width = n_heads * head_dim
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(2))
        self.query = torch.nn.Linear(width, width, bias=False)
        self.key = torch.nn.Linear(width, n_kv_heads * head_dim, bias=False)
        self.value = torch.nn.Linear(width, n_kv_heads * head_dim, bias=False)
        self.output = torch.nn.Linear(width, width, bias=False)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
        batch, heads = x.shape[0], (-1, self.attention.head_dim)
        h = self.norms[0](x)
        query = self.query(h).reshape(batch, *heads)
        key = self.key(h).reshape(batch, *heads)
        value = self.value(h).reshape(batch, *heads)
        # lengths: 0 empties the row, -1 leaves it as it is. No token is stored here.
        held = self.attention.fill(key.unsqueeze(2), value.unsqueeze(2), first - 1)
        attended = self.attention(query, key, value, held=held)
        x = x + self.output(attended.reshape(batch, -1))
        y: torch.Tensor = x + self.mlp(self.norms[1](x))
        return y


class Decoder(torch.nn.Module):
    """Next-token logits of one token per batch row, greedily turned into the next token.

    Args:
        settings: those of `SparqAttention`: rank, top_k and so on; None is dense attention.
    """

    def __init__(
        self,
        batch: int,
        capacity: int,
        settings: dict[str, Any] | None,
        vocabulary: int = 256,
        n_layers: int = 2,
        n_heads: int = 8,
        n_kv_heads: int = 2,
        head_dim: int = 32,
    ):
        super().__init__()
        width = n_heads * head_dim
        self.embedding = torch.nn.Embedding(vocabulary, width)
        self.positions = torch.nn.Embedding(capacity, width)
        shape = (batch, n_kv_heads, head_dim, capacity)
        self.layers = torch.nn.ModuleList()
        for index in range(n_layers):
            attention: SparqAttention | DenseAttention
            if settings is None:
                attention = DenseAttention(*shape, cache_name=f"layer{index}")
            else:
                attention = SparqAttention(*shape, cache_name=f"layer{index}", **settings)
            self.layers.append(Layer(attention, n_heads))
        self.head = torch.nn.Linear(width, vocabulary, bias=False)

    def forward(self, token: torch.Tensor, position: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
        """Args:
            token: (batch,) int32. position: (batch,) int32, of this token. first: (batch,) int32, 1 where a
                text begins.
        Returns: (batch,) int32, the most likely next token.
        """
        x = self.embedding(token) + self.positions(position)
        for layer in self.layers:
            x = layer(x, first)
        following: torch.Tensor = self.head(x).argmax(dim=-1).to(torch.int32)
        return following


def generate(step: Callable[..., torch.Tensor], prompt: torch.Tensor, n_new: int) -> torch.Tensor:
    """Greedy continuation of prompt (batch, n_tokens) int32 -> (batch, n_new) int32.

    `step` is a Decoder, or what PopTorch made of one.
    """
    batch, n_prompt = prompt.shape
    generated = []
    token = prompt[:, 0]
    for position in range(n_prompt + n_new - 1):
        full = torch.full((batch,), position, dtype=torch.int32)
        following = step(token, full, (full == 0).to(torch.int32))
        if position + 1 < n_prompt:
            token = prompt[:, position + 1]
        else:
            token = following
            generated.append(following)
    return torch.stack(generated, dim=1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ipu", action="store_true", help="compile with PopTorch and run on an IPU")
    parser.add_argument("--dense", action="store_true", help="dense attention instead of SparQ")
    parser.add_argument("--batch", type=int, default=2, help="texts at a time")
    parser.add_argument("--capacity", type=int, default=512, help="most positions of one text")
    parser.add_argument(
        "--rank", type=int, default=8, help="query components that score positions (paper: r)"
    )
    parser.add_argument("--top-k", type=int, default=32, help="positions attended to (paper: k)")
    parser.add_argument("--n-local", type=int, default=8, help="of these, the last ones (paper: l)")
    parser.add_argument("--prompt-tokens", type=int, default=48, help="tokens of the (random) prompt")
    parser.add_argument("--new-tokens", type=int, default=16, help="tokens to generate")
    parser.add_argument("--seed", type=int, default=0, help="of weights and prompt")
    arguments = parser.parse_args()

    torch.manual_seed(arguments.seed)
    settings = {"rank": arguments.rank, "top_k": arguments.top_k, "n_local": arguments.n_local}
    model = Decoder(arguments.batch, arguments.capacity, None if arguments.dense else settings).eval()
    step: Callable[..., torch.Tensor] = model
    if arguments.ipu:
        try:
            import poptorch  # type: ignore[import-not-found]
        except ImportError as error:
            parser.error(f"--ipu must have PopTorch, which comes with the Poplar SDK, got {error}")
        from sparq_ipu.poptorch import load_library

        load_library()  # before PopTorch sees the model
        options = poptorch.Options()
        options.deviceIterations(1)
        step = poptorch.inferenceModel(model.half(), options)
    prompt = torch.randint(256, (arguments.batch, arguments.prompt_tokens), dtype=torch.int32)
    start = time.perf_counter()
    with torch.no_grad():
        tokens = generate(step, prompt, arguments.new_tokens)
    seconds = time.perf_counter() - start
    for row in tokens.tolist():
        print(*row)
    steps = arguments.prompt_tokens + arguments.new_tokens - 1
    where = "IPU, compilation included" if arguments.ipu else "CPU"
    print(f"{steps} steps in {seconds:.2f} s ({where})")


if __name__ == "__main__":
    main()
