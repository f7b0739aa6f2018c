# SPDX-License-Identifier: Apache-2.0
"""Linear layers with weights of 4 and 8 bits on a CPU, beside PyTorch's in bfloat16.

    python bench/products.py --rows 1 32 256 1024

In one run, interleaved: int4 (E15), int4 whose zeros are 0 (as in GGUF's Q4_0), int8, and `torch.nn.Linear`.
Ours are compared with the reference bit for bit first, on fewer outputs. stdout: a JSON line for each;
stderr: a table.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import numpy as np
import torch
from lib.common import guarded
from lib.origin import repeat_command
from lib.rates import rows_of

from sparq_ipu.transformers.decoder.few_bits import FewBitsLinear, round_to_groups
from sparq_reference.few_bits import few_bits_product


def check_bits(n_rows: int, n_inputs: int) -> None:
    """Raises AssertionError where ours is not the reference."""
    linear = torch.nn.Linear(n_inputs, 32, bias=False).bfloat16()
    rows = torch.randn(n_rows, n_inputs).bfloat16()
    for bits in (4, 8):
        codes, scales = (part.numpy() for part in round_to_groups(linear.weight, bits))
        expected = few_bits_product(rows.float().numpy(), codes, scales, bits)
        ours = FewBitsLinear(linear, bits)(rows).float().numpy()
        assert np.array_equal(ours, expected), f"int{bits}: other bits than the reference"


def layers(n_inputs: int, n_outputs: int) -> dict[str, torch.nn.Module]:
    """What is timed, by name."""
    linear = torch.nn.Linear(n_inputs, n_outputs, bias=False).bfloat16()
    no_zeros = FewBitsLinear(linear, 4)
    no_zeros.packed[:, :, -32:] = 0
    return {
        "int4": FewBitsLinear(linear, 4),
        "int4, zeros 0": no_zeros,
        "int8": FewBitsLinear(linear, 8),
        "torch bfloat16": linear,
    }


@torch.inference_mode()
def run(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    of = layers(arguments.inputs, arguments.outputs)
    for n_rows in arguments.rows:
        check_bits(n_rows, arguments.inputs)
        # Sizes differ between groups, as in a model: 4 % of them have 16 bits with int4, 15 % with int8.
        torch.manual_seed(0)
        size = (0.8 * torch.randn(arguments.inputs // 32, 1)).exp()
        x = (torch.randn(n_rows, arguments.inputs // 32, 32) * size).flatten(1).bfloat16()
        operations = 2.0 * n_rows * arguments.inputs * arguments.outputs
        n_calls = max(1, round(2e9 / operations))

        def calls(layer: torch.nn.Module, x: torch.Tensor = x, n: int = n_calls) -> Any:
            return lambda: [layer(x) for _ in range(n)]

        timed = {name: (operations * n_calls, calls(layer)) for name, layer in of.items()}
        shape = dict(n_rows=n_rows, n_inputs=arguments.inputs, n_outputs=arguments.outputs)
        rows += rows_of(timed, arguments.repeats, arguments.command, **shape)
    return rows


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rows", type=int, nargs="+", default=[1, 32, 256, 1024], help="default 1 32 256 1024"
    )
    parser.add_argument("--inputs", type=int, default=2048, help="default 2048")
    parser.add_argument("--outputs", type=int, default=2048, help="default 2048")
    parser.add_argument("--repeats", type=int, default=7, help="timed calls of each (default 7)")
    words = sys.argv[1:] if words is None else words
    arguments = parser.parse_args(words)
    arguments.command = repeat_command("products.py", words)
    rows = run(arguments)
    for row in rows:
        print(json.dumps(row))
    print("layer            rows  GFLOP/s  (least, most)", file=sys.stderr)
    for row in rows:
        print(
            f"{row['method']:<15} {row['n_rows']:>5} {row['gflop_per_s']:>8.1f}"
            f"  ({row['least']:.1f}, {row['most']:.1f})",
            file=sys.stderr,
        )
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
