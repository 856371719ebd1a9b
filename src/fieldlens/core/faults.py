"""Faults of the machine, not of the input: memory or disk space that ran out, whatever class a library reports."""

import errno
import os
import re

from fieldlens.core.memory import out_of_memory

_RUST = re.compile(r"\(os error (\d+)\)")
"""How libraries written in Rust (tokenizers, safetensors) report an error of the system, in exceptions of their own."""

_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE}


def machine_fault(error: BaseException) -> Exception | None:
    """The fault as MemoryError or OSError; None if the error has another cause."""
    if number := _RUST.search(str(error)):
        code = int(number[1])
        error = error if isinstance(error, OSError) else OSError(code, os.strerror(code))
    if isinstance(error, OSError):
        if error.errno == errno.ENOMEM:
            return MemoryError(str(error))
        return error if error.errno in _DISK else None
    return MemoryError(" ".join(str(error).split())) if out_of_memory(error) else None
