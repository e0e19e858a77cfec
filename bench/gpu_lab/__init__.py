"""The shader compilers of GPU vendors on this computer, which needs no GPU: what they make of a
program, counted from their own statistics and assembly. `bench/gpu_compilers.py` is the command.

    setup            a script: fetches Mesa's drivers, and builds what stands in for the kernel's
    chips.py         chips by name, and the environment of a process that has one
    pipelines.py     what a driver tells of the programs it compiles
    listing.py       assembly of three vendors as instructions by class, and its hottest loop
    bound.py         rates of chips, and what share of their peak a loop reaches at most
    graphs.py        the graphs that are compiled, by name
    programs.py      the programs of a graph, each with its kernel and schedule
    compile.py       what runs on a chip that is not there: programs to reports
    report.py        reports as lines and tables
"""
