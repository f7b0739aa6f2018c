# SPDX-License-Identifier: Apache-2.0
"""Attention of a prompt on a CPU: ours beside that of PyTorch, and beside PyTorch's best product.

    python bench/prompt.py --S 8192 --head-dim 64 128

In one run, interleaved: `sparq_ipu.prompt_attention` (E14) and PyTorch's scaled_dot_product_attention, both
in bfloat16 and float32, and a product of 2048 x 2048 matrices, of the faster type: what the processor can do.
Ours is compared with the reference bit for bit first, on a shorter text. Rates count the causal half,
2 * S^2 * head_dim operations a head. stdout: a JSON line for each; stderr: a table.
"""

from __future__ import annotations

import argparse
import json
import sys
import timeit
from typing import Any, Callable

import numpy as np
import torch
from lib.common import guarded
from lib.origin import repeat_command
from lib.rates import rows_of

from sparq_ipu.torch.prompt import prompt_attention
from sparq_reference import prompt

PRODUCT = 2048


def check_bits(head_dim: int) -> None:
    """Raises AssertionError where ours is not the reference."""
    query, key, value = (torch.randn(1, heads, 200, head_dim) for heads in (2, 1, 1))
    got = prompt_attention(query, key, value).numpy()
    expected = prompt.prompt_attention(query.numpy(), key.numpy(), value.numpy())
    assert np.array_equal(got.view(np.uint32), expected.view(np.uint32)), "other bits than the reference"


def faster_type() -> torch.dtype:
    """The type that PyTorch multiplies faster: bfloat16 takes minutes where there is no AVX-512."""

    def seconds(dtype: torch.dtype) -> float:
        square = torch.ones(256, 256, dtype=dtype)
        return min(timeit.repeat(lambda: square @ square, number=1, repeat=3))

    return min((torch.bfloat16, torch.float32), key=seconds)


def methods(seq_len: int, n_heads: int, n_kv_heads: int, head_dim: int) -> dict[str, tuple[float, Any]]:
    """Operations of one call, and the call, by name."""
    shapes = [(1, heads, seq_len, head_dim) for heads in (n_heads, n_kv_heads, n_kv_heads)]
    wide = [torch.randn(shape) for shape in shapes]
    narrow = [x.to(torch.bfloat16) for x in wide]
    square = torch.randn(PRODUCT, PRODUCT).to(faster_type())

    def sdpa(tensors: list[torch.Tensor]) -> Callable[[], Any]:
        return lambda: torch.nn.functional.scaled_dot_product_attention(
            *tensors, is_causal=True, enable_gqa=n_heads != n_kv_heads
        )

    operations = 2.0 * seq_len**2 * head_dim * n_heads
    return {
        "prompt_attention": (operations, lambda: prompt_attention(*narrow)),
        "prompt_attention float32": (operations, lambda: prompt_attention(*wide)),
        "torch bfloat16": (operations, sdpa(narrow)),
        "torch float32": (operations, sdpa(wide)),
        f"product {str(square.dtype)[6:]}": (2.0 * PRODUCT**3, lambda: square @ square),
    }


def run(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for head_dim in arguments.head_dim:
        check_bits(head_dim)
        for seq_len in arguments.S:
            calls = methods(seq_len, arguments.heads, arguments.kv_heads, head_dim)
            shape = dict(seq_len=seq_len, head_dim=head_dim)
            heads = dict(n_heads=arguments.heads, n_kv_heads=arguments.kv_heads)
            rows += rows_of(calls, arguments.repeats, arguments.command, **shape, **heads)
    return rows


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--S", type=int, nargs="+", default=[8192], help="positions (default 8192)")
    parser.add_argument("--head-dim", type=int, nargs="+", default=[64, 128], help="default 64 128")
    parser.add_argument("--heads", type=int, default=8, help="query heads (default 8)")
    parser.add_argument("--kv-heads", type=int, default=2, help="KV heads (default 2)")
    parser.add_argument("--repeats", type=int, default=5, help="timed calls of each (default 5)")
    words = sys.argv[1:] if words is None else words
    arguments = parser.parse_args(words)
    arguments.command = repeat_command("prompt.py", words)
    rows = run(arguments)
    for row in rows:
        print(json.dumps(row))
    print(
        "method                    head_dim  seq_len  GFLOP/s  (least, most)   of the product",
        file=sys.stderr,
    )
    for row in rows:
        product = next(
            r["gflop_per_s"]
            for r in rows
            if r["method"].startswith("product")
            and (r["head_dim"], r["seq_len"]) == (row["head_dim"], row["seq_len"])
        )
        print(
            f"{row['method']:<25} {row['head_dim']:>8} {row['seq_len']:>8} {row['gflop_per_s']:>8.1f}"
            f"  ({row['least']:.1f}, {row['most']:.1f})   {row['gflop_per_s'] / product:.2f}",
            file=sys.stderr,
        )
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
