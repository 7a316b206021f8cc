"""Tenancy and preemption around any policy: each is a policy that holds a policy. `standard` puts them together."""

from fairlead.policies.middleware.drain import Drain
from fairlead.policies.middleware.loss import LeastLoss, loss_gpu_s
from fairlead.policies.middleware.minimum import MinimumRun
from fairlead.policies.middleware.outsiders import Outsiders
from fairlead.policies.middleware.priority import ByPriority
from fairlead.policies.middleware.queues import Queue, admit, all_queues
from fairlead.policies.middleware.receipts import Receipt, receipt
from fairlead.policies.middleware.shares import Entitlement, QueueEntitlement, entitlements
from fairlead.policies.middleware.standard import standard
from fairlead.policies.middleware.tenancy import Tenancy
from fairlead.policies.middleware.unsaved import SpareUnsaved
from fairlead.policies.middleware.window import Window

__all__ = [
    "ByPriority",
    "Drain",
    "Entitlement",
    "LeastLoss",
    "MinimumRun",
    "Outsiders",
    "Queue",
    "QueueEntitlement",
    "Receipt",
    "SpareUnsaved",
    "Tenancy",
    "Window",
    "admit",
    "all_queues",
    "entitlements",
    "loss_gpu_s",
    "receipt",
    "standard",
]
