"""Records in, a page out: what was run is checked, set beside the paper, tested as claims, drawn and written."""
