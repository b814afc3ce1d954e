"""One training, exact and restartable: task, schedule, data, saving, signals, resume, record."""
