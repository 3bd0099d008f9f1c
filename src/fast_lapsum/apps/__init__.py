"""Applications built on the exact-budget operator."""
