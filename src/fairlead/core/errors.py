"""Whose fault is it? Every error Fairlead raises answers that by its type.

A message names the subject, what was found, what is allowed, and what to do next.
"""


class FairleadError(Exception):
    """The root of all errors raised on purpose."""


class InvalidSpec(FairleadError):
    """The user's fault: a job, option, file or command line that cannot be meant."""


class InvalidPlan(FairleadError):
    """The policy's fault: a plan that no cluster could carry out."""


class InvalidTransition(FairleadError):
    """Our fault: a message that cannot follow what already happened. Carries the job's story."""


class BackendError(FairleadError):
    """The world's fault: the backend could not do what it was asked."""
