"""Files with a hole at their end: as long as others are, without room for what is not in them."""

from __future__ import annotations

import ctypes
import sys
from typing import BinaryIO

SET_SPARSE = 0x900C4
"""FSCTL_SET_SPARSE: what a file has no content for takes no room."""
END_OF_FILE = 6
"""FileEndOfFileInfo: where a file ends."""


def lengthen(stream: BinaryIO, size: int) -> None:
    """Have a file end at `size`, which is behind what was written to it; between are zeros.

    Where the file system has holes, as all usual ones but FAT, these take no room and no time.
    Raises OSError, such as where there is neither a hole nor room.
    """
    stream.flush()
    if sys.platform == "win32":  # Python's `truncate` writes all the zeros there
        import msvcrt

        kernel = ctypes.WinDLL("kernel32", use_last_error=True)
        handle = ctypes.c_void_p(msvcrt.get_osfhandle(stream.fileno()))
        told, end = ctypes.c_uint32(), ctypes.c_int64(size)
        kernel.DeviceIoControl(handle, SET_SPARSE, None, 0, None, 0, ctypes.byref(told), None)
        if not kernel.SetFileInformationByHandle(handle, END_OF_FILE, ctypes.byref(end), 8):
            raise ctypes.WinError(ctypes.get_last_error())
    else:
        stream.truncate(size)
