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
    try:
        from fieldlens.cli import main as run

        run()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not disturb the end
        sys.stderr.write(SAID)
        sys.exit(130)


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
