# SPDX-License-Identifier: Apache-2.0
"""Counters and times of a server, for Prometheus: docs/serve.md has the table."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0)


class Metrics:
    """The metrics of one engine, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        of: Any = dict(registry=self._registry, namespace="sparq_ipu")
        self.requests = Counter(
            "requests", "Requests that ended: stop, length, cancelled, failed, refused.", ["outcome"], **of
        )
        self.prompt_tokens = Counter(
            "prompt_tokens", "Tokens of prompts: read, or held from before.", ["how"], **of
        )
        self.new_tokens = Counter("new_tokens", "Tokens generated.", **of)
        self.running = Gauge("running", "Requests that have a place.", **of)
        self.waiting = Gauge("waiting", "Requests that wait for a place.", **of)
        self.first_token = Histogram(
            "first_token_seconds", "From a request to its first token.", buckets=_SECONDS, **of
        )
        self.between_tokens = Histogram(
            "between_tokens_seconds", "From a token to the next of the same text.", buckets=_SECONDS, **of
        )

    def text(self) -> bytes:
        """In the format of Prometheus."""
        return generate_latest(self._registry)
