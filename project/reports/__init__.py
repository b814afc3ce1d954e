"""From run folders to numbers, text and figures; needs no trainer and no torch."""
