"""Prepares stores: plan, worker processes, Ray, locks, progress and estimates."""
