"""The C++ kernel for CPUs and its loader."""
