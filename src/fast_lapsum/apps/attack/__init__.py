"""The sparse adversarial attack: which pixels to change, and to what, under a budget."""
