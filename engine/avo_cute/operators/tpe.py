"""What a Tree-structured Parzen Estimator makes of the attempts so far (optuna's sampler)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..knobs import Knob
from ..patterns import normal

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution

_BLOCK = 200  # attempts; the sampler sees those of the current block and of the one before


class Tpe:
    """Learns what each value was worth to those who changed to it.

    One attempt is one observation, of its changed knobs alone: their new values, and the gain over
    the parent. What all knobs had in common with the parent says nothing about the change.
    Suggestions are a function of what was added, in order, and of the seed; their cost is bounded,
    because at most the latest 400 attempts are considered.
    """

    def __init__(self, knobs: Sequence[Knob]) -> None:
        self._choices = {k.name: k.choices for k in knobs}
        self._codes = {k.name: {normal(c): i for i, c in enumerate(k.choices)} for k in knobs}
        self._ordinal = {k.name for k in knobs if k.kind == "ordinal"}
        self._results: list[tuple[dict[str, int], float]] = []
        self._study: Study | None = None
        self._told = (0, 0)  # results that the study has: from, to

    def __len__(self) -> int:
        return len(self._results)

    def add(self, changes: Mapping[str, str], gain: float) -> None:
        """One attempt that set these knobs; a failure has a gain of 0.

        A value that is none of the choices stays unknown.
        """
        codes = {name: self._codes.get(name, {}).get(value) for name, value in changes.items()}
        self._results.append(({n: code for n, code in codes.items() if code is not None}, gain))

    def suggest(self, values: Mapping[str, str], seed: int) -> dict[str, str]:
        """The knobs of `values` that it would set otherwise, with the choice for each."""
        import optuna

        study = self._up_to_date()
        study.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=1)
        asked = study.ask({name: d for name, d in self._space.items() if name in values})
        study.tell(asked, state=optuna.trial.TrialState.FAIL)
        wanted = {name: self._choices[name][code] for name, code in asked.params.items()}
        return {name: choice for name, choice in wanted.items() if normal(choice) != values[name]}

    def _up_to_date(self) -> Study:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        start = max(0, len(self._results) // _BLOCK - 1) * _BLOCK
        if self._study is None or start != self._told[0]:
            self._study = optuna.create_study(direction="maximize")
            self._told = (start, start)
        for codes, gain in self._results[self._told[1] :]:
            self._study.add_trial(self._trial(codes, gain))
        self._told = (start, len(self._results))
        return self._study

    def _trial(self, codes: Mapping[str, int], score: float) -> Any:
        from optuna.trial import create_trial

        known = {name: self._space[name] for name in codes}
        return create_trial(params=dict(codes), distributions=known, value=score)

    @cached_property
    def _space(self) -> dict[str, BaseDistribution]:
        from optuna.distributions import CategoricalDistribution, IntDistribution

        return {
            name: IntDistribution(0, len(choices) - 1)
            if name in self._ordinal
            else CategoricalDistribution(tuple(range(len(choices))))
            for name, choices in self._choices.items()
        }
