"""The one error of the command line: what the user gave cannot be used."""


class InputError(Exception):
    """Something that the user gave cannot be used; told in one line, with exit code 2.

    Args:
        given: The option and its value, as the user wrote them.
        found: What is wrong with it.
        expected: What would be right, and what to write.
    """

    def __init__(self, given: str, found: str, expected: str) -> None:
        super().__init__(given, found, expected)

    def __str__(self) -> str:
        given, found, expected = (" ".join(str(fact).split()) for fact in self.args)
        return f"{given}: {found}. Expected {expected}."


def reason(error: OSError) -> str:
    """What the operating system says, to stand inside a sentence."""
    return (error.strerror or type(error).__name__).lower()
