"""Numbers, text and figures made from run folders, without a trainer and without torch."""
