# SPDX-License-Identifier: Apache-2.0
"""lm-evaluation-harness over an enabled model: every token that its tasks score comes from SparQ attention.

    python -m sparq_study.lm_eval run --model sparq --tasks ... --model_args pretrained=DIR,rank=32,top_k=128
    python -m sparq_study.lm_eval run --model sparq --tasks ... --model_args pretrained=DIR,attention=dense

The rest of the command line is lm_eval's own. From Python: `lm_eval.simple_evaluate(SparqLM(model,
tokenizer=tokenizer, rank=32, top_k=128), tasks=[...])`.

lm_eval scores a continuation by one forward pass over context and continuation. That is prefill, in which
attention is dense. Here the context but for its last token is prefill, and the tokens after it are decode
steps, each with a selection of its own. So every token that is scored was predicted by a decode step.
Generation is `model.generate`, whose first token comes from prefill.

Needs `pip install . './study[lm-eval]'` in a checkout (Python 3.11).
"""

from __future__ import annotations

import copy
from typing import Any, List, Sequence, Tuple

import torch
import transformers
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from tqdm import tqdm

from sparq_ipu.models import load_model
from sparq_ipu.transformers import LayerSettings, enable, enable_dense, quantise_weights
from sparq_ipu.transformers.decoder.weights import check_weights
from sparq_reference import checks

#: how a model may attend: SparQ, dense over the same cache, or as it is without this package
ATTENTION = ("sparq", "dense", "own")
#: the key of a request in lm_eval, its context's tokens, its continuation's tokens
Request = Tuple[Any, List[int], List[int]]
#: settings that may differ by layer, in text
_LAYER_WORDS = {"dense": None, "no-mean-value": {"mean_value": False}}


def _layers(text: str) -> dict[int, Any]:
    """`"0:dense 1:no-mean-value"` -> the `layers` argument of `sparq_ipu.transformers.enable`."""
    layers = {}
    for part in text.replace(",", " ").split():
        index, _, word = part.partition(":")
        if not index.isdigit() or word not in _LAYER_WORDS:
            checks.fail("SparqLM", "layers", f"be LAYER:{' or '.join(_LAYER_WORDS)}", repr(part))
        layers[int(index)] = _LAYER_WORDS[word]
    return layers


@register_model("sparq")
class SparqLM(HFLM):  # type: ignore[misc]
    """A model of lm_eval that decodes through `sparq_ipu.transformers`.

    Args:
        pretrained: a model, a name or path as lm_eval takes it, or "smollm2".
        attention: "sparq", "dense" (`enable_dense`, the control), or "own": lm_eval's own way.
        layers: what differs by layer, as `enable` takes it, or as text: "0:dense 1:no-mean-value".
        decoded_context: how many more tokens at the end of each context are decode steps too.
        tokens_per_step: of decode steps that are taken together, with the same result; 1 on an IPU.
        attention_device: where the KV cache is, as `device` of `enable`. The model is on the CPU.
        published: settings that are not given are the published ones, not those recommended.
        weights: "int8" or "int4", as `quantise_weights`, whatever the attention; the model is in bfloat16.
        prompt_blocks: as of `enable`; of "dense" too.
        options: settings of `enable` (rank, top_k, index_bits, ...), and what lm_eval's HFLM takes (dtype,
            max_length, batch_size, ...). A batch is for generation alone.

    Raises:
        ValueError: `SparqLM: <argument> must <rule>, got <value>`; what `enable` raises.
    """

    def __init__(
        self,
        pretrained: Any,
        *,
        attention: str = "sparq",
        layers: Any = None,
        published: bool = False,
        decoded_context: int = 0,
        tokens_per_step: int = 32,
        attention_device: str = "auto",
        weights: str | None = None,
        prompt_blocks: float | None = None,
        **options: Any,
    ) -> None:
        if attention not in ATTENTION:
            checks.fail("SparqLM", "attention", f"be one of {', '.join(ATTENTION)}", repr(attention))
        self._decoded_context = checks.check_integer(
            "SparqLM", "decoded_context", decoded_context, 0, checks.MAX_CAPACITY
        )
        self._attention, self._tokens_per_step = attention, tokens_per_step
        given = LayerSettings.take(options)
        if isinstance(layers, str):
            layers = _layers(layers)
        if attention != "sparq" and (given or layers or published):
            checks.fail("SparqLM", "attention", "be sparq where it has settings", repr(attention))
        if weights is not None:
            check_weights("SparqLM", weights)
            options.setdefault("dtype", "bfloat16")
        if pretrained == "smollm2":
            pretrained, options["tokenizer"] = load_model(pretrained, options.pop("dtype", "float32"))
        super().__init__(pretrained, **{"device": "cpu", **options})
        if weights is not None:
            quantise_weights(self.model, weights, op="SparqLM")
        common: dict[str, Any] = dict(
            device=attention_device, tokens_per_step=tokens_per_step, prompt_blocks=prompt_blocks
        )
        if attention == "sparq":
            enable(self.model, layers=layers, published=published, **given, **common)
        elif attention == "dense":
            enable_dense(self.model, **common)

    def _loglikelihood_tokens(
        self, requests: Sequence[Request], disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list[tuple[float, bool]]:
        """(sum of log probabilities, whether each token is the likeliest) of each continuation."""
        if self._attention == "own":
            answers: list[tuple[float, bool]] = super()._loglikelihood_tokens(
                requests, disable_tqdm=disable_tqdm, override_bs=override_bs
            )
            return answers
        split = [self._split(context, continuation) for _, context, continuation in requests]
        # neighbours share what is prefill: the answers of a multiple choice have one context
        order = sorted(range(len(requests)), key=lambda i: split[i][0])
        found: dict[int, tuple[float, bool]] = {}
        held: tuple[list[int], Any, Any] | None = None
        for place, i in enumerate(tqdm(order, disable=disable_tqdm, desc="loglikelihood")):
            prefill, decoded = split[i]
            if held is None or held[0] != prefill:
                held = (prefill, *self._forward(prefill, transformers.DynamicCache(config=self.config)))
            _, logits, cache = held
            if place + 1 < len(order) and split[order[place + 1]][0] == prefill:
                cache = copy.deepcopy(cache)
            else:
                held = None
            logits = logits[-1:]
            for start in range(0, len(decoded), self._tokens_per_step):
                step = decoded[start : start + self._tokens_per_step]
                logits = torch.cat([logits, self._forward(step, cache)[0]])
            request, _, continuation = requests[i]
            found[i] = self._score(logits[-len(continuation) :], continuation)
            if request is not None:
                self.cache_hook.add_partial("loglikelihood", request, found[i])
        return [found[i] for i in range(len(requests))]

    def _split(self, context: list[int], continuation: list[int]) -> tuple[list[int], list[int]]:
        """Tokens of prefill, at least one, and those of decode steps. Too many are cut off on the left."""
        tokens = [*context, *continuation][-(self.max_length + 1) :][:-1]
        n_decoded = min(len(continuation) + self._decoded_context, len(tokens) - 1)
        return tokens[: len(tokens) - n_decoded], tokens[len(tokens) - n_decoded :]

    def _forward(self, tokens: list[int], cache: Any) -> tuple[torch.Tensor, Any]:
        """Logits (n, vocabulary) in float32 of n tokens, and the cache that has them too."""
        with torch.no_grad():
            out = self.model(torch.tensor([tokens]), cache=cache, use_cache=True)
        return out.logits[0].float(), out.cache

    @staticmethod
    def _score(logits: torch.Tensor, tokens: list[int]) -> tuple[float, bool]:
        wanted = torch.tensor(tokens)
        chosen = torch.log_softmax(logits, dim=-1).gather(1, wanted[:, None])
        return float(chosen.sum()), bool((logits.argmax(dim=-1) == wanted).all())


def main() -> None:
    """lm_eval's command line, which then knows the model "sparq"."""
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()


if __name__ == "__main__":
    main()
