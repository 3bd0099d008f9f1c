"""The GPU kernels: one solver for tiles of short rows, single rows, rows that programs share."""
