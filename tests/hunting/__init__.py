"""The hunt for wrong rows: millions of seeded rows, checked without the solver's help.

``make hunt`` and ``make hunt-gpu`` run it; ``python -m hunting --help`` has all its settings.

* rows.py makes the rows: what users have and what attackers would make, of the kinds of scores that
  `fast-lapsum bench cliffs` times (bench/score_kinds.py).
* check.py says how far a sum may be from its budget, and compares a sample with the reference;
  fit.py holds p against other p of its row.
* functions.py judges what else there is: hard masks, log p, thresholds, random masks, selections.
* plan.py says which batches a run is made of, worker.py works through its share of them.
* tally.py adds up what the workers tell; wrong_rows.py keeps what is wrong, to be run again.
"""
