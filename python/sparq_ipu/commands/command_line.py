# SPDX-License-Identifier: Apache-2.0
"""What the command lines of the package and of bench/ share: types of options, and how a command ends that is
interrupted or can not write. See `sparq_ipu.commands.cli`."""

from __future__ import annotations

import argparse
import errno
import os
import stat
import sys
from pathlib import Path
from typing import Callable, Mapping, NoReturn

#: exit statuses as a shell has them for SIGINT and SIGPIPE
INTERRUPTED, CLOSED = 130, 141


def guarded(command: Callable[..., int], *arguments: object) -> int:
    """The exit status of a command. Where it is interrupted, its output is closed, or a file can not be read
    or written, it ends with at most one line and no traceback."""
    name = Path(sys.argv[0]).stem
    if sys.stdin is None:
        os.open(os.devnull, os.O_RDONLY)  # or a socket would have the number of the input
    if sys.stderr is None:  # closed by the shell
        sys.stderr = open(os.devnull, "w")
    if sys.stdout is None:
        print(f"{name}: standard output must be open, got a closed one", file=sys.stderr)
        return 1
    try:
        status = command(*arguments)
        sys.stdout.flush()  # what fails at the end of the process is a traceback
        return status
    except KeyboardInterrupt:
        line, status = f"\n{name}: interrupted", INTERRUPTED
    except BrokenPipeError:
        line, status = "", CLOSED
    except OSError as error:
        line = f"\n{name}: {error.strerror or error}: {error.filename or 'standard output'}"
        status = 1
    try:  # the rest of the buffer goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        pass  # not a file
    if line:
        print(line, file=sys.stderr)
    return status


class Parser(argparse.ArgumentParser):
    """Whose errors are one line: the usage of a command with many options would hide them."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def refuse(
    parser: argparse.ArgumentParser,
    a: argparse.Namespace,
    where: str,
    *arguments: str,
    usual: Mapping[str, object] | None = None,
) -> None:
    """End with a message for the first of these arguments, by the names in `a`, that was given.

    Args:
        where: when they would change nothing, for the message.
        usual: values that may be given all the same; else the default.
    """
    for name in arguments:
        value, so = getattr(a, name, None), {**(usual or {})}.get(name, parser.get_default(name))
        if value not in (None, so, [so]):
            actions = (action for action in parser._actions if action.dest == name)
            action = next(action for action in actions if action.const in (None, value))
            flag = (action.option_strings or [str(action.metavar)])[0]
            parser.error(f"{flag} must be left out {where}, got {flag if isinstance(value, bool) else value}")


def only(parser: argparse.ArgumentParser, a: argparse.Namespace, flag: str, *others: str) -> None:
    """Refuse every argument that was given but that of `flag` and `others`: the rest would change nothing."""
    taken = {"help", flag.strip("-").replace("-", "_"), *others}
    refuse(parser, a, f"with {flag}", *(x.dest for x in parser._actions if x.dest not in taken))


def number(
    kind: type[int] | type[float], rule: str, is_valid: Callable[[float], bool]
) -> Callable[[str], float]:
    """The type of an option that is a number; `rule`: what it must be, for messages."""

    def parse(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not is_valid(value):
            raise argparse.ArgumentTypeError(f"must be {rule}, got {text!r}")
        return value

    return parse


positive_integer = number(int, "a positive integer", lambda n: n > 0)
#: far more than processors: the system may refuse to start them, and PyTorch crashes then
thread_count = number(int, "an integer in [1, 1024]", lambda n: 0 < n <= 1024)


def try_writing(path: Path) -> None:
    """Raise OSError unless a file can be written: there is room on its disk, or its device takes a byte."""
    is_new = not path.exists()
    with path.open("ab") as file:
        is_device = stat.S_ISCHR(os.fstat(file.fileno()).st_mode)
        file.write(b"\n" if is_device and not file.isatty() else b"")
    if is_new:
        path.unlink()
    if not is_device and os.statvfs(path.parent).f_bavail == 0:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def output_path(text: str) -> Path:
    """A path that can be written: it is written last, when a long run would be lost."""
    try:
        try_writing(Path(text))
    except OSError:
        raise argparse.ArgumentTypeError(f"must be a file that can be written, got {text!r}") from None
    return Path(text)


def check_output(parser: argparse.ArgumentParser, flag: str, path: Path | None) -> None:
    """Refuse a path that can not be written, before the work."""
    try:
        if path is not None:
            try_writing(path)
    except OSError as error:
        parser.error(f"{flag} must be a file that can be written, got {str(path)!r}: {error.strerror}")


def append_line(path: Path, line: str) -> None:
    """Add a line to a file; an error names it."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def read_text(op: str, option: str, path: Path) -> str:
    """The text of the file that an option names; "-" is standard input."""
    try:
        if str(path) == "-":
            if sys.stdin is None:
                raise OSError(errno.EBADF, "it is closed")
            return sys.stdin.buffer.read().decode("utf-8")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        rule = "must be a file of UTF-8 text that can be read"
        raise ValueError(f"{op}: {option} {rule}, got {path} ({reason})") from None
