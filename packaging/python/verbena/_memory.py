"""Buffers of Python for the library, handles and memory of the library for Python.

Who keeps what alive: a view (memoryview, or an array over it) keeps its owner (a connection, listener, client or
registered memory), so that nothing is freed under it; an owner with views refuses to be closed. An owner that nobody
closed ends when its token is freed, which the owner and its views refer to: not while they are garbage of a cycle whose
finalizers run yet, but when nothing can reach a view any more."""

from __future__ import annotations

import atexit
import ctypes
import gc
import itertools
import queue
import threading
import warnings
import weakref
from typing import Any, Callable, Optional, Union

from . import _abi, errors

# bytes, bytearray, memoryview, array, numpy.ndarray: contiguous ones.
BytesLike = Any
Key = Union[str, bytes, bytearray, memoryview]


class _PyBuffer(ctypes.Structure):
    _fields_ = [('buf', ctypes.c_void_p), ('obj', ctypes.c_void_p), ('len', ctypes.c_ssize_t),
                ('itemsize', ctypes.c_ssize_t), ('readonly', ctypes.c_int), ('ndim', ctypes.c_int),
                ('format', ctypes.c_void_p), ('shape', ctypes.c_void_p), ('strides', ctypes.c_void_p),
                ('suboffsets', ctypes.c_void_p), ('internal', ctypes.c_void_p)]


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = [ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int]
_get_buffer.restype = ctypes.c_int
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = [ctypes.POINTER(_PyBuffer)]
_release_buffer.restype = None


class Buffer:
    """The bytes of a Python object, pinned until `release`: they neither move nor go. BufferError: the object is not
    contiguous, or is read-only and should be written."""

    __slots__ = ('_view', '_is_pinned', 'address', 'length')

    def __init__(self, data: BytesLike, writable: bool = False) -> None:
        self._is_pinned = False
        self._view = _PyBuffer()
        try:
            _get_buffer(data, self._view, 1 if writable else 0)
        except ValueError as error:  # As numpy calls it.
            raise BufferError(str(error)) from error
        self._is_pinned = True
        self.address, self.length = self._view.buf, self._view.len

    def __enter__(self) -> Buffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        if self._is_pinned:
            self._is_pinned = False
            _release_buffer(self._view)

    def __del__(self) -> None:
        self.release()


def key_bytes(key: Key) -> bytes:
    """TypeError for anything but text and bytes: bytes(7) would be seven zeros."""
    return key.encode() if isinstance(key, str) else memoryview(key).tobytes()


def milliseconds(seconds: float) -> int:
    """A time limit for the library: at least 1 ms, so that a short one is not none."""
    if not 0 <= seconds <= 2**30 / 1000:
        raise errors.own_error(errors.BAD_ARGUMENT, f'a timeout is 0 to {2**30 // 1000} seconds; got {seconds}')
    return max(1, round(seconds * 1000)) if seconds else 0


class Handle:
    """A handle of the library. `with handle as address` keeps it from being closed during a call."""

    def __init__(self, name: str, address: int, close: Callable[[int], Any]) -> None:
        self.name = name
        self.views: weakref.WeakSet[Any] = weakref.WeakSet()
        self.pinned: list[Any] = []  # Released after the handle is closed.
        self._address: Optional[int] = address
        self._close = close
        self._users = 0
        self._lock = threading.Lock()

    def __enter__(self) -> int:
        with self._lock:
            if self._address is None:
                raise errors.own_error(errors.CLOSED, f'this {self.name} is closed: make another one')
            self._users += 1
            return self._address

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1

    @property
    def is_closed(self) -> bool:
        return self._address is None

    def check_idle(self) -> None:
        """BusyError while a view or a call uses it."""
        if count := len(self.views):
            raise errors.own_error(errors.BUSY, f'{count} views use memory of this {self.name}: delete or release() '
                                   'them, and the arrays made of them, before you close it')
        if self._users:
            raise errors.own_error(errors.BUSY, f'{self._users} calls or operations use this {self.name}: wait for '
                                   'them before you close it')

    def close(self) -> Any:
        """Closes it once. Returns what the library returned, or None if it was closed before."""
        with self._lock:
            if self._address is None:
                return None
            self.check_idle()
            address, self._address = self._address, None
        return self.end(address)

    def abandon(self) -> None:
        """Nobody can reach it or its views any more."""
        address, self._address = self._address, None
        if address is not None:
            warnings.warn(f'a {self.name} was never closed', ResourceWarning, stacklevel=2)
            self.end(address)

    def end(self, address: int) -> Any:
        result = self._close(address)
        for buffer in self.pinned:
            buffer.release()
        self.pinned.clear()
        return result


_numbers = itertools.count(1)
# Each handle with the weak reference to its token.
_handles: dict[int, tuple[Handle, Any]] = {}
# Whether this thread runs a callback, in which the library allows no closing; handles that it abandoned meanwhile.
callback = threading.local()
_abandoned: queue.SimpleQueue[Handle] = queue.SimpleQueue()
_is_at_exit = False


def _new_token(handle: Handle) -> Any:
    """An object whose end abandons the handle. Objects of Python classes would be finalized in no order with others of
    a cycle. A code object takes no part in garbage collection, so its weak reference tells when it is freed."""
    number = next(_numbers)
    token = _new_token.__code__.replace(co_firstlineno=number)
    assert not gc.is_tracked(token), 'code objects take part in garbage collection: verbena needs another token'
    _handles[number] = handle, weakref.ref(token, lambda _: _token_ended(number))
    return token


def _token_ended(number: int) -> None:
    handle, _ = _handles.pop(number)
    if _is_at_exit:
        return  # Finalizers may run yet, and the process frees everything.
    if getattr(callback, 'is_running', False):
        _abandoned.put(handle)
    else:
        handle.abandon()


def _end_abandoned() -> None:
    while True:
        try:
            _abandoned.get_nowait().abandon()
        except queue.Empty:
            return


@atexit.register
def _close_at_exit() -> None:
    global _is_at_exit
    _end_abandoned()
    # In the order of their dependence: what was opened last ends first. Threads of the library must not call Python
    # once the interpreter is gone.
    for _, (handle, _) in sorted(_handles.items(), reverse=True):
        try:
            handle.close()
        except errors.BusyError as error:
            warnings.warn(f'at exit: {error}', ResourceWarning, stacklevel=1)
    _is_at_exit = True


class Owner:
    """Base of what owns a handle. A context manager: it is closed at the end of `with`."""

    def __init__(self, handle: Handle) -> None:
        _end_abandoned()
        self._handle = handle
        self._token = _new_token(handle)

    def __enter__(self):
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.close()
            return
        # The error that ends the block is more use than that its own views are there yet.
        try:
            self.close()
        except errors.BusyError:
            pass

    @property
    def closed(self) -> bool:
        return self._handle.is_closed

    def close(self) -> None:
        """Ends it; again is fine. BusyError while views of its memory or calls of other threads use it."""
        self._handle.close()

    def _view_of(self, address: int, length: int, *handles: Handle) -> memoryview:
        """A view that keeps `self` alive, and keeps `handles` from being closed."""
        kind: Any = type('Region', (ctypes.c_ubyte * length,), {'__hash__': object.__hash__})
        region = kind.from_address(address)
        region.owner, region.token = self, self._token
        for handle in handles:
            handle.views.add(region)
        return memoryview(region).cast('B')


# Fields that callers cannot set by name.
_NO_OPTIONS = ('window', 'node', 'grants', 'recv_mode')


def fill(struct: Any, options: dict[str, Any], enums: dict[str, dict[str, int]]) -> list[Any]:
    """Sets fields of an options struct. Times are in seconds there: `timeout` is `timeout_ms`. Returns what has to
    live until the library has copied the struct."""
    kept: list[Any] = []
    fields = dict(struct._fields_)
    for name, value in options.items():
        if value is None:
            continue
        if f'{name}_ms' in fields:
            setattr(struct, f'{name}_ms', milliseconds(value))
        elif name == 'allowed_uids':
            for uid in value:
                _abi.check_range('a uid', ctypes.c_uint, uid)
            uids = (ctypes.c_uint * len(value))(*value)
            kept.append(uids)
            struct.allowed_uids, struct.allowed_uid_count = uids, len(value)
        elif name not in fields or name in _NO_OPTIONS or name.endswith(('_count', '_ms')):
            raise TypeError(f'{type(struct).__name__} has no option {name!r}')
        elif name in enums:
            if value not in enums[name]:
                raise errors.own_error(errors.BAD_ARGUMENT,
                                       f'{name} is one of {", ".join(enums[name])}; got {value!r}')
            setattr(struct, name, enums[name][value])
        else:
            _abi.check_range(name, fields[name], value)
            setattr(struct, name, value.encode() if isinstance(value, str) else value)
    return kept
