"""The command line's first step, also as python -m fieldlens: from here on Ctrl-C ends without a traceback."""

import os
import signal
import sys
from types import FrameType

SAID = "fieldlens: interrupted\n"


def main() -> None:
    """Import the command line and run it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a job in the background ignores it
        signal.signal(signal.SIGINT, _interrupt)
    _open_closed_streams()
    try:
        from fieldlens.cli import main as run

        run()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not disturb the end
        sys.stderr.write(SAID)
        sys.exit(130)


def _open_closed_streams() -> None:
    """Let standard streams that were closed at the start (2>&-) lead nowhere.

    Otherwise the next file that is opened gets their number, and a message ends up in it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise, but leave at once from the middle of an import: in torch's an exception aborts the process."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            os.write(2, SAID.encode())
            os._exit(130)
        frame = frame.f_back
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
