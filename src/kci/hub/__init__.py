"""All reading of the Hub: what a repository has, what of it is whole and signed, and who may write to it."""
