"""Scheduled runs: their history, the causes of failures, the issues that follow, and the page with every leg."""
