"""Reference tasks on the shared attention core.

Translation, image classification and object detection.
"""
