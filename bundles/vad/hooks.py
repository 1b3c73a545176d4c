"""Refuses what the model would take and answer wrongly: sound of another rate than 16 kHz."""

_RATE = 16_000


def preprocess(inputs):
    """The tensors as they are. Raises `ValueError` for any other sampling rate: the model never looks at it."""
    if inputs["sr"] != _RATE:
        raise ValueError(f"sr is {inputs['sr']}: this model hears sound of {_RATE} samples a second only, resample it")
    return inputs
