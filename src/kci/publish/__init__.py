"""A verified tree to the Hub in one commit, and what the Hub has."""
