"""What a cell's samples cost: energy, by the counters of its machine, and money, by the prices of a file. Pure.

The energy of a sample is that of the measured epochs, divided by their samples: of the CPU packages, of the memory and,
for a cell on GPUs, of its GPUs. A part that is not counted is left out, except those GPUs, which are most of it: so
figures of two machines are compared only if both count the same parts (`energy_parts`).

The money of a sample is the time of a sample times the price of its machine or of its GPUs by the hour, and the energy
of a sample times the price of electricity if the file has one. Without electricity its interval is that of the time;
with it, Student's over the processes' sums, as of the time.

    per_million(price_per_hour, seconds_per_sample)        the two formulas, for whatever else weighs a setting by cost
    electricity_per_million(price_per_kwh, joules_per_sample)

Guarantee: None for what is not known, with the reason: a machine without a price, a command without samples, energy
that was not measured where electricity has a price. Limits: CPU energy is the machine's, other programs included; a
price by the hour is of a machine that does nothing else; the time before the first step is not in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from keras_matrix.analysis.comparison.machines import SHOWN_CHARACTERS
from keras_matrix.analysis.comparison.primary_metric import STEP_TIME
from keras_matrix.analysis.comparison.table import CellSummary
from keras_matrix.analysis.stats.blocks import Estimate, geometric
from keras_matrix.records.schema import Machine, Record
from keras_matrix.records.text import NOTHING, interval, number

SECONDS_PER_HOUR = 3_600.0
JOULES_PER_KWH = 3.6e6
MILLION = 1_000_000
GPUS, CPUS, MEMORY = "GPUs", "CPUs", "memory"
COST_METRIC, COST_LABEL = "cost.per_million_samples", "cost per million samples"
COST_METHOD = "time and energy of a sample times their prices"


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices in one currency: by the hour, of machines and GPUs by name, and of a kWh of electricity if it is paid.

    Of the names in `included` the electricity is in the price by the hour.
    """

    currency: str
    per_hour: Mapping[str, float]
    per_kwh: float | None = None
    included: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class HourlyPrice:
    """The price by the hour of `count` things of this name that a process used; it may include their electricity."""

    name: str
    price: float
    count: int = 1
    with_electricity: bool = False

    @property
    def per_hour(self) -> float:
        """The price of all of them."""
        return self.price * self.count


@dataclass(frozen=True, slots=True)
class CellCost:
    """The cost of a million samples of a cell: `basis` is what it is made of, `reason` why it is not known."""

    currency: str
    estimate: Estimate | None
    basis: str = ""
    reason: str = ""

    @property
    def figure(self) -> str:
        """The cost with its interval, without the currency; a dash if it is not known."""
        estimate = self.estimate
        if estimate is None:
            return NOTHING
        bounds = interval(estimate.low, estimate.high, estimate.centre)
        return number(estimate.centre) + (f" {bounds}" if bounds else "")

    @property
    def text(self) -> str:
        """The cost with its currency and what it is made of; else why it is not known."""
        return f"{self.figure} {self.currency} ({self.basis})" if self.estimate else f"not known: {self.reason}"


def per_million(price_per_hour: float, seconds_per_sample: float) -> float:
    """Return the price of a million samples on a machine with this price by the hour."""
    return price_per_hour * seconds_per_sample * MILLION / SECONDS_PER_HOUR


def electricity_per_million(price_per_kwh: float, joules_per_sample: float) -> float:
    """Return the price of the electricity of a million samples."""
    return price_per_kwh * joules_per_sample * MILLION / JOULES_PER_KWH


def seconds_per_sample(record: Record) -> float | None:
    """Return the time of a sample in the measured epochs; None for a command, or if no samples are stated."""
    rate = record.times.samples_per_s
    return 1 / rate if rate and record.task is None else None


def energy_parts(record: Record) -> dict[str, float]:
    """Return the energy of the measured epochs in joules, by what was counted; empty for a GPU that was not."""
    usage = record.usage
    if usage is None or (record.settings.device != "cpu" and usage.device_energy_j is None):
        return {}
    energies = {GPUS: usage.device_energy_j, CPUS: usage.cpu_energy_j, MEMORY: usage.dram_energy_j}
    return {name: energy_j for name, energy_j in energies.items() if energy_j is not None}


def joules_per_sample(record: Record) -> float | None:
    """Return the energy of a sample, of everything that was counted; None unless it is above zero."""
    sample_s, epochs_s = seconds_per_sample(record), sum(record.times.epoch_times_s)
    energy_j = sum(energy_parts(record).values())
    return energy_j * sample_s / epochs_s if sample_s and epochs_s and energy_j else None


def energy_counted(cell: CellSummary) -> tuple[str, ...]:
    """Return what the energy of a cell's processes is of; empty if it was not measured, or not alike in all of them."""
    parts = {tuple(energy_parts(record)) for record in cell.measured}
    return parts.pop() if len(parts) == 1 else ()


def energy_per_sample(cell: CellSummary) -> Estimate | None:
    """Return the energy of a sample over the processes, in joules, with its interval between them."""
    energies_j = [joules for record in cell.measured if (joules := joules_per_sample(record))]
    return geometric(energies_j) if energy_counted(cell) else None


def hourly_price(record: Record, prices: Prices) -> HourlyPrice | None:
    """Return the price of what a process used: of its machine by id or type, of its GPUs by product name, of its CPU.

    The first of these that has a price; None without one. If several cells used the machine at the same time, each on
    GPUs of its own, only those have a price.
    """
    machine = record.machine
    if record.gpu_place is None:
        for name in (machine.host_id, machine.host_id[:SHOWN_CHARACTERS], machine.machine_type):
            if name in prices.per_hour:
                return _priced(name, prices)
    if record.settings.device == "cpu":
        return _priced(machine.cpu_model, prices)
    products = [record.device.model] if record.device and record.device.model else sorted(set(machine.gpus))
    found = next((product for product in products if product in prices.per_hour), None)
    return _priced(found, prices, _gpu_count(record))


def _priced(name: str | None, prices: Prices, count: int = 1) -> HourlyPrice | None:
    if name is None or name not in prices.per_hour:
        return None
    return HourlyPrice(name, prices.per_hour[name], count, name in prices.included)


def _gpu_count(record: Record) -> int:
    sampled = record.usage.devices if record.usage else None
    return sampled or max(1, record.settings.devices)


def names_of(machine: Machine) -> tuple[str, ...]:
    """Return the names that a machine can have in a file of prices."""
    names = (machine.machine_type, *dict.fromkeys(machine.gpus), machine.cpu_model, machine.host_id)
    return tuple(name for name in names if name)


def cell_cost(cell: CellSummary, prices: Prices) -> CellCost:
    """Return what a million samples of a cell cost by these prices."""
    if reason := _without_cost(cell):
        return CellCost(prices.currency, None, reason=reason)
    records = [record for record in cell.measured if seconds_per_sample(record)]
    hourly = [hourly_price(record, prices) for record in records]
    if prices.per_hour and None in hourly:
        names_text = ", ".join(names_of(records[hourly.index(None)].machine))
        return CellCost(prices.currency, None, reason=f"no price for any of {names_text}")
    known = [price for price in hourly if price is not None]
    if prices.per_kwh is None or (known and all(price.with_electricity for price in known)):
        return _of_time(cell, records, known, prices.currency)
    if energy_per_sample(cell) is None:
        return CellCost(prices.currency, None, reason=f"no energy to price: {unmeasured_energy(records)}")
    costs = [
        (0.0 if price and price.with_electricity else electricity_per_million(prices.per_kwh, _joules(record)))
        + (per_million(price.per_hour, _seconds(record)) if price else 0.0)
        for record, price in zip(records, hourly, strict=True)
    ]
    basis = " and ".join([*_bases(known), f"electricity of {', '.join(energy_counted(cell))}"])
    return CellCost(prices.currency, geometric(costs), basis)


def _without_cost(cell: CellSummary) -> str:
    """Return why no price applies to a cell, empty if one may."""
    if cell.figure != STEP_TIME:
        return "a command has no samples"
    if cell.step_time is None or not any(map(seconds_per_sample, cell.measured)):
        return "its samples were not measured"
    if any("+" in record.place for record in cell.measured):
        return "its workers were on several machines"
    return ""


def _of_time(cell: CellSummary, records: Sequence[Record], hourly: Sequence[HourlyPrice], currency: str) -> CellCost:
    """Return the cost by the hour alone: that of the time, with its interval, if every process has the same price."""
    basis, per_hour = " and ".join(_bases(hourly)), {price.per_hour for price in hourly}
    per_step = {float(f"{_seconds(record) / (record.times.step_time_s or 1.0):.9g}") for record in records}
    if cell.step_time and len(per_hour) == len(per_step) == 1:
        return CellCost(currency, cell.step_time.scaled(per_million(per_hour.pop(), per_step.pop())), basis)
    costs = [per_million(price.per_hour, _seconds(record)) for record, price in zip(records, hourly, strict=True)]
    return CellCost(currency, geometric(costs), basis)


def _seconds(record: Record) -> float:
    """Return the time of a sample of a process that has one."""
    sample_s = seconds_per_sample(record)
    assert sample_s is not None
    return sample_s


def _joules(record: Record) -> float:
    """Return the energy of a sample of a process whose energy was measured; 0 if the counters did not move."""
    return joules_per_sample(record) or 0.0


def _bases(hourly: Sequence[HourlyPrice]) -> list[str]:
    texts = [f"{price.name}{f' x {price.count}' if price.count > 1 else ''} by the hour" for price in hourly]
    return list(dict.fromkeys(texts))


def unmeasured_energy(records: Sequence[Record]) -> str:
    """Return why the energy of these processes is not known."""
    reasons = (record.usage.cpu_energy_unread or record.surroundings.gpu_unread for record in records if record.usage)
    return next((reason for reason in reasons if reason), "its energy was not measured")
