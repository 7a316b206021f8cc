"""Gradients of all members added up while the backward pass is still under way, and in between a few numbers more.

Gradients are copied to flat buckets as they come, from the last layer to the first, and are views of these afterwards.
A bucket that is complete is sent on its way at once. The workers see nothing of each other but this sum, so a new
generation only means another `Group`: nothing is wrapped again.

Every gradient is weighted with (samples of the micro-batch) / (samples of the whole step) before it is added, so the
sum is the mean over the step whatever share each member has. After each step the reducer tells the squared norms of the
micro-batches' own gradients and of the mean, from which the noise scale is estimated.

What this costs is reading and writing memory. So nothing is cleared that is written anyway: a backward pass finds no
gradient and leaves its own one, without adding it to zeros. And a gradient is measured when it comes, while much of it
is in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fairlead.core.errors import InvalidSpec
from fairlead.train.group import Group
from fairlead.train.noise import Divisor, Preconditioner, compared, squared_norm

#: Bytes of a bucket, as in DistributedDataParallel.
BUCKET_BYTES = 25 << 20


class Bucket:
    """Some parameters' gradients, one after the other."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self.parameters = list(parameters)
        #: What earlier micro-batches of the step have added up to; made when it is first needed.
        self.earlier: list[torch.Tensor] = []
        self.missing = 0
        self.renew()

    def renew(self) -> None:
        """Take other memory: nobody knows when an operation that was given up writes to it for the last time."""
        first = self.parameters[0]
        self.flat = torch.zeros(sum(p.numel() for p in self.parameters), dtype=first.dtype, device=first.device)
        self.views = [part.view_as(p) for part, p in zip(self.parts(self.flat), self.parameters, strict=True)]

    def parts(self, flat: torch.Tensor) -> Sequence[torch.Tensor]:
        """Of a tensor that is arranged like this bucket, those of each parameter."""
        return torch.split_with_sizes(flat, [p.numel() for p in self.parameters])


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
        #: Micro-batches of the step that are over.
        self._passed = 0
        self._measuring = self._expecting = False
        self._preconditioner: Preconditioner | None = None
        self._weight = 0.0
        #: Squared norms of the gradients of this backward pass.
        self._squares: list[torch.Tensor] = []
        #: Squared norms of the micro-batches' gradients, each weighted with its part of the step; this member's only.
        #: Not measured of a step's only one: its noise is not seen by comparison with others.
        self.local_sqr = 0.0
        #: How many of them there were.
        self.groups = 0
        for parameter in self._place:
            parameter.register_post_accumulate_grad_hook(self._accumulated)  # type: ignore[no-untyped-call]

    def begin(self, *, measure: bool, preconditioner: Preconditioner | None = None) -> None:
        """A new step: nothing has been added up. `measure` also tells norms, as Adam sees gradients if that is used."""
        self._measuring, self._preconditioner = measure, preconditioner
        self.local_sqr, self.groups, self._passed, self._works = 0.0, 0, 0, []

    def expect(self, *, last: bool, weight: float) -> None:
        """The next backward pass is of a micro-batch with this part of the step's samples."""
        self._last, self._weight, self._sent, self._expecting = last, weight, 0, True
        self._ready.clear()
        self._squares.clear()
        for bucket in self.buckets:
            bucket.missing = len(bucket.parameters)
            if not last and not bucket.earlier:
                bucket.earlier = [torch.empty_like(view) for view in bucket.views]
            for parameter in bucket.parameters:
                parameter.grad = None

    def passed(self) -> None:
        """The backward pass is over."""
        self._expecting = False
        if len(self._ready) < len(self._place):
            unused = sorted(self._names[parameter] for parameter in self._place if parameter not in self._ready)
            raise InvalidSpec(
                f"{len(unused)} parameters got no gradient from the loss, {unused[0]} for one; "
                "use them in the forward pass, or set requires_grad=False before job.wrap"
            )
        self.groups += self._weight > 0.0
        if self._squares:
            # A gradient g of b of B samples is here as g b/B, and counts as |g|^2 b/B.
            self.local_sqr += float(torch.stack(self._squares).sum()) / self._weight
        if not self._last and self._passed == 0:
            for bucket in self.buckets:
                bucket.flat.zero_()  # so that clipping in between finds nothing to clip
        self._passed += 1

    def finish(self, numbers: torch.Tensor) -> None:
        """Wait until all gradients, and some numbers beside them, have been added up. Raises Broken."""
        work = self.group.start_sum(numbers)
        for each in (*self._works, work):
            self.group.finish(each)

    def release(self) -> None:
        """Give the memory of the buckets back, between two steps. After that `renew`."""
        for bucket in self.buckets:
            bucket.flat, bucket.views, bucket.earlier = bucket.flat.new_empty(0), [], []
            for parameter in bucket.parameters:
                parameter.grad = None

    def renew(self) -> None:
        for bucket in self.buckets:
            bucket.renew()

    def give_up(self) -> None:
        """What was under way will never be completed."""
        self._works = []
        self.renew()

    def mean_sqr(self) -> float:
        """The squared norm of the mean gradient, once it is complete."""
        squares = [
            squared_norm(part, self._divisor(parameter))
            for bucket in self.buckets
            for parameter, part in zip(bucket.parameters, bucket.parts(bucket.flat), strict=True)
        ]
        return float(torch.stack(squares).sum())

    def compare(self, previous: Sequence[torch.Tensor]) -> tuple[float, float]:
        """(|g - g'|^2, <g, g'>) with the mean gradients of another step, as they were in the buckets."""
        differences, inners = zip(
            *(
                compared(part, before, self._divisor(parameter))
                for bucket, flat in zip(self.buckets, previous, strict=True)
                for parameter, part, before in zip(
                    bucket.parameters, bucket.parts(bucket.flat), bucket.parts(flat), strict=True
                )
            ),
            strict=True,
        )
        return float(torch.stack(differences).sum()), float(torch.stack(inners).sum())

    # -- while the backward pass is under way --------------------------------------------------------------------

    def _accumulated(self, parameter: torch.nn.Parameter) -> None:
        """Autograd has left a gradient."""
        if not self._expecting:
            raise InvalidSpec("loss.backward() was called; call job.backward(loss) instead")
        if parameter in self._ready:
            raise InvalidSpec(
                f"{self._names[parameter]} got two gradients in one backward pass, as happens if it is used twice "
                "under checkpoint(..., use_reentrant=True); set use_reentrant=False"
            )
        bucket, place = self._place[parameter]
        gradient, view = parameter.grad, bucket.views[place]
        assert gradient is not None
        if self._measuring and 0.0 < self._weight < 1.0:
            self._squares.append(squared_norm(gradient.reshape(-1), self._divisor(parameter)))
        sum_so_far = view if self._last else bucket.earlier[place]
        if self._passed == 0:
            sum_so_far.copy_(gradient)
        else:
            torch.add(bucket.earlier[place], gradient, out=sum_so_far)
        parameter.grad = view
        self._ready.add(parameter)
        bucket.missing -= 1
        if self._last:
            self._send()

    def _send(self) -> None:
        """Those that are complete, in the same order on all members, or they would add up different things."""
        while self._sent < len(self.buckets) and self.buckets[self._sent].missing == 0:
            self._works.append(self.group.start_sum(self.buckets[self._sent].flat))
            self._sent += 1

    def _divisor(self, parameter: torch.nn.Parameter) -> Divisor | None:
        return self._preconditioner.divisor(parameter) if self._preconditioner is not None else None


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
