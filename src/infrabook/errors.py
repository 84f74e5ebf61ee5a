"""The one exception that a reader's input can raise, always with a sentence that says what to change."""


class InfrabookError(ValueError):
    """Input the library cannot answer for; the message names the field and the value, in the reader's words."""
