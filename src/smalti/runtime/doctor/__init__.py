"""The check of a GPU and its driver: what programs rely on is tried, and what is wrong is not used.

    bench → probe              a device as a probe sees it, and what a probe is
    kernels, programs, traffic     the probes
    examination                from what fails to what is removed
    attempts → process         on a device that is open, in a process that may end with its driver
    supervision                of these processes: a crash, a hang or a lost device is found, too
    verdict, rates             what came of it, kept for device, driver and code
"""
