"""A batch whose missing parts are named."""

from typing import Any, NoReturn


class CheckedBatch(dict[str, Any]):
    """The parts of a batch by their names. To read one that it lacks is an error with a remedy."""

    def __missing__(self, key: str) -> NoReturn:
        raise ValueError(
            f"the batch has no {key!r}, but {', '.join(self)}; add it to NEEDS of the algorithm, "
            "or to the batch if it is your own"
        )
