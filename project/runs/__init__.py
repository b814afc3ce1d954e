"""What a run leaves: its folder, files and record. Imports no torch and nothing of ours."""
