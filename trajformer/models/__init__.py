"""Forecasting systems on the shared core; `trajformer.recipes.choices` lists them."""
