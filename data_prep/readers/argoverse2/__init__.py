"""Argoverse 2: motion forecasting scenarios (`reader`), sensor logs (`sensor`, `log`) and the maps of both (`map`)."""
