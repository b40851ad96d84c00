"""A pickle that shows whether somebody unpickled it."""


class Evil:
    unpickled = 0

    def __reduce__(self):
        return _unpickled, ()


def _unpickled():
    Evil.unpickled += 1
