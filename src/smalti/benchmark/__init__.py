"""Speed and correctness of whole models against other engines, and of kernels against the machine.

    suite.py        what is measured: models at fixed shapes, with the bounds that are asked for
    weights.py      seeded numbers for their parameters, the same for every engine
    peers.py        the same models as PyTorch modules
    cuda.py         PyTorch on a GPU
    engines.py      each engine, ready to run one of them
    turns.py        engines in processes of their own, taking turns
    comparison.py   medians, ratios, agreement
    table.py        asked, measured, ok
    report.py       JSON, and the chart
    chart.py        bars as SVG and PNG
    tiny_cnn.py     the smallest model of the suite
    roofline.py     what this machine can do at most
    profile.py      each kernel of a program against that
"""
