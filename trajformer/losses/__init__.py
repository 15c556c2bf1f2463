"""Losses of a Forecast: functions of the forecast and the batch's targets."""
