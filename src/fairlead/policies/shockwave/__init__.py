"""Shockwave (Zheng et al., NSDI '23): a market in which jobs buy rounds of the near future."""

from fairlead.policies.shockwave.elastic import ShockwaveElastic as ShockwaveElastic
from fairlead.policies.shockwave.rigid import Shockwave as Shockwave
from fairlead.policies.shockwave.rigid import ShockwaveOracle as ShockwaveOracle
