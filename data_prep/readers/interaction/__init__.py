"""INTERACTION: recordings and multi-agent cases (`reader`), and their Lanelet2 maps (`lanelet2`)."""
