# SPDX-License-Identifier: Apache-2.0
"""Everything that the bits of a prompt's keys and values depend on."""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import json
import platform
import zlib
from pathlib import Path
from typing import Any

import torch
import transformers

from sparq_ipu import __version__
from sparq_ipu.transformers.integration import decoding
from sparq_ipu.transformers.settings.layers import PROMPT_BLOCKS_FROM

#: raised when prompts are read with other bits, or the files of `sparq_ipu.kept_prefixes` change
FORMAT = 7


def version_of(model: Any, how: str) -> str:
    """A text about the weights and config of an enabled model, the rows of its cache, the versions of
    programs, processor and threads. how: the command, since each cuts prompts into pieces in its own way."""

    def checksum(tensor: torch.Tensor) -> int:
        return zlib.crc32(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)

    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    with concurrent.futures.ThreadPoolExecutor(torch.get_num_threads()) as pool:
        sums = list(pool.map(checksum, tensors.values()))
    kinds = [(name, str(x.dtype), list(x.shape)) for name, x in tensors.items()]
    config = {name: value for name, value in model.config.to_dict().items() if not name.startswith("_")}
    weights = json.dumps([sums, kinds, config], sort_keys=True, default=str)
    cpu = platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        cpu = "\n".join(
            sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))})
        )
    return json.dumps(
        {
            "format": FORMAT,
            "weights": hashlib.sha256(weights.encode()).hexdigest(),
            "attention": model.config._attn_implementation,
            "row_bits": decoding(how, model).cache_options.get("row_bits", 16),
            "prompt_blocks": [decoding(how, model).prompt_blocks, PROMPT_BLOCKS_FROM],
            "how": how,
            "cpu": hashlib.sha256(cpu.encode()).hexdigest(),
            "threads": torch.get_num_threads(),
            "sparq_ipu": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        }
    )
