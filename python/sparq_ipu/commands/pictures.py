# SPDX-License-Identifier: Apache-2.0
"""Pictures with a digest of the rows that they show: a test can tell when one is older than its rows."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

#: the name of the digest among the texts of a PNG
KEY = "Rows"


def digest(shown: Any) -> str:
    """A name for what a picture shows: anything that JSON can hold."""
    return hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()[:32]


def save(figure: Any, path: Path, shown: Any, **options: Any) -> Path:
    """Write a PNG of a matplotlib figure, with the digest of what it shows inside, and close the figure."""
    from matplotlib import pyplot

    figure.savefig(path, format="png", metadata={KEY: digest(shown)}, **options)
    pyplot.close(figure)
    return path
