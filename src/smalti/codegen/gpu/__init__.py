"""What all GPU targets share: programs of work-groups, and kernels lowered to them."""
