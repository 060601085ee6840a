"""Errors meant for a person: each says what was wrong, where, and what to do."""


class UserError(Exception):
    """A mistake in configuration, arguments or environment; printed without a traceback, exit status 2."""
