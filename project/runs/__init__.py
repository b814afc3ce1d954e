"""What a run leaves: its folder, files, record and direction of metrics. Imports nothing of ours."""
