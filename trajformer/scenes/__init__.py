"""Scenes and their stores."""
