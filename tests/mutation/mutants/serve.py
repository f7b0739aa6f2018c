# SPDX-License-Identifier: Apache-2.0
"""Mutants of the server."""

from __future__ import annotations

from . import of

_API = "tests/models/test_serve_api.py"
_ENGINE = "tests/models/test_serve_engine.py"
_PARTS = "tests/models/test_serve_parts.py"
_PROCESS = "tests/models/test_serve_process.py"

MUTANTS = [
    *of(
        "python/sparq_ipu/serve/answers.py",
        f"{_API}::test_seeds_and_choices {_API}::test_stop_strings",
        [
            (
                "n_new = sum(end.n_new for end in ends)",
                "n_new = ends[0].n_new",
                "of several choices the tokens of one are counted",
            ),
            (
                '{"index": index, "finish_reason": end.reason}',
                '{"index": index, "finish_reason": "length"}',
                "an answer that a stop string ended says that it was cut",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/serve/api.py",
        f"{_API}::test_clients_that_vanish_free_their_places {_API}::test_too_many_get_429",
        [
            (
                "            engine.cancel(request)",
                "            pass",
                "the answer of a client that is gone goes on",
            ),
            ("503 if refused.is_closing else 429", "503", "a full server looks as if it ended"),
        ],
    ),
    *of(
        "python/sparq_ipu/serve/command.py",
        f"{_PROCESS}::test_it_listens_to_this_machine_alone_by_default",
        [('"--host", default="127.0.0.1"', '"--host", default="0.0.0.0"', "it listens to all machines")],
    ),
    *of(
        "python/sparq_ipu/serve/command.py",
        f"{_PROCESS}::test_the_thread_that_loads_the_model_ends",
        [("loader.submit(_build, arguments).result()", "_build(arguments)", "two threads have helpers")],
    ),
    *of(
        "python/sparq_ipu/serve/command.py",
        f"{_PROCESS}::test_threads_wait_actively_for_a_short_time",
        [("os.environ.setdefault(*_SPINS)", "pass", "threads wait actively for long")],
    ),
    *of(
        "python/sparq_ipu/serve/contexts.py",
        f"{_ENGINE}::test_logits_are_the_same_bits_in_any_company "
        f"{_ENGINE}::test_a_beginning_is_copied_from_a_longer_text "
        f"{_ENGINE}::test_all_places_are_written_at_the_start",
        [
            (
                "            self.read(place, [0], 0)\n",
                "            self.read(0, [0], 0)\n",
                "who gets a place waits until the system gives its memory",
            ),
            (
                "with self._rows(self._step_rows):\n            return self._forward([[token]",
                "with self._rows(None):\n            return self._forward([[token]",
                "products of a step have as many rows as there are texts",
            ),
            (
                "self._cache.keep([target], [length])",
                "pass",
                "a copy has also what is behind the shared beginning",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/serve/engine.py",
        f"{_ENGINE}::test_a_long_prompt_does_not_hold_up_others {_ENGINE}::test_a_prefix_is_not_read_again "
        f"{_ENGINE}::test_lossless_says_what_dense_attention_says "
        f"{_ENGINE}::test_a_step_comes_before_the_layer_that_would_end_too_late "
        f"{_ENGINE}::test_a_layer_takes_no_longer_than_others_wait",
        [
            (
                "if self._writing and until - self._step_at",
                "if False and until - self._step_at",
                "a prompt holds up others",
            ),
            ("until = now + self._layer_seconds", "until = now", "a step waits for a layer that is too late"),
            (
                "min(max(len(self._reading) / len(self._writing), 1.0), MOST_READERS)",
                "max(len(self._reading) / len(self._writing), 1.0)",
                "who writes waits the longer the more are read",
            ),
            (
                "return min(max(n, ALIGNMENT), PIECE)",
                "return PIECE",
                "a layer takes longer than others wait",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/serve/guard.py",
        f"{_API}::test_bodies_that_are_too_large {_API}::test_an_api_key",
        [
            ("if n_bytes > self._max_bytes:", "if False:", "a body in pieces may be of any length"),
            (
                'hmac.compare_digest(given, b"Bearer " + self._api_key)',
                'given.startswith(b"Bearer " + self._api_key)',
                "a key may go on",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/serve/metrics.py",
        f"{_API}::test_models_health_metrics",
        [('"between_tokens_seconds", "From', '"between_seconds", "From', "a figure has another name")],
    ),
    *of(
        "python/sparq_ipu/serve/prefixes.py",
        _PARTS,
        [
            (
                "len(tokens) - 1) // multiple_of",
                "len(tokens)) // multiple_of",
                "no token is left to ask after",
            ),
            ('if message["role"] == "user":', "if False:", "a later turn goes to another machine"),
        ],
    ),
    *of(
        "python/sparq_ipu/serve/process.py",
        f"{_PROCESS}::test_sigterm_in_the_middle_finishes_what_has_begun",
        [
            (
                "threading.Thread(target=self._engine.close, daemon=True).start()",
                "pass",
                "who waits for a place is not refused when the server ends",
            )
        ],
    ),
    *of(
        "python/sparq_ipu/serve/products.py",
        f"{_ENGINE}::test_logits_are_the_same_bits_in_any_company",
        [("if n_tokens % n:", "if False:", "the last rows of a product are not filled up")],
    ),
    *of(
        "python/sparq_ipu/serve/products.py",
        "tests/models/test_pieces.py",
        [
            (
                "if torch.equal(_multiply(rows, weight, bias, n, m), few))",
                "if m)",
                "products have more rows though it changes their bits",
            ),
            (
                "self._is_any[kind] = all(",
                "self._is_any[kind] = any(",
                "products have fewer rows though it changes their bits",
            ),
            (
                '(module, "many_rows"))',
                '(module, "forward"))',
                "weights of few bits are not multiplied together",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/serve/products.py",
        "tests/models/test_serve_trials.py",
        [
            (
                "sign * numbers[:, order]",
                "numbers[:, order].flip(1)",
                "a trial of products has sums that are far from 0",
            ),
            (
                "rows[:few, None], weight, bias)[:, 0]",
                "rows, weight, bias)[:few]",
                "fewer rows are not tried",
            ),
        ],
    ),
    *of(
        "python/sparq_ipu/serve/prompts.py",
        f"{_API}::test_seeds_and_choices",
        [("top_p, seed + choice, n_top", "top_p, seed, n_top", "all choices of a request are the same")],
    ),
    *of(
        "python/sparq_ipu/serve/ray_deployment.py",
        "tests/models/test_serve_ray.py",
        [("            task.cancel()", "            pass", "a machine goes on for a client that is gone")],
    ),
    *of(
        "python/sparq_ipu/serve/sampling.py",
        _PARTS,
        [
            (
                "self.sampling.top_p)) + 1]",
                "self.sampling.top_p))]",
                "top_p leaves out the token that reaches it",
            ),
            ("if self.sampling.temperature == 0:", "if False:", "temperature 0 divides by zero"),
        ],
    ),
    *of(
        "python/sparq_ipu/serve/schemas.py",
        f"{_API}::test_wrong_fields",
        [("if value not in _FIXED[name]:", "if False:", "a field that is not there is taken for granted")],
    ),
    *of(
        "python/sparq_ipu/serve/text.py",
        _PARTS,
        [("n_back = 0 if is_last else max(", "n_back = 0 and max(", "half a stop string is given away")],
    ),
]
