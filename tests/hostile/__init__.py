"""Files of the image coder that somebody made by hand, to see what decoding them can cost."""
