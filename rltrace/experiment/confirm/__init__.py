"""The experiment that makes a first difference a finding: four arms over a horizon, and the fewest kinds of op.

Owns what is run, what each run has to show, and the word that follows. Runs go through ``experiment.runs``, comparisons
through ``rltrace.diff``; the result object is ``experiment.outcome``.
"""
