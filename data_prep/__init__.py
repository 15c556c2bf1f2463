"""Conversion of raw data sets to stores of scenes.

It has one reader per data set, and a parallel, resumable engine.
"""
