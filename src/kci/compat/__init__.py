"""The scheduled side: what should be published against what is, results of scheduled runs, and what follows."""
