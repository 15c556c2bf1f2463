"""INTERACTION: recordings and cases (`reader`, `tracks`) and their Lanelet2 maps (`lanelet2`)."""
