"""Checks that refuse a run which cannot work, by what they measure on copies of the model."""
