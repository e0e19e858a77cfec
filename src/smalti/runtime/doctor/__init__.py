"""The check of a GPU and its driver: what programs rely on is tried, and what is wrong is not used.

    bench → probe                  a device as a probe sees it, and what a probe is
    kernels, programs, traffic     the probes
    examination                    from what fails to what is removed
    attempts → process, child      on an open device, in a process that may end with its driver
    supervision                    of such processes: crashes, hangs and lost devices are found, too
    verdict, rates                 what came of it, kept for device, driver and code
    checking                       the verdict on a device, kept or new
    first_use, beside              a check that begins by itself; first programs against the CPU
"""
