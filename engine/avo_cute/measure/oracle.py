"""The words in which a task's reference.py speaks to the judge of correctness.

A reference.py is a module that has everything `Reference` lists. It may import this module (it is
standard library only), and torch inside its functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..records import Param

Tensor = Any  # torch.Tensor
Params = Mapping[str, Param]
Shape = tuple[int, ...]
Drawn = tuple[str, str, Params]  # name, class, params: all of a workload that a task draws itself


@dataclass(frozen=True, slots=True)
class Output:
    """One output of a kernel and the measure it is judged by.

    "relative": the L2 norm of the error over that of the expected values, of everything and of
    each tile of 128 rows, and the sign of the errors. The last dimension lies within a row;
    `rows` is the dimension along which rows follow each other.
    "absolute": the largest error. The reference may say -inf, which must then be met exactly.
    """

    name: str
    dtype: str  # as torch spells it: "bfloat16"
    shape: Callable[[Params], Shape]
    metric: str
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Sample:
    """Expected values (fp64, one tensor per output) of some rows; `pick` takes the same rows from
    outputs. The last dimension of a "relative" output stays the last one."""

    expected: tuple[Tensor, ...]
    pick: Callable[[Sequence[Tensor]], tuple[Tensor, ...]]


@dataclass(frozen=True, slots=True)
class Property:
    """Something that holds of every correct kernel, whatever a reference says.

    The kernel runs once per case; `judge` gets the outputs of each run, in that order, and answers
    with an error and the largest error allowed (0 where bits must agree).
    """

    name: str
    cases: tuple[tuple[Params, tuple[Tensor, ...]], ...]
    judge: Callable[[Sequence[Sequence[Tensor]]], tuple[float, float]]


class Reference(Protocol):
    """What a reference.py gives. `inputs` are tensors in the order of INPUTS, `device` is torch's
    name of one, `seed` decides everything that is random."""

    INPUTS: tuple[str, ...]  # the tensors of build.arguments are these …
    OUTPUTS: tuple[Output, ...]  # … and then these
    FAMILIES: tuple[str, ...]  # kinds of inputs; the first is the ordinary one
    FEW: tuple[str, ...]  # those that find most, for screening
    FORMS: tuple[str, ...]  # of `expected`: two that share no code
    WRONG: Mapping[str, Callable[[Params, Sequence[Tensor]], tuple[Tensor, ...]]]

    def case(
        self, params: Params, family: str, seed: int, device: str
    ) -> tuple[Params, tuple[Tensor, ...]]:
        """Inputs of one family on `device`, and `params` with what the family adds to them."""
        ...

    def small(self, params: Params) -> bool:
        """Whether `expected` takes milliseconds and less than 2 GiB."""
        ...

    def expected(self, params: Params, inputs: Sequence[Tensor], form: str) -> tuple[Tensor, ...]:
        """All outputs in fp64."""
        ...

    def whole32(self, params: Params, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """All outputs in fp32 (never TF32), with at most 2 GiB of memory besides the results."""
        ...

    def sampled(
        self,
        params: Params,
        inputs: Sequence[Tensor],
        seed: int,
        count: int,
        groups: int | None = None,
    ) -> Sample:
        """At least `count` random rows of each group of rows that share inputs, or fewer where a
        group is smaller; of `groups` random groups only, if given."""
        ...

    def checks(self, judged: Sequence[Params]) -> list[Drawn]:
        """The correctness-only workloads that belong to these judged ones, always the same.

        The first is small and ordinary: the self-test uses it."""
        ...

    def hidden(self, seed: int, judged: Sequence[Params], count: int) -> list[Drawn]:
        """`count` hidden workloads, drawn; at least half would run the judged ones' kernels."""
        ...

    def properties(self, params: Params, seed: int, device: str) -> Iterator[Property]: ...
