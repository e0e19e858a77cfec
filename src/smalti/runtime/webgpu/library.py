"""The package `wgpu`, and what of its native library the package itself has no way to.

Three things are called below the package's own interface, which the version that is asked for has:
modules without checks at run time (each access would be compared with its buffer's length and each
loop counted, though programs are verified), commands (half the time of the package's methods), and
a question that does not block (so that Ctrl-C is heard while a device works).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import ModuleType
from typing import Any, NamedTuple

from smalti.errors import DeviceError, DeviceLostError, DeviceMemoryError

VERSION = "0.32"
BACKENDS = ("Vulkan", "Metal", "DX12")  # OpenGL computes too little


class WebLibrary(NamedTuple):
    """`package` is wgpu; `native` its functions, `ffi` what makes their arguments; `checked` the
    same functions, which raise errors; `errors` catches those of the others."""

    package: ModuleType
    native: Any
    ffi: Any
    checked: Any
    errors: Any


@lru_cache(maxsize=1)
def load() -> WebLibrary:
    """The package.

    Raises DeviceError where it is not installed, or of another version.
    """
    try:
        import wgpu
        from wgpu.backends.wgpu_native import _api, _ffi, _helpers, extras
    except (ImportError, OSError, RuntimeError) as error:  # OSError: of the native library
        raise DeviceError(f"the package wgpu does not load ({error}); pip install 'smalti[wgpu]' "
                          "installs it") from error
    if not wgpu.__version__.startswith(f"{VERSION}."):
        raise DeviceError(f"the package wgpu is {wgpu.__version__}; {VERSION} is needed: "
                          "pip install 'smalti[wgpu]' installs it")
    if _helpers._the_instance is None:  # else another user of the package was here before
        extras.set_instance_extras(backends=BACKENDS)
    return WebLibrary(wgpu, _ffi.lib, _ffi.ffi, _api.libf, _api.error_handler)


@contextmanager
def refusals(doing: str) -> Iterator[None]:
    """Turns what the package raises inside into errors of Smalti that say what was being done."""
    package = load().package
    try:
        yield
    except package.GPUOutOfMemoryError as error:
        raise DeviceMemoryError(f"{doing}: {reason(error)}") from error
    except (package.GPUError, RuntimeError) as error:
        raise failure(doing, str(error)) from error


@contextmanager
def caught(doing: str) -> Iterator[None]:
    """The same for functions of `native`."""
    handler = load().errors
    handler.capture(doing)
    found = None
    try:
        yield
    finally:
        found = handler.release(doing)
    if found is not None:
        kind, message = found
        raise DeviceMemoryError(f"{doing}: {reason(message)}") if kind == "OutOfMemory" else (
            failure(doing, message))


def failure(doing: str, message: str) -> DeviceError:
    """The error for what the package says."""
    if "lost" in message:
        return DeviceLostError(f"{doing}: the device is lost; it can be opened anew")
    return DeviceError(f"{doing}: {reason(message)}")


def reason(message: object) -> str:
    """What the package says, without its headings."""
    lines = [line.strip() for line in str(message).splitlines()]
    return "; ".join(line for line in lines if line and line not in (
        "Validation Error", "Caused by:", "Out of Memory"))


def trusted_module(device: Any, code: str) -> Any:
    """A module of WGSL without checks at run time."""
    library = load()
    from wgpu.backends.wgpu_native._api import GPUShaderModule, new_struct_p, to_c_string_view

    source = new_struct_p("WGPUShaderSourceWGSL *", code=to_c_string_view(code))
    source[0].chain.next = library.ffi.NULL
    source[0].chain.sType = library.native.WGPUSType_ShaderSourceWGSL
    descriptor = new_struct_p(
        "WGPUShaderModuleDescriptor *", label=to_c_string_view(""),
        nextInChain=library.ffi.cast("WGPUChainedStruct *", source))
    checks = 0
    handle = library.checked.wgpuDeviceCreateShaderModuleTrusted(
        device._internal, descriptor, checks)
    return GPUShaderModule("", handle, device)
