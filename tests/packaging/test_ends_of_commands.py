# SPDX-License-Identifier: Apache-2.0
"""How commands end that are interrupted or can not write: one line, a status, no traceback."""

from __future__ import annotations

import argparse
import errno
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sparq_ipu.commands import cli
from sparq_ipu.commands.command_line import guarded, output_path, read_text

ROOT = Path(__file__).resolve().parents[2]
STUB = "import sys, time; from sparq_ipu.commands.command_line import guarded\n"


def test_every_command_is_guarded() -> None:
    folders = ("python/sparq_ipu", "bench", "study")
    every = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    mains = [path for path in every if '__name__ == "__main__"' in path.read_text(encoding="utf-8")]
    bare = [p.name for p in mains if not re.search(r"guarded\(main", p.read_text(encoding="utf-8"))]
    assert len(mains) > 15 and bare == ["lm_eval.py"]  # which runs a command of lm_eval


@pytest.mark.parametrize(
    "error, status, words",
    [
        (KeyboardInterrupt(), 130, ": interrupted"),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), 141, None),
        (OSError(errno.ENOSPC, "No space left on device", "rows"), 1, ": No space left on device: rows"),
        (OSError(errno.ENOSPC, "No space left on device"), 1, ": No space left on device: standard output"),
    ],
    ids=str,
)
def test_one_line(capsys: pytest.CaptureFixture[str], error: Exception, status: int, words: str) -> None:
    def command(argument: int) -> int:
        assert argument == 7
        raise error

    assert guarded(command, 7) == status
    said = capsys.readouterr().err.strip()
    assert said == (f"{Path(sys.argv[0]).stem}{words}" if words else "")
    assert guarded(lambda: 3) == 3


def test_other_errors_are_what_they_were() -> None:
    with pytest.raises(KeyError):
        guarded(lambda: {}[0])


def test_an_interrupted_process() -> None:
    code = STUB + "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "sys.exit(guarded(lambda: print('on', flush=True) or time.sleep(60)))"
    run = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert run.stdout is not None and run.stdout.readline() == "on\n"
    run.send_signal(signal.SIGINT)
    _, error = run.communicate()
    assert run.returncode == 130 and error.strip() == "-c: interrupted"


def test_a_command_is_guarded_before_it_imports_anything() -> None:
    """NumPy alone takes longer than it takes to press Ctrl-C."""
    code = "import sys, sparq_ipu.commands.cli; print(sorted({'numpy', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.parametrize("output, status", [("/dev/full", 1), (None, 141)])
def test_a_process_that_can_not_write(output: str | None, status: int) -> None:
    """Nor does Python complain once more at its end."""
    code = STUB + "sys.stdin.read(); sys.exit(guarded(lambda: print('on') or 0))"
    target = os.open(output, os.O_WRONLY) if output else subprocess.PIPE
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    run = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=target,
        stderr=subprocess.PIPE,
        text=True,
        env=buffered,
    )
    if run.stdout is None:
        os.close(target)
    else:
        run.stdout.close()
    assert run.stdin is not None and run.stderr is not None
    run.stdin.close()
    lines = run.stderr.read().strip().splitlines()
    run.stderr.close()
    assert run.wait() == status
    assert lines == (["-c: No space left on device: standard output"] if output else [])


def test_a_full_device_is_refused_before_the_work(tmp_path: Path) -> None:
    assert output_path(str(tmp_path / "new")) == tmp_path / "new" and not (tmp_path / "new").exists()
    (tmp_path / "old").write_text("kept")
    output_path(str(tmp_path / "old"))
    assert (tmp_path / "old").read_text() == "kept"
    assert output_path("/dev/null") == Path("/dev/null")
    for wrong in ("/dev/full", str(tmp_path), str(tmp_path / "no" / "rows")):
        with pytest.raises(argparse.ArgumentTypeError, match="must be a file that can be written, got "):
            output_path(wrong)


def test_a_file_that_is_none() -> None:
    message = r"^generate: --text must be a file of UTF-8 text that can be read, got no"
    with pytest.raises(ValueError, match=message):
        read_text("generate", "--text", Path("nowhere"))


def test_an_error_of_usage_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["generate"])
    lines = capsys.readouterr().err.splitlines()
    assert stop.value.code == 2 and len(lines) == 1
    assert lines[0].startswith("sparq-ipu generate: error: one of the arguments ")


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_what_the_shell_has_closed(closed: str) -> None:
    code = STUB + "sys.exit(guarded(lambda: print('on') or print('on', file=sys.stderr) or 0))"
    number = {"stdout": 1, "stderr": 2}[closed]
    command = ["sh", "-c", f'exec "$0" -c "$1" {number}>&-', sys.executable, code]
    run = subprocess.run(command, capture_output=True, text=True)
    if closed == "stdout":
        assert run.returncode == 1
        assert run.stderr.strip() == "-c: standard output must be open, got a closed one"
    else:
        assert (run.returncode, run.stdout) == (0, "on\n")


def test_no_file_takes_the_place_of_a_closed_input() -> None:
    """A server's event loop aborts where a socket has that number."""
    code = STUB + "import os; sys.exit(guarded(lambda: os.dup(1)))"
    command = ["sh", "-c", 'exec "$0" -c "$1" <&-', sys.executable, code]
    assert subprocess.run(command, capture_output=True).returncode > 2


def test_a_closed_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    message = r"^generate: --prompt-file must be .* can be read, got - \(it is closed\)"
    with pytest.raises(ValueError, match=message):
        read_text("generate", "--prompt-file", Path("-"))


def test_a_prompt_is_what_was_typed(capsys: pytest.CaptureFixture[str]) -> None:
    """Bytes that are no UTF-8; and UTF-8 where the locale is another one."""
    from sparq_ipu import generate

    arguments = argparse.Namespace(prompt=os.fsdecode(b"a\xff"))
    with pytest.raises(ValueError, match=r"^generate: --prompt must be UTF-8 text, got 'a\\udcff'"):
        generate._text(arguments)
    assert generate._text(argparse.Namespace(prompt="\u00e9")) == "\u00e9"
    assert (
        generate._text(argparse.Namespace(prompt="\u00e9".encode().decode("ascii", "surrogateescape")))
        == "\u00e9"
    )


def test_a_model_that_plan_does_not_read(tmp_path: Path) -> None:
    from sparq_ipu.planning.model_shape import shape_of

    (tmp_path / "model.gguf").write_bytes(b"GGUF\xff\xff")
    (tmp_path / "config.json").write_text("[" * 100_000)
    pytest.importorskip("gguf")
    pytest.importorskip("transformers")
    for name, message in (
        ("model.gguf", "^load_model: .*model.gguf must have a header of 24 bytes"),
        ("config.json", "^plan: model must be a config.json"),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            shape_of("plan", str(tmp_path / name))
        assert "\n" not in str(caught.value)
