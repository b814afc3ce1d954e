"""From measurements to numbers, text and figures."""
