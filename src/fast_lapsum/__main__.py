"""``python -m fast_lapsum`` is the command ``fast-lapsum``."""

import os
import sys

from fast_lapsum_command import main, wait_without_spinning

if __name__ == "__main__":
    before = dict(os.environ)
    wait_without_spinning()
    # The package has loaded torch by now, which has read how its threads are to wait: begin anew.
    if os.environ != before and os.name == "posix":
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    main()
