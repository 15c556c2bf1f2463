"""Conversion of raw data sets to stores of scenes: one reader per data set, and a parallel, resumable engine."""
