"""One module for each form of kernel: how operations of a graph become kernels of that form."""
