"""Waymo Open Motion data set: TFRecord files of `Scenario` messages, read without TensorFlow."""
