"""The facts that a parity worker reports of its optimizer, without a backend."""

from __future__ import annotations

from keras_matrix.runner.cell.parity import hyperparameters, keras_class, rows_of

KerasAdam = type("Adam", (), {"__module__": "keras.src.optimizers.adam"})
KerasAdamW = type("AdamW", (KerasAdam,), {"__module__": "keras.src.optimizers.adamw"})
UserOptimizer = type("Mine", (KerasAdamW,), {"__module__": "my_workload"})


def test_optimizer_is_named_by_its_keras_class_or_base_class() -> None:
    assert [keras_class(kind()) for kind in (KerasAdam, KerasAdamW, UserOptimizer)] == ["Adam", "AdamW", "AdamW"]


def test_only_indexed_slices_have_rows() -> None:
    class IndexedSlices:
        indices = (1, 1)

    class Tensor:
        def indices(self) -> None:
            """PyTorch's tensors have a method of this name."""

    assert (rows_of(IndexedSlices()), rows_of(Tensor()), rows_of(None)) == ((1, 1), None, None)


class Configured:
    def __init__(self, **config: object) -> None:
        self.config = config

    def get_config(self) -> dict[str, object]:
        if not self.config:
            raise NotImplementedError("no configuration")
        return self.config


def test_hyperparameters_are_the_finite_numbers_of_the_configuration() -> None:
    optimizer = Configured(name="adam", beta_1=0.9, ns_steps=5, amsgrad=False, clipnorm=None, rate=float("nan"))
    assert hyperparameters(optimizer) == {"beta_1": 0.9, "ns_steps": 5.0}


def test_an_optimizer_without_a_configuration_reports_no_hyperparameters() -> None:
    assert hyperparameters(Configured()) == {}
