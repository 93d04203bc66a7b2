"""Errors: each has a code of the C headers, what it failed on (`detail`), and cause and fix (`fix`)."""

from __future__ import annotations

from ._abi import calls


class VerbenaError(Exception):
    """A call of the library failed.

    code: the number in verbena/rdma.h and verbena/kv.h. detail: one sentence about this call, "" if there is none.
    fix: cause and fix of the code."""

    code = 0

    def __init__(self, code: int, fix: str, detail: str = '') -> None:
        super().__init__(detail or fix)
        self.code, self.fix, self.detail = code, fix, detail

    def __str__(self) -> str:
        if not self.detail or self.detail == self.fix:
            return self.fix
        return f'{self.detail} ({self.fix})'


class DeadlineError(VerbenaError, TimeoutError):
    """The deadline passed."""


class NotFoundError(VerbenaError, KeyError):
    """No such key, name, window, address or device."""

    __str__ = VerbenaError.__str__  # A KeyError would print the text in quotes.


class VersionMismatchError(VerbenaError):
    """The key has another version, which is in `version`."""

    version = 0


class ArgumentError(VerbenaError, ValueError):
    """An argument can never work, or is not inside the window or the memory."""


class BusyError(VerbenaError, RuntimeError):
    """In use: by another thread, by views of its memory, or by operations under way."""


class TryAgainError(VerbenaError, BlockingIOError):
    """A queue is full: complete something, then try again."""


class FullError(VerbenaError):
    """The store has no room for the value or the key, or the user's quota is used up."""


class UnsupportedError(VerbenaError, NotImplementedError):
    """This connection, server or device does not have it."""


class DisconnectedError(VerbenaError, ConnectionError):
    """The connection is dead, or was not made."""


class DeniedError(VerbenaError, PermissionError):
    """This user, key or process may not do it."""


class ResourceError(VerbenaError, OSError):
    """The device, the process or the machine lacks something."""


# By name in the headers, without prefix.
CODES = {
    'AGAIN': (-2, TryAgainError), 'TIMED_OUT': (-3, DeadlineError), 'NOT_FOUND': (-4, NotFoundError),
    'VERSION_MISMATCH': (-5, VersionMismatchError), 'BAD_KEY': (-6, ArgumentError), 'TOO_LONG': (-7, ArgumentError),
    'BUFFER_TOO_SMALL': (-8, ArgumentError), 'STORE_FULL': (-9, FullError), 'INDEX_FULL': (-10, FullError),
    'WRONG_KIND': (-11, ArgumentError), 'BAD_ARGUMENT': (-12, ArgumentError), 'OUT_OF_RANGE': (-13, ArgumentError),
    'LOCAL_ACCESS': (-14, ArgumentError), 'UNSUPPORTED': (-15, UnsupportedError), 'BUSY': (-16, BusyError),
    'PEER_LOST': (-17, DisconnectedError), 'CONNECTION_REFUSED': (-18, DisconnectedError),
    'REJECTED': (-19, DisconnectedError), 'PROTOCOL': (-20, DisconnectedError), 'REMOTE_ACCESS': (-21, DeniedError),
    'REMOTE_INVALID': (-22, DisconnectedError), 'RETRY_EXCEEDED': (-23, DisconnectedError),
    'RNR_EXCEEDED': (-24, DisconnectedError), 'FLUSHED': (-25, DisconnectedError), 'CLOSED': (-26, DisconnectedError),
    'NOT_ALLOWED': (-27, DeniedError), 'OTHER_NAMESPACE': (-28, DisconnectedError),
    'OTHER_HOST': (-29, DisconnectedError), 'NO_MEMORY': (-30, ResourceError), 'LIMIT': (-31, ResourceError),
    'PERMISSION': (-32, DeniedError), 'DEVICE': (-33, ResourceError), 'SYSTEM': (-34, ResourceError),
    'FORKED': (-35, ResourceError), 'DENIED': (-36, DeniedError), 'OVER_QUOTA': (-37, FullError),
}
TIMED_OUT, NOT_FOUND, BUFFER_TOO_SMALL = -3, -4, -8
BAD_ARGUMENT, BUSY, CLOSED, NO_MEMORY = -12, -16, -26, -30
_CLASSES = dict(CODES.values())


def rdma_error(code: int, about_last_call: bool = True) -> VerbenaError:
    """The error of a call of rdma.h that has just failed in this thread; a completion has no sentence of its own."""
    detail = calls.rdmaErrorDetail().decode() if about_last_call else ''
    return _CLASSES.get(code, VerbenaError)(code, calls.rdmaErrorString(code).decode(), detail)


def kv_error(code: int, about_last_call: bool = True) -> VerbenaError:
    """The same for kv.h and items of batches."""
    detail = calls.kv_error_detail().decode() if about_last_call else ''
    return _CLASSES.get(code, VerbenaError)(code, calls.kv_error_string(code).decode(), detail)


def own_error(code: int, detail: str) -> VerbenaError:
    """A mistake that this package finds itself."""
    return _CLASSES[code](code, detail)
