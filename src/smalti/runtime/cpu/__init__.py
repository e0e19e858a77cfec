"""Programs on the CPU of this machine: machine code, memory, and the threads that run it.

    adapter                  what the CPU and the operating system tell
    executable, memory       code and data, from the operating system
    threads → recording      one native call a run for each worker; a table of launches
    packing, streaming       weights: bound, and read while a program runs
    program → compilation    what runs a module, and how it comes to one
    driver                   all of it, as others ask for it
"""
