"""The collapse of a pruning method: fewer weights have a score than are to be kept."""

# What `prune(on_collapse=)` may be, and what happens then.
ON_COLLAPSE = {
    "error": "raise CollapseError",
    "short": "keep only the weights that have a score",
    "random_fill": "keep these weights, and others at random",
}


class CollapseError(RuntimeError):
    """The error of a collapse: only `positive` weights of the `asked` have a score, in step `step` (from 1)."""

    def __init__(self, message: str, positive: int, asked: int, step: int) -> None:
        super().__init__(message, positive, asked, step)  # pickle rebuilds an error from these arguments
        self.positive, self.asked, self.step = positive, asked, step

    def __str__(self) -> str:
        return str(self.args[0])
