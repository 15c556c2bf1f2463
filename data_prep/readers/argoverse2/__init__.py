"""Argoverse 2: motion forecasting scenarios (`reader`), sensor logs (`sensor`) and the maps of both (`map`)."""
