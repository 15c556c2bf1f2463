"""Pictures with labelled boxes: generated shapes, Pascal VOC folders, and batches of either."""
