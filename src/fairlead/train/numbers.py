"""The numbers that members add up beside their gradients in every step, by their places.

All see the same sums in the same step, so whatever they decide by them, they decide together.
"""

from __future__ import annotations

from fairlead.train.schedules import MEMORY

#: Squared norms of the micro-batches' gradients, and how many of them; the mean loss.
LOCAL_SQR, GROUPS, LOSS = 0, 1, 2
#: Members that could change to the next generation, that were told to stop or to sleep, and that have had enough.
READY, STOP, SUSPEND, FINISH = 3, 4, 5, 6
#: Everybody's learning rate and its square: if these are not all equal, the replicas drift apart.
RATE, RATE_SQR = 7, 8
#: From the leader only: the split from the next step on, if it changes, and that of the next generation; what is known
#: of the noise; and what the schedule of the batch remembers.
MICRO, ACCUMULATION, THEIR_MICRO, THEIR_ACCUMULATION, NOISE = 9, 10, 11, 12, 13
NOISE_FIELDS = ("sqr_sum", "trace_sum", "weight", "only_pairs", "skipped")
SCHEDULE = NOISE + len(NOISE_FIELDS)
#: From here on, how long each member has computed.
FIRST_RANK = SCHEDULE + MEMORY
