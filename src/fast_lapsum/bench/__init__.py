"""Measurements: timings with their environment, parity before speed, tables and pictures."""
