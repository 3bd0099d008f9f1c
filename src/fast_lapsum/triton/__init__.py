"""The GPU backend: Triton kernels, and the table that chooses among them."""
