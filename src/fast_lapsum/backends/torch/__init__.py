"""One algorithm per file, and the plain-torch backend that runs them."""
