"""A run's folder, files and record. Imports neither torch nor any other room of the package."""
