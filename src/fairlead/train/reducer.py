"""Gradients of all members added up while the backward pass is still under way, and in between a few numbers more.

Gradients are views of flat buckets, filled from the last layer to the first. A bucket that is complete is sent on its
way at once. The workers see nothing of each other but this sum, so a new generation only means another `Group`: nothing
is wrapped again, and nothing is copied.

Every gradient is weighted with (samples of the micro-batch) / (samples of the whole step) before it is added, so the
sum is the mean over the step whatever share each member has. After each step the buckets tell the squared norms of the
micro-batches' own gradients and of the mean, from which the noise scale is estimated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fairlead.core.errors import InvalidSpec
from fairlead.train.group import Group
from fairlead.train.noise import Preconditioner, inner, squared_norm

#: Bytes of a bucket, as in DistributedDataParallel.
BUCKET_BYTES = 25 << 20


class Bucket:
    """Some parameters' gradients, one after the other."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self.parameters = list(parameters)
        #: What earlier micro-batches of the step have added up to; made when it is first needed.
        self.earlier: torch.Tensor | None = None
        self.missing = 0
        self.renew()

    def renew(self) -> None:
        """Take other memory: nobody knows when an operation that was given up writes to it for the last time."""
        first = self.parameters[0]
        self.flat = torch.zeros(sum(p.numel() for p in self.parameters), dtype=first.dtype, device=first.device)
        self.views: list[torch.Tensor] = []
        start = 0
        for parameter in self.parameters:
            end = start + parameter.numel()
            self.views.append(self.flat[start:end].view_as(parameter))
            start = end


class Reducer:
    """The buckets of one model. Call `begin`, then for each micro-batch `expect` and a backward pass, then `finish`."""

    def __init__(self, named: Sequence[tuple[str, torch.nn.Parameter]], group: Group) -> None:
        trained = [(name, parameter) for name, parameter in named if parameter.requires_grad]
        if not trained:
            raise InvalidSpec("the model has no parameter that requires a gradient, so there is nothing to train")
        self.group = group
        self._names = {parameter: name for name, parameter in trained}
        self.buckets = _buckets([parameter for _, parameter in reversed(trained)])
        self._place = {
            parameter: (bucket, place) for bucket in self.buckets for place, parameter in enumerate(bucket.parameters)
        }
        self._ready: set[torch.nn.Parameter] = set()
        self._sent = 0
        self._works: list[Any] = []
        self._last = True
        self._measuring = False
        self._weight = 0.0
        self._factors: list[torch.Tensor | None] = [None] * len(self.buckets)
        #: Squared norms of the micro-batches' gradients, each weighted with its part of the step; this member's only.
        self.local_sqr = 0.0
        #: How many of them there were.
        self.groups = 0
        for parameter in self._place:
            parameter.register_post_accumulate_grad_hook(self._accumulated)  # type: ignore[no-untyped-call]

    def begin(self, *, measure: bool, preconditioner: Preconditioner | None = None) -> None:
        """A new step: nothing has been added up. `measure` also tells norms, as Adam sees gradients if that is used."""
        self._measuring, self.local_sqr, self.groups, self._works = measure, 0.0, 0, []
        scaled = preconditioner if measure else None
        self._factors = [scaled.flat(bucket.parameters) if scaled else None for bucket in self.buckets]
        for bucket in self.buckets:
            bucket.flat.zero_()
            if bucket.earlier is not None:
                bucket.earlier.zero_()
            for parameter, view in zip(bucket.parameters, bucket.views, strict=True):
                parameter.grad = view

    def expect(self, *, last: bool, weight: float) -> None:
        """The next backward pass is of a micro-batch with this part of the step's samples."""
        self._last, self._weight, self._sent = last, weight, 0
        self._ready.clear()
        for bucket in self.buckets:
            bucket.missing = len(bucket.parameters)

    def passed(self) -> None:
        """The backward pass is over."""
        if len(self._ready) < len(self._place):
            unused = sorted(self._names[parameter] for parameter in self._place if parameter not in self._ready)
            raise InvalidSpec(
                f"{len(unused)} parameters got no gradient from the loss, {unused[0]} for one; "
                "use them in the forward pass, or set requires_grad=False before job.wrap"
            )
        self.groups += self._weight > 0.0
        if not self._last:
            for bucket, factor in zip(self.buckets, self._factors, strict=True):
                self._measure(bucket, factor)
                if bucket.earlier is None:
                    bucket.earlier = torch.zeros_like(bucket.flat)
                bucket.earlier.add_(bucket.flat)
                bucket.flat.zero_()  # so that clipping in between finds nothing to clip

    def finish(self, numbers: torch.Tensor) -> None:
        """Wait until all gradients, and some numbers beside them, have been added up. Raises Broken."""
        work = self.group.start_sum(numbers)
        for each in (*self._works, work):
            self.group.finish(each)

    def give_up(self) -> None:
        """What was under way will never be completed."""
        self._works = []
        for bucket in self.buckets:
            bucket.renew()

    def _accumulated(self, parameter: torch.Tensor) -> None:
        bucket, place = self._place[parameter]  # type: ignore[index]
        view = bucket.views[place]
        if parameter.grad is not None and parameter.grad.data_ptr() != view.data_ptr():
            view.copy_(parameter.grad)  # somebody has set the gradient to None
            parameter.grad = view
        self._ready.add(parameter)  # type: ignore[arg-type]
        bucket.missing -= 1
        if not self._last:
            return
        # In the same order on all members, or they would add up different things.
        while self._sent < len(self.buckets) and self.buckets[self._sent].missing == 0:
            complete = self.buckets[self._sent]
            self._measure(complete, self._factors[self._sent])
            if complete.earlier is not None:
                complete.flat.add_(complete.earlier)
            self._works.append(self.group.start_sum(complete.flat))
            self._sent += 1

    def mean_sqr(self) -> float:
        """The squared norm of the mean gradient, once it is complete."""
        return sum(float(squared_norm(b.flat, f)) for b, f in zip(self.buckets, self._factors, strict=True))

    def compare(self, previous: Sequence[torch.Tensor]) -> tuple[float, float]:
        """(|g - g'|^2, <g, g'>) with the mean gradients of another step."""
        every = list(zip(self.buckets, previous, self._factors, strict=True))
        difference = sum(float(squared_norm(b.flat - before, f)) for b, before, f in every)
        return difference, sum(float(inner(b.flat, before, f)) for b, before, f in every)

    def _measure(self, bucket: Bucket, factor: torch.Tensor | None) -> None:
        """A gradient g of b of B samples is here as g b/B, and counts as |g|^2 b/B."""
        if self._measuring and self._weight > 0.0:
            self.local_sqr += float(squared_norm(bucket.flat, factor)) / self._weight


def _buckets(parameters: Sequence[torch.nn.Parameter]) -> list[Bucket]:
    """In order, of one dtype and device each, and as large as a bucket should be."""
    found: list[Bucket] = []
    some: list[torch.nn.Parameter] = []
    for parameter in parameters:
        size = sum(p.numel() * p.element_size() for p in some)
        alike = not some or (some[0].dtype, some[0].device) == (parameter.dtype, parameter.device)
        if some and (not alike or size + parameter.numel() * parameter.element_size() > BUCKET_BYTES):
            found.append(Bucket(some))
            some = []
        some.append(parameter)
    found.append(Bucket(some))
    return found
