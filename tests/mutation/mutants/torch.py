# SPDX-License-Identifier: Apache-2.0
"""Mutants of what PyTorch, PopTorch and lm_eval call, and of several tokens in one step."""

from __future__ import annotations

from . import of

_TORCH = "tests/models/test_torch_attention.py tests/models/test_index_bits_torch.py"
_POPTORCH = "tests/models/test_poptorch_contract.py"

MUTANTS = [
    *of(
        "python/sparq_ipu/torch/attention.py",
        f"{_TORCH} tests/models/test_torch_window.py",
        [
            (
                "return output if query.dtype == torch.float16 else output.to(query.dtype)",
                "return output",
                "the output has another type than the query",
            ),
            (
                "(active.detach().numpy() != 0)",
                "(active.detach().numpy() > 1)",
                "an active row gets no token",
            ),
            (
                "self._cache.check_settings(op, settings)",
                "pass",
                "the first step stores its token and refuses then",
            ),
            (
                "keep = id(tensor) in cache and result.dtype != tensor.dtype",
                "keep = False",
                "model.to(bfloat16) rounds the cache",
            ),
            ("            self.value_sum.zero_()\n", "", "a reset keeps the sum of values"),
            ("tensor.copy_(tensor[rows])", "tensor.copy_(tensor)", "beams stay where they are"),
            (
                "counts = None if active is None else active.ne(0).to(torch.int64)",
                "counts = None",
                "rows that are not active get a token",
            ),
            (
                "beyond = tensor.isfinite() & tensor.to(torch.float16).isinf()",
                "beyond = tensor.isnan()",
                "a number beyond float16 is called infinite",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/torch/ops.py",
        _TORCH,
        [
            ("value_sum.copy_(torch.from_numpy(sums))", "pass", "the sum of values stays"),
            ("lengths.add_(torch.from_numpy(n_new))", "lengths.add_(1)", "every row grows by one"),
            (
                "if query is not None:\n        checks.check_not_empty",
                "if False:\n        checks.check_not_empty",
                "a token is stored before attention refuses",
            ),
            ("key[b, :, :n]\n", "key[0, :, :n]\n", "every row gets the keys of the first"),
            ("*values, index_bits\n", "*values, 16\n", "the operator has no key index"),
        ],
    ),
    *of(
        "python/sparq_ipu/poptorch/contract.py",
        _POPTORCH,
        [
            ("            value = int(value)\n", "            pass\n", "a flag travels as bool"),
            (
                "attributes = {**defaults, **attributes}",
                "attributes = {**attributes, **defaults}",
                "defaults replace what is given",
            ),
            ("sizes.setdefault(axis, size) == size", "True", "shapes that disagree pass"),
            (
                "if not least <= len(tensors) <= len(contracts):",
                "if len(tensors) > len(contracts):",
                "a missing tensor passes",
            ),
            (
                "    if dense:\n        check_choice",
                "    if False:\n        check_choice",
                "dense attention may have three tiers",
            ),
            ("if dtype != contract.dtype:", "if False:", "tensors of other types pass"),
        ],
    ),
    *of(
        "python/sparq_ipu/poptorch/attention.py",
        f"{_POPTORCH} tests/models/test_poptorch_pod.py",
        [
            ("replaced = lengths >= 0", "replaced = lengths > 0", "a length of 0 keeps the row"),
            (
                "held = cache.lengths.masked_fill(replaced, 0)",
                "held = cache.lengths.clone()",
                "prefill appends to what is there",
            ),
            ("return output.to(query.dtype), lengths", "return output, lengths", "the output is float16"),
            ("(*inputs, held.to(torch.int32))", "inputs", "operators are not put in order"),
            (
                "active = torch.ones(query.shape[0], dtype=torch.int32)",
                "active = torch.zeros(query.shape[0], dtype=torch.int32)",
                "by default no row gets a token",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/tokens.py",
        "tests/cpu/test_tokens.py",
        [
            (
                "        backend.append(key, value, n_tokens * everything)\n",
                "        backend.append(key, value, everything)\n",
                "one token of several is stored",
            ),
            ("    if key.shape[2] != n_tokens:", "    if False:", "more keys than queries pass"),
            ("if n_tokens > 1 and cache.device not in DEVICES:", "if False:", "an IPU takes several tokens"),
            (
                "output[:, :, index] = backend.attention(np.ascontiguousarray(query[:, :, index]), settings)",
                "output[:, :, index] = backend.attention(np.ascontiguousarray(query[:, :, 0]), settings)",
                "every token has the first one's query",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/transformers/stack.py",
        "tests/models/test_transformers_stack.py",
        [
            (
                "capacity = min(max(n_positions, 2 * self.cache.capacity), checks.MAX_CAPACITY)",
                "capacity = min(n_positions, checks.MAX_CAPACITY)",
                "a stack grows token by token",
                "results are the same; each token copies the caches",
            ),
            ("        self.cache.layer(index).reset()\n", "", "a layer keeps what the last text left"),
            ("if self._grows:\n", "if False:\n", "a stack does not grow"),
        ],
    ),
    *of(
        "python/sparq_ipu/lm_eval.py",
        "tests/models/test_lm_eval.py",
        [
            ("[-(self.max_length + 1) :][:-1]", "[-self.max_length :][:-1]", "a token too many is cut off"),
            (
                "len(continuation) + self._decoded_context, len(tokens) - 1",
                "len(continuation) + self._decoded_context, len(tokens)",
                "prefill may be empty",
            ),
            ("cache = copy.deepcopy(cache)", "pass", "an answer is decoded behind the one before"),
            (
                "logits = logits[-1:]",
                "logits = logits[:1]",
                "the first logits of prefill predict the answer",
                "they are used only where prefill is one token",
            ),
            (
                "(logits.argmax(dim=-1) == wanted).all()",
                "(logits.argmax(dim=-1) == wanted).any()",
                "one likely token is enough",
            ),
        ],
    ),
]
