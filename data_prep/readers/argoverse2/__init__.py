"""Argoverse 2: scenarios (`reader`), sensor logs (`sensor`) and the maps of both (`map`)."""
