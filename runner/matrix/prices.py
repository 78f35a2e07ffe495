"""Reads a file of prices: what machines and GPUs cost by the hour, and a kWh of electricity.

    machines:                                   # by machine type, GPU, CPU model, or the id that `runner show` prints
      n1-standard-8: {per_hour: 0.38, currency: EUR, electricity: included}
      NVIDIA A100-SXM4-40GB: {per_hour: 2.93, currency: EUR, electricity: included}
      AMD EPYC 7B13: {per_hour: 0.10, currency: EUR}
    electricity: {per_kwh: 0.30, currency: EUR}

The price of a GPU is that of one. `electricity: included` is for what is rented: the electricity of such a machine is
not added to its price. Without `machines` the electricity is all that a sample costs.

Promise: as for a matrix, every problem is one line, `prices.yaml:LINE: path: rule, got VALUE`; unknown keys are refused
with a near name, nothing is coerced, and all prices are in one currency, since no rate of exchange is known here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from keras_matrix.analysis.cost import Prices
from keras_matrix.records.text import escaped
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.matrix import strict_yaml
from keras_matrix.runner.matrix.scalars import say
from keras_matrix.runner.matrix.strict_yaml import REFUSED, Document, Stop
from keras_matrix.runner.matrix.value_reader import ValueReader

MACHINES, ELECTRICITY, CURRENCY = "machines", "electricity", "currency"
PER_HOUR, PER_KWH, INCLUDED = "per_hour", "per_kwh", "included"
EXAMPLES = {
    PER_HOUR: "{per_hour: 0.38, currency: EUR}",
    PER_KWH: "{per_kwh: 0.30, currency: EUR}",
}
_CURRENCY = re.compile(r"[A-Z]{3}")


def load(path: Path) -> Prices:
    """Return the prices in a file. Raises `UsageError` with every problem in it."""
    if not path.is_file():
        raise UsageError(f"--prices: {'not a regular file' if path.exists() else 'no such file'}, got {str(path)!r}")
    try:
        with path.open("rb") as file:
            text = file.read(strict_yaml.MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"--prices: {path} cannot be read ({error.strerror})") from error
    return parse(escaped(str(path), most=None), text)


def parse(name: str, text: bytes) -> Prices:
    """Return the prices in the text of a file with this name. Raises `UsageError` with every problem in it."""
    reader = _PriceReader(strict_yaml.read(text))
    prices = reader.prices()
    if reader.problems:
        raise UsageError("\n".join(problem.text_in(name) for problem in reader.problems))
    return prices


class _PriceReader(ValueReader):
    """The prices of a document, with its problems; the first currency is that of the file."""

    def __init__(self, document: Document) -> None:
        super().__init__(document)
        self._value = document.value
        self._currency: tuple[str, int] | None = None

    def prices(self) -> Prices:
        """Return the prices; of a document with problems, those without."""
        per_hour: dict[str, float] = {}
        included: set[str] = set()
        per_kwh = None
        try:
            members = self.mapping((), self._value, (MACHINES, ELECTRICITY))
            if not members and not self.problems:
                self.refuse((), f"must have {MACHINES} or {ELECTRICITY}, got neither")
            for name, value in self._machines(members).items():
                amount, has_electricity = self._price((MACHINES, name), value, PER_HOUR, (ELECTRICITY,))
                per_hour |= {name: amount} if amount else {}
                included |= {name} if has_electricity else set()
            if ELECTRICITY in members:
                per_kwh, _ = self._price((ELECTRICITY,), members[ELECTRICITY], PER_KWH)
        except Stop:
            pass
        return Prices(self._currency[0] if self._currency else "", per_hour, per_kwh, frozenset(included))

    def _machines(self, members: dict[str, Any]) -> dict[str, Any]:
        if MACHINES not in members:
            return {}
        machines = self.mapping((MACHINES,), members[MACHINES], None)
        if members[MACHINES] == {} and not self.problems:
            self.refuse((MACHINES,), "must name at least one machine, got an empty mapping")
        return machines

    def _price(
        self, path: strict_yaml.Path, value: object, key: str, further: tuple[str, ...] = ()
    ) -> tuple[float | None, bool]:
        """Return the amount of a price, None if it was refused, and whether it includes electricity."""
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            self.refuse(path, f"must have a currency, as in {EXAMPLES[key]}, got {say(value)}")
            return None, False
        if not isinstance(value, dict):
            if value is not REFUSED:
                self.refuse(path, f"must be a price, as in {EXAMPLES[key]}, got {say(value)}")
            return None, False
        members = self.mapping(path, value, (key, CURRENCY, *further))
        missing = [] if len(members) < len(value) else [name for name in (key, CURRENCY) if name not in value]
        for name in missing:
            name_text = "a currency" if name == CURRENCY else name
            self.refuse(path, f"must have {name_text}, as in {EXAMPLES[key]}, got {say(value)}")
        self._check_currency((*path, CURRENCY), members.get(CURRENCY, REFUSED))
        if (electricity := members.get(ELECTRICITY, INCLUDED)) not in (INCLUDED, REFUSED):
            self.refuse((*path, ELECTRICITY), f"must be {INCLUDED} or left out, got {say(electricity)}")
        return self._amount((*path, key), members.get(key, REFUSED)), ELECTRICITY in members

    def _amount(self, path: strict_yaml.Path, value: object) -> float | None:
        if value is REFUSED:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
            self.refuse(path, f"must be a number above 0, got {say(value)}")
            return None
        return float(value)

    def _check_currency(self, path: strict_yaml.Path, value: object) -> None:
        if value is REFUSED:
            return
        if not isinstance(value, str) or not _CURRENCY.fullmatch(value):
            self.refuse(path, f"must be the three letters of a currency, such as EUR, got {say(value)}")
        elif self._currency is None:
            self._currency = value, self.line(path)
        elif value != self._currency[0]:
            currency, line = self._currency
            self.refuse(path, f"must be the currency of the other prices, {currency} on line {line}, got {say(value)}")
