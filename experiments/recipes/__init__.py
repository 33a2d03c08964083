"""Recipes: one flag file for each run worth repeating."""
