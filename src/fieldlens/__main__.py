"""The command line's first step, also as python -m fieldlens: from here on Ctrl-C ends without a traceback."""

import signal
import sys


def main() -> None:
    """Import the command line and run it."""
    try:
        from fieldlens.cli import main as run

        run()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not disturb the end
        print("fieldlens: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
