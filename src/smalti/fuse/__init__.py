"""The partition: which operations share a kernel, and where values are stored between kernels."""

from smalti.fuse.partition import partition
from smalti.fuse.precision import held, narrowed
from smalti.fuse.region import HostRegion, Partition, Region
from smalti.fuse.view import Storage, View

__all__ = ["HostRegion", "Partition", "Region", "Storage", "View", "held", "narrowed", "partition"]
