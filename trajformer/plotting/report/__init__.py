"""The report of a scoring: one HTML page without scripts.

`build.write_report` renders a record of `trajformer.evaluation`; it computes no metric.
"""
