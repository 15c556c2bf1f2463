"""Reference tasks on the shared attention core: translation, image classification and object detection."""
