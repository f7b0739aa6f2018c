# SPDX-License-Identifier: Apache-2.0
"""Objects of sources, kept in a .gp so that others can be linked with them.

A .gp is a shared library, which a linker can not take apart. So the objects it is made from follow it in the
file, as an archive that neither the loader nor the linker looks at. Not on macOS, where a library is signed
as a whole.
"""

from __future__ import annotations

import os
import sys
import zipfile
from typing import Mapping

from vertices import PopcError


def append_objects(library: str, objects: Mapping[str, str]) -> None:
    """Adds the objects (file by unit name) to `library`."""
    if sys.platform == "darwin":
        return
    with zipfile.ZipFile(library, "a", zipfile.ZIP_DEFLATED) as archive:
        for name, path in objects.items():
            archive.writestr(zipfile.ZipInfo(name + ".o"), read(path), zipfile.ZIP_DEFLATED)


def extract_objects(library: str, folder: str) -> dict[str, str]:
    """Writes the objects of `library` to `folder`: file by unit name."""
    try:
        with zipfile.ZipFile(library) as archive:
            return {os.path.splitext(n)[0]: archive.extract(n, folder) for n in archive.namelist()}
    except zipfile.BadZipFile as e:
        raise PopcError(f"a .gp to link must be made by popc (not on macOS), got '{library}'") from e


def read(path: str) -> bytes:
    with open(path, "rb") as f:
        return f.read()
