STEPS: list[int]
