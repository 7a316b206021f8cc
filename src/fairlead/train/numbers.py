"""The numbers that members add up beside their gradients in every step, by their places.

All see the same sums in the same step, so whatever they decide by them, they decide together.
"""

from __future__ import annotations

#: Squared norms of the micro-batches' gradients, and how many of them; the mean loss.
LOCAL_SQR, GROUPS, LOSS = 0, 1, 2
#: Members that could change to the next generation, and that were told to stop or to sleep.
READY, STOP, SUSPEND = 3, 4, 5
#: Everybody's learning rate and its square: if these are not all equal, the replicas drift apart.
RATE, RATE_SQR = 6, 7
#: From the leader only: the split from the next step on, if it changes, and that of the next generation; and what is
#: known of the noise.
MICRO, ACCUMULATION, THEIR_MICRO, THEIR_ACCUMULATION, NOISE = 8, 9, 10, 11, 12
NOISE_FIELDS = ("sqr_sum", "trace_sum", "weight", "only_pairs", "skipped")
#: From here on, how long each member has computed.
FIRST_RANK = NOISE + len(NOISE_FIELDS)
