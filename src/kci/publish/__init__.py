"""A merged and verified tree to the Hub: one commit for a kernel and its version branch, and the card last."""
