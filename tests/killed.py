"""Work in a child process that is killed at its n-th system call, or as a file grows too large."""

import ctypes
import os
import resource
import signal
from collections.abc import Callable

TRACE_ME = 0
SYSTEM_CALL = 24
_ptrace = ctypes.CDLL(None, use_errno=True).ptrace
_ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


def _child(begin: Callable[[], object], work: Callable[[], object]) -> int:
    child = os.fork()
    if child == 0:
        try:
            begin()
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return child


def _let_trace() -> None:
    assert _ptrace(TRACE_ME, 0, None, None) == 0
    os.kill(os.getpid(), signal.SIGSTOP)


def killed_at_call(number: int, work: Callable[[], object]) -> bool:
    """Kill a child as it enters or leaves a system call.

    Args:
        number: Of the entry or exit, from 1.
        work: What the child does.

    Returns:
        Whether it was killed; False if its work was done before.
    """
    child = _child(_let_trace, work)
    _, status = os.waitpid(child, 0)
    for _ in range(number):
        assert _ptrace(SYSTEM_CALL, child, None, None) == 0
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            return False
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def killed_at_size(size: int, work: Callable[[], object]) -> bool:
    """Kill a child in the midst of the write by which a file of it gets more than `size` bytes.

    Returns:
        Whether it was killed; False if its work was done before.
    """

    def limit() -> None:
        # Python ignores the signal.
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    _, status = os.waitpid(_child(limit, work), 0)
    assert status in (0, signal.SIGXFSZ) or os.WTERMSIG(status) == signal.SIGXFSZ
    return status != 0
