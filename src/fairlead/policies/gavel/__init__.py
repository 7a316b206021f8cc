"""Gavel's policies: a problem as arrays, an objective for each policy of the paper, and the policy that serves them."""

from fairlead.policies.gavel.policy import Gavel, GavelOracle

__all__ = ["Gavel", "GavelOracle"]
