"""What stands in for a part of the server where a test has to see how others use it."""


class Over:
    """An object with other methods in the place of some of its own: those of compiled classes cannot be replaced."""

    def __init__(self, beneath, **methods):
        self.__dict__.update(methods, _beneath=beneath)

    def __getattr__(self, name):
        return getattr(self._beneath, name)
