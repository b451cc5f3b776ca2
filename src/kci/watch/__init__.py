"""Scheduled runs and pull requests: history, causes of failures, issues, the report, the
comment.
"""
