"""The scheduled side: what should be published against what is."""
