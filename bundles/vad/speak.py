"""Makes sample.npz: pieces of something like speech, noise and silence, each with the state that precedes it."""

from pathlib import Path

import numpy as np

RATE = 16_000
PIECE, CONTEXT = 512, 64

_FORMANTS = {
    "a": (730, 1090, 2440),
    "e": (530, 1840, 2480),
    "i": (270, 2290, 3010),
    "o": (570, 840, 2410),
    "u": (300, 870, 2240),
}
_WIDTHS = (80, 100, 140)


def speak(vowels, seed=0):
    """Syllables with these vowels, half a second of near silence before and behind: FP32 [samples], 16 kHz."""
    random = np.random.default_rng(seed)
    quiet = np.zeros(RATE // 2)
    pieces = [part for vowel in vowels for part in (_hiss(random), _vowel(vowel, random), np.zeros(480))]
    sound = 0.1 * np.concatenate([quiet, *pieces, quiet])
    return (sound + 1e-4 * random.standard_normal(len(sound))).astype(np.float32)


def cut(sound):
    """The pieces that the model hears: FP32 [pieces, 576], each with the end of the one before it."""
    whole = np.concatenate([np.zeros(CONTEXT, np.float32), sound])
    return np.lib.stride_tricks.sliding_window_view(whole, CONTEXT + PIECE)[::PIECE].copy()


def _vowel(vowel, random):
    """Pulses of the glottis through three resonances, gliding down in pitch."""
    count = int(random.uniform(0.12, 0.25) * RATE)
    pitch = np.linspace(random.uniform(110, 150), random.uniform(90, 130), count)
    phase = (np.cumsum(pitch * (1 + 0.01 * random.standard_normal(count).cumsum() / count**0.5)) / RATE) % 1
    opening, closing = 0.5 * (1 - np.cos(np.pi * phase / 0.4)), np.cos(np.pi * (phase - 0.4) / 0.32)
    flow = np.where(phase < 0.4, opening, np.where(phase < 0.56, closing, 0))
    breath = np.diff(flow, prepend=0) + 0.002 * random.standard_normal(count)
    spectrum = np.fft.rfft(breath, 2 * count)
    back = np.exp(-2j * np.pi * np.fft.rfftfreq(2 * count))
    for formant, width in zip(_FORMANTS[vowel], _WIDTHS, strict=True):
        pole = np.exp(np.pi * (2j * formant - width) / RATE)
        spectrum /= (1 - pole * back) * (1 - pole.conjugate() * back)
    voice = np.fft.irfft(spectrum)[:count]
    edge = np.minimum(np.arange(count), count - np.arange(count)) / (0.03 * RATE)
    return voice / np.abs(voice).max() * np.minimum(1, edge)


def _hiss(random):
    noise = np.diff(random.standard_normal(1120), prepend=0)
    return 0.15 * noise / np.abs(noise).max() * np.sin(np.pi * np.arange(1120) / 1120)


def main():
    """Follow one voice, and keep some pieces of it beside noise and silence."""
    from importlib.metadata import distribution

    import onnxruntime

    file = distribution("silero-vad").locate_file("silero_vad/data/silero_vad_16k_op15.onnx")
    session = onnxruntime.InferenceSession(file)
    state = np.zeros((2, 1, 128), np.float32)
    heard = []
    for piece in cut(speak("aieoauie")):
        feed = {"input": piece[None], "state": state, "sr": np.array(RATE)}
        heard.append((feed["input"], state))
        state = session.run(["stateN"], feed)[0]
    noise = np.random.default_rng(1).standard_normal((1, CONTEXT + PIECE)).astype(np.float32)
    chosen = [*heard[16:64:8], (0.1 * noise, heard[20][1]), (0 * noise, heard[0][1])]
    np.savez_compressed(
        Path(__file__).with_name("sample.npz"),
        input=np.concatenate([piece for piece, _ in chosen]),
        state=np.concatenate([state for _, state in chosen], axis=1),
        sr=np.array(RATE),
    )


if __name__ == "__main__":
    main()
