"""`python -m project`."""

from project.cli import console

if __name__ == "__main__":
    console()
