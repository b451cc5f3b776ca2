"""The jobs of a run: one leg per variant, with runner, image and timeout; and what is left out, with the reason."""
