"""The owner of this machine, as far as its system tells: local time, and since when no key or mouse was used.

Windows and macOS tell it for the whole session. An X server tells it where its display is ours; terminals tell by the
time of their last input. Nothing tells it under Wayland: there, and on a machine without any of these, only the load of
other programs shows that somebody is at work. What follows from it is ``core.sharing``'s.
"""

import ctypes
import ctypes.util
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import trio

from p2pmesh.core.share_hours import LocalTime
from p2pmesh.core.sharing import OwnerSigns

MAX_TERMINALS = 64
_ANY_INPUT = 0xFFFFFFFF
"""``kCGAnyInputEventType``."""
_HID_STATE = 1
"""``kCGEventSourceStateHIDSystemState``: what came from keyboard and mouse, of any program."""
IdleSource = Callable[[], int | None]


class ThisOwner:
    """Implements ``ports.owner.Owner``; ``sources`` by name give seconds, or None where they know nothing."""

    def __init__(self, sources: tuple[tuple[str, IdleSource], ...] | None = None) -> None:
        self._sources = sources_here() if sources is None else sources

    def local_time(self) -> LocalTime:
        """See ``ports.owner``."""
        now = time.localtime()
        return LocalTime(now.tm_wday, 60 * now.tm_hour + now.tm_min)

    async def signs(self) -> OwnerSigns:
        """See ``ports.owner``; made beside the node, since a display may answer late."""
        return await trio.to_thread.run_sync(self._read)

    def _read(self) -> OwnerSigns:
        told = [(name, idle_s) for name, source in self._sources if (idle_s := source()) is not None]
        return OwnerSigns(min((idle_s for _, idle_s in told), default=None), tuple(name for name, _ in told))


def sources_here() -> tuple[tuple[str, IdleSource], ...]:
    """What may tell of the owner on this system."""
    if sys.platform == "win32":
        return (("windows", _windows_idle_s),)
    if sys.platform == "darwin":
        return (("macos", _macos_idle_s), ("terminals", terminals_idle_s))
    return (("x11", X11Idle().idle_s), ("terminals", terminals_idle_s))


def terminals_idle_s() -> int | None:
    """Since the last key in any terminal that somebody is logged in at; None where nobody is."""
    last: list[float] = []
    with suppress(OSError, RuntimeError, psutil.Error):
        for user in islice(psutil.users(), MAX_TERMINALS):
            if user.terminal:
                with suppress(OSError):
                    last.append(Path("/dev", user.terminal).stat().st_atime)
    return max(0, int(time.time() - max(last))) if last else None


def _windows_idle_s() -> int | None:
    class LastInput(ctypes.Structure):
        _fields_ = [("size", ctypes.c_uint), ("tick_ms", ctypes.c_uint)]

    with suppress(OSError, AttributeError):
        windows = ctypes.windll  # type: ignore[attr-defined]
        last = LastInput(ctypes.sizeof(LastInput), 0)
        if windows.user32.GetLastInputInfo(ctypes.byref(last)):
            return int((windows.kernel32.GetTickCount() - last.tick_ms) & 0xFFFFFFFF) // 1000
    return None


def _macos_idle_s() -> int | None:
    with suppress(OSError, AttributeError):
        path = "/System/Library/Frameworks/ApplicationServices.framework/ApplicationServices"
        since = ctypes.CDLL(path).CGEventSourceSecondsSinceLastEventType
        since.restype, since.argtypes = ctypes.c_double, [ctypes.c_int, ctypes.c_uint32]
        return max(0, int(since(_HID_STATE, _ANY_INPUT)))
    return None


class _ScreenSaverInfo(ctypes.Structure):
    """``XScreenSaverInfo`` of ``X11/extensions/scrnsaver.h``."""

    _fields_ = [
        ("window", ctypes.c_ulong), ("state", ctypes.c_int), ("kind", ctypes.c_int),
        ("til_or_since_ms", ctypes.c_ulong), ("idle_ms", ctypes.c_ulong), ("event_mask", ctypes.c_ulong),
    ]  # fmt: skip


class X11Idle:
    """Asks the X server of ``$DISPLAY``; not under Wayland, whose X server sees but some of the keys."""

    def idle_s(self) -> int | None:
        """Since any key or mouse of the display; None where there is none, or it cannot be asked."""
        if not os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
            return None
        with suppress(OSError, AttributeError):
            return _ask_display()
        return None


def _ask_display() -> int | None:
    """A connection each time: a server that ended would take a process with it that keeps one."""
    names = [ctypes.util.find_library(name) for name in ("X11", "Xss")]
    if None in names:
        return None
    x11, xss = (ctypes.CDLL(name) for name in names)
    x11.XOpenDisplay.restype = x11.XDefaultRootWindow.restype = ctypes.c_void_p
    x11.XDefaultRootWindow.argtypes = x11.XCloseDisplay.argtypes = [ctypes.c_void_p]
    display = x11.XOpenDisplay(None)
    if not display:
        return None
    try:
        info = _ScreenSaverInfo()
        xss.XScreenSaverQueryInfo.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        is_told = xss.XScreenSaverQueryInfo(display, x11.XDefaultRootWindow(display), ctypes.byref(info))
        return int(info.idle_ms) // 1000 if is_told else None
    finally:
        x11.XCloseDisplay(display)
