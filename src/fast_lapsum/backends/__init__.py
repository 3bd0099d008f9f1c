"""Where a call ends: one folder per way to compute it."""
