"""Metrics as pure functions (value, which agents count); torchmetrics only accumulates them."""
