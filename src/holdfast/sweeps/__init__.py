"""Many runs: which are missing, where they are computed, and what a search finds."""
