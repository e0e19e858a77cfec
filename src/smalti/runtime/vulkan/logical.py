"""A device that is open: its queues, what belongs to it, and what may be given back when."""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence

from smalti.errors import DeviceError, DeviceLostError
from smalti.runtime.gpu.removals import TRANSFER_QUEUE, removal_of
from smalti.runtime.vulkan import adapter as adapters
from smalti.runtime.vulkan import structures as vk
from smalti.runtime.vulkan.adapter import COMPUTE, GRAPHICS, SPARSE, TRANSFER, Family, VulkanAdapter
from smalti.runtime.vulkan.library import TIMEOUT
from smalti.runtime.vulkan.told import SIZE_CONTROL

PORTABILITY_SUBSET = "VK_KHR_portability_subset"  # to be asked for where a device has it
WAIT_NANOSECONDS = 100_000_000  # so long Ctrl-C may wait
ALL_COMMANDS = 0x10000  # of VkPipelineStageFlagBits
TIMELINE = 1  # of VkSemaphoreType
RESETTABLE, SIMULTANEOUS = 2, 4  # of VkCommandPoolCreateFlagBits, VkCommandBufferUsageFlagBits
COMPUTE_STAGE, TRANSFER_STAGE, HOST_STAGE = 0x800, 0x1000, 0x4000  # of VkPipelineStageFlagBits
SHADER_READ, SHADER_WRITE = 0x20, 0x40  # of VkAccessFlagBits
TRANSFER_READ, TRANSFER_WRITE = 0x800, 0x1000  # of VkAccessFlagBits
HOST_READ = 0x2000  # of VkAccessFlagBits
WORK = COMPUTE_STAGE | TRANSFER_STAGE
WRITTEN = vk.MemoryBarrier(
    srcAccessMask=SHADER_WRITE | TRANSFER_WRITE,
    dstAccessMask=SHADER_READ | SHADER_WRITE | TRANSFER_READ | TRANSFER_WRITE)
SHADED = vk.MemoryBarrier(srcAccessMask=SHADER_WRITE, dstAccessMask=SHADER_READ | SHADER_WRITE)
COPIED = vk.MemoryBarrier(srcAccessMask=TRANSFER_WRITE,
                          dstAccessMask=TRANSFER_READ | TRANSFER_WRITE)
SEEN = vk.MemoryBarrier(srcAccessMask=SHADER_WRITE | TRANSFER_WRITE, dstAccessMask=HOST_READ)
SEEN_COPIES = vk.MemoryBarrier(srcAccessMask=TRANSFER_WRITE, dstAccessMask=HOST_READ)


class LogicalDevice:
    """An adapter that is open, with a queue for programs and one for copies.

    They are the same to the driver where the device has no queue that only copies.
    """

    def __init__(self, adapter: VulkanAdapter) -> None:
        if adapter.unusable:
            raise DeviceError(f"{adapter.name} cannot be used: {adapter.unusable}")
        instance = adapter.instance
        if instance.closed:
            raise DeviceError(f"the connection to the driver of {adapter.name} ended, as a device "
                              "was lost; adapters() gives new ones")
        self.adapter = adapter
        compute, transfer = families_of_queues(adapter)
        self.families = tuple(dict.fromkeys((compute.index, transfer.index)))
        asked, _ = adapters.wanted(adapters.features_of(
            instance.functions, adapter.handle, adapter.extensions, adapter.version))
        extensions = [name for name in (
            adapters.COOPERATIVE_MATRIX, adapters.BFLOAT16, adapters.BUDGET, PORTABILITY_SUBSET,
            *([SIZE_CONTROL, adapters.INTEGER_DOTS] if adapter.version < (1, 3) else [])
        ) if name in adapter.extensions]
        names = [ctypes.create_string_buffer(name.encode()) for name in extensions]
        priority = (ctypes.c_float * 1)(1.0)
        queues = [vk.DeviceQueueCreateInfo(queueFamilyIndex=family, queueCount=1,
                                           pQueuePriorities=priority) for family in self.families]
        out = (ctypes.c_void_p * 1)()
        instance.functions.vkCreateDevice(adapter.handle, vk.DeviceCreateInfo(
            pNext=vk.chain(*asked), queueCreateInfoCount=len(queues),
            pQueueCreateInfos=vk.array(vk.DeviceQueueCreateInfo, queues),
            enabledExtensionCount=len(names), ppEnabledExtensionNames=vk.array(
                ctypes.c_void_p, [ctypes.addressof(name) for name in names])), None, out)
        self.handle = out[0]
        self.functions = instance.library.of_device(instance.handle, self.handle)
        self.lock = threading.RLock()
        self.lost = self.closed = False
        self._tokens = itertools.count()
        self._owned: dict[int, Callable[[], object]] = {}
        self._given: deque[tuple[int, int, Callable[[], object]]] = deque()
        self.compute, self.transfer = Queue(self, compute), Queue(self, transfer)

    def check(self) -> None:
        """Raises DeviceLostError or DeviceError when nothing can be done here any more."""
        if self.closed:
            raise DeviceError(f"{self.adapter.name} was closed; open it anew")
        if self.lost:
            raise DeviceLostError(f"{self.adapter.name} was lost; open it anew")

    def own(self, destroy: Callable[[], object]) -> int:
        """A number for something that `destroy` ends, at the latest when the device is closed.

        What was owned later is ended earlier.
        """
        token = next(self._tokens)
        self._owned[token] = destroy
        return token

    def give_back(self, token: int) -> None:
        """End what `token` stands for once all that was submitted until now has run.

        Safe at any time from any thread, as the collector of garbage may call it.
        """
        destroy = self._owned.pop(token, None)
        if destroy is not None:
            copied = self.transfer.value + self.transfer.collecting
            self._given.append((self.compute.value, copied, destroy))

    def reap(self) -> None:
        """End what was given back and is used no more."""
        with self.lock:
            if not self._given or self.closed:
                return
            computed, copied = self.compute.done(), self.transfer.done()
            while self._given and self._given[0][0] <= computed and self._given[0][1] <= copied:
                self._given.popleft()[2]()

    def wait(self) -> None:
        """Return when all that was submitted has run."""
        self.compute.wait(self.compute.value)
        self.transfer.wait(self.transfer.value)
        self.reap()

    def close(self) -> None:
        """End everything that is owned, then the device."""
        with self.lock:
            if self.closed:
                return
            self.closed = True
            try:
                self.functions.vkDeviceWaitIdle(self.handle)
            except DeviceLostError:
                self.lost = True  # nothing runs there any more
            while self._owned or self._given:
                while self._given:
                    self._given.popleft()[2]()
                if self._owned:
                    self._owned.pop(max(self._owned))()
            self.functions.vkDestroyDevice(self.handle, None)

    def commands(self, pool: int, count: int) -> list[int]:
        """New command buffers of a pool."""
        found = (ctypes.c_void_p * count)()
        self.functions.vkAllocateCommandBuffers(self.handle, vk.CommandBufferAllocateInfo(
            commandPool=pool, commandBufferCount=count), found)
        return list(found)

    def barrier(self, commands: int, memory: vk.MemoryBarrier, before: int, after: int) -> None:
        """What stages `before` have written of `memory` is there for stages `after`."""
        self.functions.vkCmdPipelineBarrier(commands, before, after, 0, 1, memory, 0, None, 0, None)


class Queue:
    """Where commands are submitted.

    Submissions have increasing numbers; that of the last is `value`. After number n has run,
    `done()` is at least n.
    """

    def __init__(self, logical: LogicalDevice, family: Family) -> None:
        self._logical, self.family = logical, family
        functions, device = logical.functions, logical.handle
        out = (ctypes.c_void_p * 1)()
        functions.vkGetDeviceQueue(device, family.index, 0, out)
        self._handle, self.value, self._numbers = out[0], 0, 0
        kind = vk.SemaphoreTypeCreateInfo(semaphoreType=TIMELINE)
        self.semaphore = functions.made("vkCreateSemaphore", device,
                                        vk.SemaphoreCreateInfo(pNext=kind))
        self._semaphores = vk.word(self.semaphore)
        self._waited = 0  # of the other queue
        self.collecting = False
        """Whether commands are being collected that will be the next submission."""
        logical.own(lambda: functions.vkDestroySemaphore(device, self.semaphore, None))

    def submit(self, submission: Submission, after: int = 0) -> int:
        """Submit commands that begin when the other queue is `after` submissions far.

        Returns the number of this submission. The lock of the device must be held.
        """
        self._numbers += 1
        number = submission.signal[0] = self._numbers
        submission.wait[0] = after
        waits = int(after > self._waited)
        submission.info.waitSemaphoreCount = waits
        submission.timeline.waitSemaphoreValueCount = waits
        try:
            self._logical.functions.vkQueueSubmit(self._handle, 1, submission.info, 0)
        except DeviceLostError:
            self._logical.lost = True
            raise
        except KeyboardInterrupt:  # before the call or after it, nobody knows
            self._logical.functions.vkDeviceWaitIdle(self._logical.handle)
            raise
        self.value, self._waited = number, max(after, self._waited)
        return number

    def done(self) -> int:
        """The number of the last submission that has run."""
        found = vk.word()
        try:
            self._logical.functions.vkGetSemaphoreCounterValue(self._logical.handle,
                                                               self.semaphore, found)
        except DeviceLostError:
            self._logical.lost = True
            raise
        return found[0]

    def wait(self, value: int) -> None:
        """Return when submission number `value` has run; 0 is none. KeyboardInterrupt ends the wait
        early."""
        if not value:
            return
        info = vk.SemaphoreWaitInfo(semaphoreCount=1, pSemaphores=self._semaphores,
                                    pValues=vk.word(value))
        try:
            while self._logical.functions.vkWaitSemaphores(
                    self._logical.handle, info, WAIT_NANOSECONDS) == TIMEOUT:
                self._logical.check()
        except DeviceLostError:
            self._logical.lost = True
            raise


class Submission:
    """Command buffers as they are submitted, any number of times, to the queue `own`.

    They may wait for the queue `other`.
    """

    def __init__(self, commands: Sequence[int], own: Queue, other: Queue) -> None:
        self.signal, self.wait = vk.word(), vk.word()
        self.timeline = vk.TimelineSemaphoreSubmitInfo(
            pWaitSemaphoreValues=self.wait, signalSemaphoreValueCount=1,
            pSignalSemaphoreValues=self.signal)
        self.info = vk.SubmitInfo(
            pNext=self.timeline, pWaitSemaphores=vk.word(other.semaphore),
            pWaitDstStageMask=(ctypes.c_uint32 * 1)(ALL_COMMANDS),
            commandBufferCount=len(commands),
            pCommandBuffers=vk.array(ctypes.c_void_p, commands),
            signalSemaphoreCount=1, pSignalSemaphores=vk.word(own.semaphore))


def families_of_queues(adapter: VulkanAdapter) -> tuple[Family, Family]:
    """Where programs run, and where copies do: the same where a check has removed the queue that
    only copies."""
    compute = compute_family(adapter.families)
    if removal_of(TRANSFER_QUEUE, adapter.removals):
        return compute, compute
    return compute, transfer_family(adapter.families)


def compute_family(families: Sequence[Family]) -> Family:
    """Where programs run: a family without graphics if there is one, so that a desktop that is
    drawn by the same device stays alive meanwhile."""
    able = [family for family in families if family.flags & COMPUTE]
    return next((family for family in able if not family.flags & GRAPHICS), able[0])


def transfer_family(families: Sequence[Family]) -> Family:
    """Where copies run: beside programs if there is a family that only copies."""
    return next((family for family in families
                 if family.flags & TRANSFER and not family.flags & ~(TRANSFER | SPARSE)),
                compute_family(families))
